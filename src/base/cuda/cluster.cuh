// SPDX-License-Identifier: Apache-2.0
// A cluster: neighbouring blocks of a grid that run at the same time and reach each other's shared
// memory. A grid that was launched without them has clusters of one block, as every grid has where
// the compute capability is below 9.0.
#pragma once

#include <cstdint>

namespace espalier {
inline namespace ptx {

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
__device__ __forceinline__ unsigned cluster_blocks() {
    unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}
// Writes of a block before arrive_in_cluster() are visible to all blocks after wait_for_cluster().
// Blocks that have exited are not waited for.
__device__ __forceinline__ void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}
// The address of the same variable in another block's shared memory.
template <typename T>
__device__ __forceinline__ T* in_block(T* place, unsigned rank) {
#if __CUDA_ARCH__ >= 900
    std::uint64_t there;
    asm("mapa.u64 %0, %1, %2;"
        : "=l"(there)
        : "l"(reinterpret_cast<std::uint64_t>(place)), "r"(rank));
    return reinterpret_cast<T*>(there);
#else
    return place;
#endif
}
__device__ __forceinline__ void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
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
// From the same place in a block of the cluster.
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

}  // namespace ptx
}  // namespace espalier
