// SPDX-License-Identifier: Apache-2.0
// Hopper instructions that the products use and CUDA C++ has no words for.
#pragma once

#include <cstdint>

namespace espalier::linalg::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- launches that overlap ----------------------------------------------------------------------
__device__ __forceinline__ void wait_for_previous_kernel() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Where a kernel reads what others wrote without waiting for the one in front: nothing of it is in
// this multiprocessor's cache as it was before.
__device__ __forceinline__ void see_settled_memory() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// --- barriers in shared memory, by address ------------------------------------------------------
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival speaks for a warp. To compute-sanitizer's racecheck it speaks for its own thread
// only: for a run under it, build with -DESPALIER_EVERY_LANE_ARRIVES.
#ifdef ESPALIER_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfWarp = 32;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif
__device__ __forceinline__ void arrive_as_warp(std::uint32_t barrier) {
    __syncwarp();
    if (kArrivalsOfWarp == 32 || threadIdx.x % 32 == 0) arrive(barrier);
}
__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Before the arrival that gives memory back to bulk copies, where what was loaded from it may not
// have been used yet: an arrival alone does not keep loads in front of copies. (Scales of integer
// codes, in f32, were the next stage's once in ten launches of 320 tiles.)
__device__ __forceinline__ void finish_loads_before_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// At the same barrier of a block of the cluster.
__device__ __forceinline__ void arrive_at(std::uint32_t barrier, int block) {
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }\n" ::"r"(barrier),
        "r"(block)
        : "memory");
}
__device__ __forceinline__ void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The phase waits for so many bytes more; the caller's own arrival comes later.
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait(std::uint32_t barrier, std::uint32_t parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\n"
        "bra again;\n"
        "done: }\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// --- memory -------------------------------------------------------------------------------------
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes,
                                           std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// The same of bytes that are not read again soon: the L2 lets go of them first, and keeps the code
// and the activations of the kernels between two products.
__device__ __forceinline__ void copy_passing_bytes(std::uint32_t to, const void* from,
                                                   std::uint32_t bytes, std::uint32_t barrier) {
    constexpr std::uint64_t kEvictFirst = 0x12f0000000000000;  // createpolicy …L2::evict_first, 1.0
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
        : "memory");
}
// To the same place in every block of the cluster that `blocks` names, each of which counts the
// bytes at its own barrier.
__device__ __forceinline__ void copy_to_cluster(std::uint32_t to, const void* from,
                                                std::uint32_t bytes, std::uint32_t barrier,
                                                std::uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
        : "memory");
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}
// Of the same place in a block of the cluster.
__device__ __forceinline__ float4 load_shared_of(std::uint32_t from, int block) {
    float4 v;
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }\n"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "r"(from), "r"(block)
        : "memory");
    return v;
}
__device__ __forceinline__ uint2 load_shared_8(std::uint32_t from) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from));
    return v;
}
__device__ __forceinline__ std::uint32_t load_shared_4(std::uint32_t from) {
    std::uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
    return v;
}
__device__ __forceinline__ std::uint32_t load_shared_2(std::uint32_t from) {
    std::uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from));
    return v;
}
// Four matrices of 8 × 8 bf16, whose rows the lanes point at.
__device__ __forceinline__ uint4 load_matrices(std::uint32_t from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}
// Volatile, so that loads stay in front of the wait that the code puts behind them.
__device__ __forceinline__ uint4 load_global(const void* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// --- arithmetic ---------------------------------------------------------------------------------
// sum [16, 8] += left [16, 16] · right [16, 8], bf16.
__device__ __forceinline__ void multiply(float (&sum)[4], uint4 left, std::uint32_t right0,
                                         std::uint32_t right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right0), "r"(right1));
}
// sum = left · right.
__device__ __forceinline__ void multiply_first(float (&sum)[4], uint4 left, std::uint32_t right0,
                                               std::uint32_t right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right0), "r"(right1), "f"(0.0f));
}

}  // namespace espalier::linalg::cuda
