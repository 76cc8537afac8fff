// SPDX-License-Identifier: Apache-2.0
// Sums and norms of rows, a cluster of eight blocks for a row: each block stands for one warp of
// rows.cu's block, so it has 32 of every 256 columns and adds their squares in the same order. A
// thread has four neighbouring columns, asks for all that is added to them at once, and keeps them.
// There is little code on purpose: in a step's graph a kernel's instructions are not in the nearest
// caches, and the form that keeps 28 columns a thread has 97 KB of them for 260 KB of numbers.
#include "base/cuda/cluster.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/block.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/spread_rows.hpp"

namespace espalier::ops::cuda {
namespace {

constexpr int kBlocks = 8;  // of a cluster
constexpr int kWidth = 32;  // columns of a block in every round
constexpr int kRound = kBlocks * kWidth;
constexpr int kLanes = kWidth / 4;  // threads that have them
constexpr int kMostRounds = 32;
constexpr int kMostThreads = kMostRounds * kLanes;
// With more, a block for a row is as fast (v2-lite and v3, 128 rows: within 0.2 %).
constexpr std::int64_t kMostRows = 64;

struct Four {
    float value[4];
};
__device__ __forceinline__ Four load_four(const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    return {{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ void store_four(float* to, const Four& four) {
    *reinterpret_cast<float4*>(to) =
        make_float4(four.value[0], four.value[1], four.value[2], four.value[3]);
}

__device__ __forceinline__ void store_four(Bf16* to, const Four& four) {
    std::uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = to_bf16(four.value[i]).bits;
    *reinterpret_cast<uint2*>(to) = make_uint2(bits[1] << 16 | bits[0], bits[3] << 16 | bits[2]);
}

// Ascending expert ids, the shared expert last.
__device__ __forceinline__ Four sum_of(const Addends& add, const Choices& choices, std::int64_t t,
                                       std::int64_t d) {
    if (add.partial.data != nullptr) return load_four(row_of(add.partial, t) + d);
    Four shared{}, sum{};
    if (add.shared.data != nullptr) shared = load_four(row_of(add.shared, t) + d);
#pragma unroll 1
    for (std::int32_t first = 0; first < add.top_k; first += kTogether) {
        Four value[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
            if (const std::int32_t pair = choices.pair[first + i]; pair >= 0)
                value[i] = load_four(row_of(add.expert_out, pair) + d);
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
            if (choices.pair[first + i] >= 0)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    sum.value[c] += choices.weight[first + i] * value[i].value[c];
    }
    if (add.shared.data != nullptr)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum.value[c] += shared.value[c];
    return sum;
}

// The sum of all squares of the row: those of a block's columns round by round, 32 columns by
// rows.cu's tree, then the blocks' by that of its warps.
__device__ __forceinline__ float sum_squares(const float (&squares)[kMostRounds][kWidth],
                                             int rounds, float (&by_block)[kBlocks]) {
    if (threadIdx.x < 32) {
        float sum = 0.0f;
#pragma unroll 4
        for (int round = 0; round < rounds; ++round) sum += squares[round][threadIdx.x];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        if (threadIdx.x < kBlocks) *in_block(&by_block[cluster_rank()], threadIdx.x) = sum;
    }
    arrive_in_cluster();
    wait_for_cluster();
    return sum_of_warps(by_block);
}

template <bool kAdds>
__global__ void __launch_bounds__(kMostThreads)
    spread_norm_kernel(Addends add, Matrix x, RowNorm norm) {
    __shared__ __align__(16) float squares[kMostRounds][kWidth];
    __shared__ float by_block[kBlocks];
    __shared__ Choices choices;
    const std::int64_t t = blockIdx.x / kBlocks;
    const int round = static_cast<int>(threadIdx.x) / kLanes;
    const int place = static_cast<int>(threadIdx.x) % kLanes * 4;
    const int cols = static_cast<int>(x.cols);
    const int d = round * kRound + static_cast<int>(cluster_rank()) * kWidth + place;
    const bool there = d < cols;
    let_next_kernel_start();
    arrive_in_cluster();  // so that all blocks have started before one writes to another
    Four weight{}, held{};
    if (there) weight = load_four(norm.weight + d);
    if (kAdds && add.plan_ahead) load_choices(add, t, choices);
    wait_for_previous_kernel();
    if (there) held = load_four(row_of(x, t) + d);
    if constexpr (kAdds) {
        if (add.top_k > 0 && !add.plan_ahead) load_choices(add, t, choices);
        if (there) {
            const Four added = sum_of(add, choices, t, d);
#pragma unroll
            for (int c = 0; c < 4; ++c) held.value[c] += added.value[c];
            store_four(row_of(x, t) + d, held);
        }
    }
    Four square;
#pragma unroll
    for (int c = 0; c < 4; ++c) square.value[c] = held.value[c] * held.value[c];
    store_four(&squares[round][place], square);
    wait_for_cluster();
    __syncthreads();
    const int rounds = (cols + kRound - 1) / kRound;
    const float mean = sum_squares(squares, rounds, by_block) / static_cast<float>(cols);
    const float factor = 1.0f / sqrtf(mean + norm.epsilon);
    if (!there) return;
#pragma unroll
    for (int c = 0; c < 4; ++c) held.value[c] = (held.value[c] * factor) * weight.value[c];
    if (norm.out.dtype == DType::bf16)
        store_four(reinterpret_cast<Bf16*>(norm.out.data) + t * norm.out.stride + d, held);
    else
        store_four(row_of(norm.out, t) + d, held);
    if (norm.exact.data != nullptr) store_four(row_of(norm.exact, t) + d, held);
}

// True if four columns from a multiple of four on can be read or written at once.
bool in_fours(const Matrix& matrix) {
    const auto bytes = static_cast<std::uintptr_t>(4 * bytes_of(matrix.dtype));
    return matrix.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(matrix.data) % bytes == 0;
}

}  // namespace

bool spread_norm(const char* what, Stream stream, const Addends& add, const Matrix& x,
                 const RowNorm& norm) {
    if (facts_of(stream).clusters[kBlocks] == 0) return false;
    for (const Matrix* matrix :
         {&x, &add.partial, &add.expert_out, &add.shared, &norm.out, &norm.exact})
        if (!in_fours(*matrix)) return false;
    const std::int64_t rounds = (x.cols + kRound - 1) / kRound;
    if (x.rows > kMostRows || x.cols % 4 != 0 || rounds > kMostRounds ||
        norm.out.dtype == DType::f16 || norm.exact.dtype != DType::f32 ||
        reinterpret_cast<std::uintptr_t>(norm.weight) % 16 != 0)
        return false;
    const bool adds = add.partial.data != nullptr || add.expert_out.data != nullptr;
    const auto threads = static_cast<int>((rounds * kLanes + 31) / 32 * 32);
    launch(what, adds ? spread_norm_kernel<true> : spread_norm_kernel<false>,
           {.grid = grid_of(x.rows * kBlocks), .threads = threads, .cluster = kBlocks}, stream, add,
           x, norm);
    return true;
}

}  // namespace espalier::ops::cuda
