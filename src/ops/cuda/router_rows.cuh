// SPDX-License-Identifier: Apache-2.0
// What the kernels that multiply with a router and route in their last block share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cuda/device_facts.hpp"
#include "base/matrix.hpp"

namespace espalier::ops::cuda {

template <int kCount>
struct alignas(4 * kCount) Floats {
    float value[kCount];
};

// Copies to shared memory, 16 bytes at a time, that all threads of a block ask for.
template <int kThreads>
__device__ inline void ask_floats(float* to, const float* from, int count) {
    for (int i = 4 * static_cast<int>(threadIdx.x); i < count; i += 4 * kThreads)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         static_cast<unsigned>(__cvta_generic_to_shared(to + i))),
                     "l"(from + i)
                     : "memory");
}

// Counts this block and returns how many came before it: `last` for the last one, which also sets
// the count to 0 again. A block sees everything that blocks which arrived earlier wrote.
__device__ inline unsigned arrive(std::uint32_t* arrived, unsigned last) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(arrived), "r"(last)
                 : "memory");
    return before;
}

// Shared memory that a block can ask for beside what these kernels declare.
inline std::size_t most_shared_bytes(Stream stream) {
    constexpr std::size_t kDeclared = 3 * 1024;
    return facts_of(stream).block_shared_bytes - kDeclared;
}

// Rows that can be read 16 bytes at a time.
inline bool in_fours(const Matrix& matrix) {
    return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.stride % 4 == 0 &&
           matrix.cols % 4 == 0;
}

}  // namespace espalier::ops::cuda
