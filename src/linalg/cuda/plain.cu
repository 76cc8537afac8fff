// SPDX-License-Identifier: Apache-2.0
// f32 and f16 weights, x f32: a block has four outputs of eight tokens. Thread i of its 256 takes
// inputs 4q … 4q + 3 of every q with q mod 256 = i, ascending, one fused multiply-add each; the
// threads' sums are added in a fixed tree within a warp, the warps' in ascending order. For
// routers, tests and small models.
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kOutputs = 4;
constexpr int kTokens = 8;
constexpr int kSums = kOutputs * kTokens;  // as many as a warp has lanes

struct PlainParams {
    Problem problem;
    int row_blocks = 0;
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
template <bool kVector>
__device__ Four load_inputs(const float* x, int input, int k) {
    if constexpr (kVector) {
        const float4 v = *reinterpret_cast<const float4*>(x + input);
        return {v.x, v.y, v.z, v.w};
    }
    Four four{};
    for (int i = 0; i < 4; ++i)
        if (input + i < k) four.value[i] = x[input + i];
    return four;
}

// Every thread's part of the sums of the outputs from `first` on: [output][token].
template <WeightCode kCode, bool kVector>
__device__ void multiply_tile(const Problem& p, const TokenTile& tile, int first,
                              float (&sum)[kSums]) {
    const std::int64_t row_bytes = padded_row(p.k) * (kCode == WeightCode::f32 ? 4 : 2);
    const std::byte* rows = p.weights + tile.group * p.matrix_bytes;
    const float* x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        const int at = tile.first + min(t, tile.count - 1);
        const std::int64_t from = p.source != nullptr ? p.source[at] : at;
        x[t] = reinterpret_cast<const float*>(p.x) + from * p.x_stride + tile.group * p.x_step;
    }
    for (int input = static_cast<int>(threadIdx.x) * 4; input < p.k; input += kThreads * 4) {
        // All loads first. Outputs and tokens that do not exist are the last one's again.
        Four w[kOutputs], v[kTokens];
#pragma unroll
        for (int n = 0; n < kOutputs; ++n)
            w[n] = load_weights<kCode>(rows + min(first + n, p.n - 1) * row_bytes, input);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) v[t] = load_inputs<kVector>(x[t], input, p.k);
#pragma unroll
        for (int s = 0; s < kSums; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum[s] = fmaf(v[s % kTokens].value[i], w[s / kTokens].value[i], sum[s]);
    }
}

// Lane l gets the warp's sum of value l. Lanes meet at distance 16, 8 … 1, and of two the upper one
// goes on with the upper half of the values.
__device__ float sum_over_lanes(float (&value)[kSums]) {
    static_assert(kSums == 32);
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const bool upper = (lane & distance) != 0;
#pragma unroll
        for (int i = 0; i < distance; ++i) {
            const float kept = upper ? value[i + distance] : value[i];
            const float given = upper ? value[i] : value[i + distance];
            value[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, given, distance));
        }
    }
    return value[0];
}

template <WeightCode kCode, bool kVector>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(const __grid_constant__ PlainParams params) {
    __shared__ TokenTile found;
    __shared__ float parts[kWarps][kSums];
    const Problem& p = params.problem;
    const int thread = static_cast<int>(threadIdx.x);
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int index = static_cast<int>(blockIdx.x) / params.row_blocks;
    TokenTile tile{};
    if (p.indptr != nullptr) {
        if (thread == 0) found.count = 0;
        __syncthreads();
        if (thread < 32)
            scan_expert_tiles(p, kTokens, [&](int other, const TokenTile& one) {
                if (other == index) found = one;
            });
        __syncthreads();
        tile = found;
        if (tile.count == 0) return;
    } else {
        tile = dense_tile(p, kTokens, index);
    }
    const int first = static_cast<int>(blockIdx.x) % params.row_blocks * kOutputs;
    float sum[kSums] = {};
    multiply_tile<kCode, kVector>(p, tile, first, sum);
    parts[thread / 32][thread % 32] = sum_over_lanes(sum);
    __syncthreads();
    const int n = first + thread / kTokens, t = thread % kTokens;
    if (thread >= kSums || t >= tile.count || n >= p.n) return;
    float total = parts[0][thread];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) total = __fadd_rn(total, parts[warp][thread]);
    store(p, tile.group, tile.first + t, n, total);
}

template <WeightCode kCode>
void (*kernel_for(const Problem& p))(PlainParams) {
    return p.vector_x ? plain_kernel<kCode, true> : plain_kernel<kCode, false>;
}

}  // namespace

void plain(cudaStream_t stream, const Problem& p) {
    PlainParams params;
    params.problem = p;
    params.row_blocks = static_cast<int>(divide_up(p.n, kOutputs));
    const std::int64_t token_tiles = most_token_tiles(p, kTokens);
    const LaunchShape shape{.blocks = token_tiles * params.row_blocks, .threads = kThreads};
    CHECK(shape.blocks < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups,
          p.n);
    launch(
        stream,
        p.code == WeightCode::f32 ? kernel_for<WeightCode::f32>(p) : kernel_for<WeightCode::f16>(p),
        shape, params);
}

}  // namespace espalier::linalg::cuda
