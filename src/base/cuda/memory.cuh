// SPDX-License-Identifier: Apache-2.0
// Loads, stores and asynchronous copies that CUDA C++ has no words for. One function per
// instruction; "address" is one of shared memory.
#pragma once

#include <cstdint>

namespace espalier {
inline namespace ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- shared memory ------------------------------------------------------------------------------
__device__ __forceinline__ uint4 load_shared(std::uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
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
__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

// --- global memory ------------------------------------------------------------------------------
// What the L2 lets go of: keys and weights that are read once first, partial results last.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000ull;
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000ull;

__device__ __forceinline__ void prefetch_line(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// Volatile, so that loads stay in front of the wait that the code puts behind them.
__device__ __forceinline__ uint4 load_global(const void* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
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
// 16 bytes at once, also while others read; the store stays in the L2 while others go.
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

// --- copies from global to shared memory --------------------------------------------------------
// 16 bytes, or 16 zeros where there is nothing to copy (`from` must still be an address).
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_16_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
// The same of bytes that are not read again soon. policy: evict_first().
__device__ __forceinline__ void copy_passing_16_async(std::uint32_t to, const void* from,
                                                      std::uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ std::uint64_t evict_first() {
    std::uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void copy_4_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the latest kPending groups have arrived (for this thread: a barrier makes it everyone).
template <int kPending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void wait_for_async_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace ptx
}  // namespace espalier
