// SPDX-License-Identifier: Apache-2.0
// f32 and f16 weights, x f32: one warp per output and eight tokens at a time. Lane l takes inputs
// 4q … 4q + 3 of every q with q mod 32 = l, ascending, one fused multiply-add each; the lanes' sums
// are added in a fixed tree. For routers, tests and small models.
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kStep = 8;         // tokens whose sums a warp holds at a time
constexpr int kTileTokens = 64;  // tokens of one block

struct PlainParams {
    Problem problem;
    int row_blocks = 0;
    int token_tiles = 0;
};

struct Four {
    float value[4];
};

template <WeightCode kCode>
__device__ Four load_weights(const std::byte* row, int input) {
    if constexpr (kCode == WeightCode::f32) {
        const float4 w = __ldg(reinterpret_cast<const float4*>(row) + input / 4);
        return {w.x, w.y, w.z, w.w};
    } else {
        const uint2 w = __ldg(reinterpret_cast<const uint2*>(row) + input / 4);
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&w.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&w.y));
        return {low.x, low.y, high.x, high.y};
    }
}

// Inputs past k are zeros, as the weights' are: what lies there may be NaN.
__device__ Four load_inputs(const float* x, int input, int k, bool vector) {
    if (vector) {
        const float4 v = *reinterpret_cast<const float4*>(x + input);
        return {v.x, v.y, v.z, v.w};
    }
    Four four{};
    for (int i = 0; i < 4; ++i)
        if (input + i < k) four.value[i] = x[input + i];
    return four;
}

template <WeightCode kCode>
__device__ void multiply_step(const Problem& p, const TokenTile& tile, int first, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int count = min(kStep, tile.count - first);
    const std::byte* row = p.weights + tile.group * p.matrix_bytes +
                           n * padded_row(p.k) * (kCode == WeightCode::f32 ? 4 : 2);
    const float* x[kStep];
    float sum[kStep];
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
        const int at = tile.first + first + min(t, count - 1);
        const std::int64_t from = p.source != nullptr ? p.source[at] : at;
        x[t] = reinterpret_cast<const float*>(p.x) + from * p.x_stride + tile.group * p.x_step;
        sum[t] = 0.0f;
    }
    for (int input = lane * 4; input < p.k; input += 128) {
        const Four w = load_weights<kCode>(row, input);
#pragma unroll
        for (int t = 0; t < kStep; ++t) {
            if (t >= count) break;
            const Four v = load_inputs(x[t], input, p.k, p.vector_x);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[t] = fmaf(v.value[i], w.value[i], sum[t]);
        }
    }
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
        if (t >= count) break;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            sum[t] = __fadd_rn(sum[t], __shfl_xor_sync(~0u, sum[t], distance));
        if (lane == 0) store(p, tile.group, tile.first + first + t, n, sum[t]);
    }
}

template <WeightCode kCode>
__global__ void __launch_bounds__(kWarps * 32)
    plain_kernel(const __grid_constant__ PlainParams params) {
    extern __shared__ TokenTile tiles[];
    __shared__ int listed;
    const Problem& p = params.problem;
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int index = static_cast<int>(blockIdx.x) / params.row_blocks;
    TokenTile tile{};
    if (p.indptr != nullptr) {
        if (threadIdx.x < 32) {
            const int count = list_expert_tiles(p, kTileTokens, tiles, params.token_tiles);
            if (threadIdx.x == 0) listed = count;
        }
        __syncthreads();
        if (index >= listed) return;
        tile = tiles[index];
    } else {
        tile = dense_tile(p, kTileTokens, index);
    }
    const int n = static_cast<int>(blockIdx.x) % params.row_blocks * kWarps +
                  static_cast<int>(threadIdx.x) / 32;
    if (n >= p.n) return;
    for (int first = 0; first < tile.count; first += kStep) multiply_step<kCode>(p, tile, first, n);
}

}  // namespace

void plain(cudaStream_t stream, const Problem& p) {
    PlainParams params;
    params.problem = p;
    params.row_blocks = static_cast<int>(divide_up(p.n, kWarps));
    params.token_tiles = static_cast<int>(most_token_tiles(p, kTileTokens));
    const LaunchShape shape{
        .blocks = std::int64_t{params.token_tiles} * params.row_blocks,
        .threads = kWarps * 32,
        .shared_bytes = p.indptr == nullptr
                            ? 0
                            : static_cast<std::size_t>(params.token_tiles) * sizeof(TokenTile)};
    CHECK(shape.blocks < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups,
          p.n);
    launch(
        stream,
        p.code == WeightCode::f32 ? plain_kernel<WeightCode::f32> : plain_kernel<WeightCode::f16>,
        shape, params);
}

}  // namespace espalier::linalg::cuda
