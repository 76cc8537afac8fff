// SPDX-License-Identifier: Apache-2.0
// Copies by the copy engine: plain bytes and boxes of tensors, between global and shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/cuda/barrier.cuh"

namespace espalier {
inline namespace ptx {

// Orders this thread's ordinary accesses of shared memory before what the copy engine and the
// tensor cores do next. Also before the arrival that gives memory back to copies, where loads from
// it may not have been used yet: an arrival alone does not keep loads in front of copies. (Scales
// of integer codes, in f32, were the next stage's once in ten launches of 320 tiles.)
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- bytes
// ----------------------------------------------------------------------------------------
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes,
                                           std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void copy_bytes(void* to, const void* from, std::uint32_t bytes,
                                           Barrier* barrier) {
    copy_bytes(shared_address(to), from, bytes, shared_address(barrier));
}
// The same of bytes that are not read again soon: the L2 lets go of them first, and keeps the code
// and the activations of the kernels between two products.
__device__ __forceinline__ void copy_passing_bytes(std::uint32_t to, const void* from,
                                                   std::uint32_t bytes, std::uint32_t barrier) {
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

// --- tensors
// ---------------------------------------------------------------------------------------
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
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

}  // namespace ptx
}  // namespace espalier
