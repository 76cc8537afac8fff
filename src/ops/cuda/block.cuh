// SPDX-License-Identifier: Apache-2.0
// What the threads of a block find together. Every thread calls, every thread gets the result.
// Sums of floats are taken in an order that is fixed by the number of threads alone.
#pragma once

#include <cstdint>

namespace espalier::ops::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// join(a, b) over all threads, in a fixed tree. shared: an entry for each warp; free again
// after the block's next barrier.
template <int kThreads, typename T, typename Join>
__device__ T block_join(T value, T* shared, const Join& join) {
    constexpr int kWarps = kThreads / 32;
    static_assert(kThreads % 32 == 0 && (kWarps & (kWarps - 1)) == 0 && kWarps <= 32);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = join(value, __shfl_xor_sync(kAllLanes, value, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[threadIdx.x % kWarps];
#pragma unroll
    for (int step = kWarps / 2; step > 0; step /= 2)
        value = join(value, __shfl_xor_sync(kAllLanes, value, step));
    __syncthreads();
    return value;
}

// Sum of block_sum's warps' sums, by one thread.
template <int kWarps>
__device__ __forceinline__ float sum_of_warps(const float (&by_warp)[kWarps]) {
    float sum[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum[i] = by_warp[i];
#pragma unroll
    for (int step = kWarps / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < step; ++i) sum[i] += sum[i + step];
    return sum[0];
}

template <int kThreads, typename T>
__device__ T block_sum(T value, T* shared) {
    return block_join<kThreads>(value, shared, [](T a, T b) { return a + b; });
}

template <int kThreads, typename T>
__device__ T block_max(T value, T* shared) {
    return block_join<kThreads>(value, shared, [](T a, T b) { return a > b ? a : b; });
}

// The sum of the values of all threads before this one. shared: as above.
template <int kThreads>
__device__ std::uint64_t sum_before(std::uint64_t value, std::uint64_t* shared) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    std::uint64_t through = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const std::uint64_t other = __shfl_up_sync(kAllLanes, through, step);
        if (lane >= step) through += other;
    }
    if (lane == 31) shared[threadIdx.x / 32] = through;
    __syncthreads();
    std::uint64_t before = through - value;
    for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) before += shared[warp];
    __syncthreads();
    return before;
}

}  // namespace espalier::ops::cuda
