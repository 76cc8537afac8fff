// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count arrivals and, on compute capability 9.0 and above, bytes; by
// address or as an object.
#pragma once

#include <cstdint>

#include "base/cuda/memory.cuh"

#if __CUDA_ARCH__ >= 900
#define ESPALIER_BARRIER_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define ESPALIER_BARRIER_WAIT "mbarrier.test_wait.parity.shared::cta.b64"
#endif

namespace espalier {
inline namespace ptx {

using Barrier = std::uint64_t;

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void init_barrier(Barrier* barrier, int arrivals) {
    init_barrier(shared_address(barrier), arrivals);
}
__device__ __forceinline__ void fence_barrier_init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive(Barrier* barrier) { arrive(shared_address(barrier)); }
// One arrival speaks for a warp. To compute-sanitizer's racecheck it speaks for its own thread
// only: for a run under it, build with -DESPALIER_EVERY_LANE_ARRIVES.
#ifdef ESPALIER_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfWarp = 32;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif
template <typename Place>
__device__ __forceinline__ void arrive_as_warp(Place barrier) {
    __syncwarp();
    if (threadIdx.x % 32 < kArrivalsOfWarp) arrive(barrier);
}
__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void arrive_expecting(Barrier* barrier, std::uint32_t bytes) {
    arrive_expecting(shared_address(barrier), bytes);
}
// The phase waits for that many bytes more; the caller's own arrival comes later.
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}
// Attention asks before it waits, products never do: each has the loop that its kernels were
// measured with.
__device__ __forceinline__ bool phase_done(Barrier* barrier, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile("{ .reg .pred p;\n" ESPALIER_BARRIER_WAIT
                 " p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p; }\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}
__device__ __forceinline__ void wait(Barrier* barrier, std::uint32_t parity) {
    while (!phase_done(barrier, parity)) {
    }
}
__device__ __forceinline__ void wait(std::uint32_t barrier, std::uint32_t parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "again: " ESPALIER_BARRIER_WAIT
        " p, [%0], %1;\n"
        "@p bra done;\n"
        "bra again;\n"
        "done: }\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// The barrier's phase does not end before this thread's copies so far have arrived.
__device__ __forceinline__ void hold_for_async_copies(Barrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
// One of the barrier's arrivals, when this thread's copies so far have arrived.
__device__ __forceinline__ void arrive_behind_copies(std::uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

#undef ESPALIER_BARRIER_WAIT

}  // namespace ptx
}  // namespace espalier
