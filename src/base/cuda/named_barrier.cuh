// SPDX-License-Identifier: Apache-2.0
// Barriers of some of a block's threads, by number (0 is __syncthreads).
#pragma once

#include <cstdint>

namespace espalier {
inline namespace ptx {

// A barrier of `threads` threads of this block.
__device__ __forceinline__ void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Counts towards it and goes on.
__device__ __forceinline__ void arrive_named_barrier(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// named_barrier that also returns whether the condition holds for any thread.
__device__ __forceinline__ bool named_barrier_or(int number, int threads, bool mine) {
    std::uint32_t any;
    asm volatile(
        "{ .reg .pred p, q;\n"
        "setp.ne.u32 p, %3, 0;\n"
        "bar.red.or.pred q, %1, %2, p;\n"
        "selp.u32 %0, 1, 0, q; }\n"
        : "=r"(any)
        : "r"(number), "r"(threads), "r"(static_cast<std::uint32_t>(mine))
        : "memory");
    return any != 0;
}

}  // namespace ptx
}  // namespace espalier
