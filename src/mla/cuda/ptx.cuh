// SPDX-License-Identifier: Apache-2.0
// Hopper instructions that CUDA C++ has no words for: barriers in shared memory, bulk tensor
// copies, register budgets, matrix loads and stores. One function per instruction, nothing else.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace espalier::mla::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- barriers ---------------------------------------------------------------------------------
using Barrier = std::uint64_t;

__device__ __forceinline__ void init_barrier(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals));
}
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
// One arrival speaks for a warp. To compute-sanitizer's racecheck an arrival speaks for its own
// thread only: for a run under it, build with -DESPALIER_EVERY_LANE_ARRIVES.
#ifdef ESPALIER_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfWarp = 32;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif
__device__ __forceinline__ void arrive_as_warp(Barrier* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 < kArrivalsOfWarp) arrive(barrier);
}
__device__ __forceinline__ void arrive_expecting(Barrier* barrier, std::uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}
__device__ __forceinline__ bool phase_done(Barrier* barrier, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
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
// A barrier of `threads` threads of this block, by number (0 is __syncthreads).
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
// Orders this thread's ordinary shared-memory writes before what the copy engine and the tensor
// cores do next.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- launches that overlap ----------------------------------------------------------------------
__device__ __forceinline__ void wait_for_previous_kernel() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* from) {
    std::uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* from) {
    std::uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
// Where a kernel reads what others wrote without waiting for the one in front: nothing of it is in
// this multiprocessor's cache as it was before.
__device__ __forceinline__ void see_settled_memory() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// --- registers ----------------------------------------------------------------------------------
// A warpgroup that has kBefore registers per thread gives some away or waits for more.
template <int kBefore, int kCount>
__device__ __forceinline__ void set_registers() {
    if constexpr (kCount < kBefore)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
    else if constexpr (kCount > kBefore)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// --- copies -------------------------------------------------------------------------------------
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void prefetch_line(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// Keys are read once per call: they leave the L2 first. Queries and partial results stay.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000ull;
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000ull;

// 16 bytes at once, whoever reads them meanwhile; the store stays in the L2 while others go.
__device__ __forceinline__ void store_to_stay(uint4* to, uint4 value) {
    asm volatile(
        "{ .reg .b64 low, high; .reg .b128 all;\n"
        "mov.b64 low, {%1, %2};\n"
        "mov.b64 high, {%3, %4};\n"
        "mov.b128 all, {low, high};\n"
        "st.relaxed.gpu.global.L2::cache_hint.b128 [%0], all, %5; }\n" ::"l"(to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "l"(kEvictLast)
        : "memory");
}
__device__ __forceinline__ uint4 load_at_once(const uint4* from) {
    uint4 value;
    asm volatile(
        "{ .reg .b64 low, high; .reg .b128 all;\n"
        "ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all;\n"
        "mov.b64 {%0, %1}, low;\n"
        "mov.b64 {%2, %3}, high; }\n"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(from)
        : "memory");
    return value;
}
__device__ __forceinline__ void store_at_once(float2* to, float2 value) {
    asm volatile(
        "{ .reg .b64 all; mov.b64 all, {%1, %2}; st.relaxed.gpu.global.b64 [%0], all; }" ::"l"(to),
        "f"(value.x), "f"(value.y)
        : "memory");
}
__device__ __forceinline__ float2 load_at_once(const float2* from) {
    float2 value;
    asm volatile("{ .reg .b64 all; ld.relaxed.gpu.global.b64 all, [%2]; mov.b64 {%0, %1}, all; }"
                 : "=f"(value.x), "=f"(value.y)
                 : "l"(from)
                 : "memory");
    return value;
}

__device__ __forceinline__ void copy_tensor_3d(void* to, const CUtensorMap* map, Barrier* barrier,
                                               int x, int y, int z, std::uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "l"(policy)
        : "memory");
}
__device__ __forceinline__ void copy_tensor_4d(void* to, const CUtensorMap* map, Barrier* barrier,
                                               int x, int y, int z, int w, std::uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
        : "memory");
}
// From shared memory. The thread that issued stores waits for them: until their source may be
// written again, or until they are done.
__device__ __forceinline__ void store_tensor_3d(const CUtensorMap* map, const void* from, int x,
                                                int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
            map),
        "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
        : "memory");
}
__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_for_store_sources() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void copy_bytes(void* to, const void* from, std::uint32_t bytes,
                                           Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
__device__ __forceinline__ void copy_16_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copy_4_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
// The barrier's phase does not end before this thread's copies so far have arrived.
__device__ __forceinline__ void hold_for_async_copies(Barrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
__device__ __forceinline__ void wait_for_async_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// --- 8×8 matrices of 16-bit elements ------------------------------------------------------------
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t a,
                                               std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
// As the function above, with each matrix transposed.
__device__ __forceinline__ void store_transposed(std::uint32_t address, std::uint32_t a,
                                                 std::uint32_t b, std::uint32_t c,
                                                 std::uint32_t d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}
// --- arithmetic ---------------------------------------------------------------------------------
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ float log2_fast(float x) {
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
// Two e4m3 in the low half of `pair` to two fp16: exact.
__device__ __forceinline__ std::uint32_t widen_e4m3(std::uint32_t pair) {
    std::uint32_t result;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<std::uint16_t>(pair)));
    return result;
}
// Four e4m3 to twice two fp16, the low ones first. (Written as one, so that the upper half needs no
// shift.)
__device__ __forceinline__ void widen_four(std::uint32_t codes, std::uint32_t& low,
                                           std::uint32_t& high) {
    asm("{ .reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h; }\n"
        : "=r"(low), "=r"(high)
        : "r"(codes));
}

}  // namespace espalier::mla::cuda
