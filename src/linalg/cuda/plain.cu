// SPDX-License-Identifier: Apache-2.0
// f32 and f16 weights, x f32: for routers, tests and small models. A warp has one or four outputs
// of up to eight tokens. Lane l takes inputs 4q … 4q + 3 of every q with q mod 32 = l, ascending,
// one fused multiply-add each; the lanes' sums are added in a fixed tree.
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/plain_load.cuh"
#include "linalg/cuda/plain_tiles.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 8;
constexpr int kTogether = 4;  // tokens whose inputs are on their way at once

template <WeightCode kCode_, int kOutputs_, bool kVector_>
struct PlainConfig {
    static constexpr WeightCode kCode = kCode_;
    static constexpr int kOutputs = kOutputs_;  // of a warp
    static constexpr bool kVector = kVector_;   // rows of x can be read 16 bytes at a time
    static constexpr int kBatch = kOutputs == 1 ? 8 : 2;  // times 128 inputs on their way at once
};

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

template <class C>
class Plain {
  public:
    __device__ Plain(const Problem& p, int first_output)
        : p_(p), first_(first_output), lane_(static_cast<int>(threadIdx.x) % 32) {}

    // The first batch of weights, which no other kernel writes.
    __device__ void prefetch(int group) { load_batch(group, 0); }

    __device__ void run(const TokenTile& tile) {
        const float* x[kTokens];
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const int at = tile.first + min(t, tile.count - 1);
            const std::int64_t from = p_.source != nullptr ? p_.source[at] : at;
            x[t] =
                reinterpret_cast<const float*>(p_.x) + from * p_.x_stride + tile.group * p_.x_step;
        }
        float sum[C::kOutputs][kTokens] = {};
        for (int base = 0; base < p_.k; base += 128 * C::kBatch) {
            if (base > 0) load_batch(tile.group, base);
#pragma unroll
            for (int t = 0; t < kTokens; t += kTogether) {
                if (t >= tile.count) break;
                add_batch(x, base, t, sum);
            }
        }
#pragma unroll
        for (int n = 0; n < C::kOutputs; ++n)
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                if (t >= tile.count) break;
#pragma unroll
                for (int distance = 16; distance > 0; distance /= 2)
                    sum[n][t] = __fadd_rn(sum[n][t], __shfl_xor_sync(~0u, sum[n][t], distance));
                if (lane_ == 0 && first_ + n < p_.n)
                    store(p_, tile.group, tile.first + t, first_ + n, sum[n][t]);
            }
    }

  private:
    __device__ int input_of(int base, int step) const { return base + step * 128 + lane_ * 4; }

    __device__ void load_batch(int group, int base) {
        const std::int64_t row_bytes = padded_row(p_.k) * (C::kCode == WeightCode::f32 ? 4 : 2);
        const std::byte* rows = p_.weights + group * p_.matrix_bytes;
#pragma unroll
        for (int step = 0; step < C::kBatch; ++step)
#pragma unroll
            for (int n = 0; n < C::kOutputs; ++n)
                if (input_of(base, step) < p_.k)
                    weights_[step][n] = load_weights<C::kCode>(
                        rows + min(first_ + n, p_.n - 1) * row_bytes, input_of(base, step));
    }

    // kTogether tokens from t on; those that do not exist are the last one again.
    __device__ void add_batch(const float* const (&x)[kTokens], int base, int t,
                              float (&sum)[C::kOutputs][kTokens]) const {
        Four inputs[kTogether][C::kBatch];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
#pragma unroll
            for (int step = 0; step < C::kBatch; ++step)
                if (input_of(base, step) < p_.k)
                    inputs[i][step] = load_inputs<C::kVector>(x[t + i], input_of(base, step), p_.k);
#pragma unroll
        for (int step = 0; step < C::kBatch; ++step)
            if (input_of(base, step) < p_.k)
#pragma unroll
                for (int i = 0; i < kTogether; ++i)
#pragma unroll
                    for (int n = 0; n < C::kOutputs; ++n)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            sum[n][t + i] = fmaf(inputs[i][step].value[e],
                                                 weights_[step][n].value[e], sum[n][t + i]);
    }

    const Problem& p_;
    int first_;
    int lane_;
    Four weights_[C::kBatch][C::kOutputs];
};

template <class C>
__global__ void __launch_bounds__(kWarps * 32)
    plain_kernel(const __grid_constant__ PlainParams params) {
    __shared__ TokenTile found;
    const Problem& p = params.problem;
    const int index = static_cast<int>(blockIdx.x) / params.row_blocks;
    const int warp = static_cast<int>(blockIdx.x) % params.row_blocks * kWarps +
                     static_cast<int>(threadIdx.x) / 32;
    Plain<C> plain(p, warp * C::kOutputs);
    if (p.indptr == nullptr) {
        if (!params.holds_next) let_next_kernel_start();
        const TokenTile tile = dense_tile(p, kTokens, index);
        plain.prefetch(tile.group);
        wait_for_previous_kernel();
        if (params.holds_next) let_next_kernel_start();
        plain.run(tile);
        return;
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x == 0) found.count = 0;
    __syncthreads();
    if (threadIdx.x < 32)
        scan_expert_tiles(p, kTokens, [&](int other, const TokenTile& tile) {
            if (other == index) found = tile;
        });
    __syncthreads();
    if (found.count == 0) return;
    plain.prefetch(found.group);
    plain.run(found);
}

template <WeightCode kCode, int kOutputs>
void launch_plain(Stream stream, const Problem& p, const LaunchGrant& grant) {
    PlainParams params;
    params.problem = p;
    params.holds_next = grant.holds_next;
    params.row_blocks = static_cast<int>(divide_up(p.n, kWarps * kOutputs));
    const std::int64_t blocks = most_token_tiles(p, kTokens) * params.row_blocks;
    CHECK(blocks < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    launch("a product",
           p.vector_x ? plain_kernel<PlainConfig<kCode, kOutputs, true>>
                      : plain_kernel<PlainConfig<kCode, kOutputs, false>>,
           {.grid = grid_of(blocks), .threads = kWarps * 32, .limit = SharedLimit::whole}, stream,
           params);
}

template <WeightCode kCode>
void launch_tiles(Stream stream, const Problem& p, const LaunchGrant& grant) {
    using C = PlainTiles;
    PlainParams params;
    params.problem = p;
    params.holds_next = grant.holds_next;
    params.row_blocks = static_cast<int>(divide_up(p.n, C::kWarps * C::kOutputs));
    const std::int64_t blocks = most_token_tiles(p, C::kTokens) * params.row_blocks;
    CHECK(blocks < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    launch("a product", plain_tiles_kernel<kCode>,
           {.grid = grid_of(blocks), .threads = C::kThreads, .limit = SharedLimit::whole}, stream,
           params);
}

// Few tokens: every warp's loads on their way at once; more: each input read for four outputs;
// many: once for 64 (v2's router of 512 tokens: 17.5 and 21.0 µs, of 2,048: 51.4 and 22.1).
template <WeightCode kCode>
void launch_plain(Stream stream, const Problem& p, const LaunchGrant& grant) {
    if (p.rows <= 256) return launch_plain<kCode, 1>(stream, p, grant);
    if (p.rows >= 1024 && p.vector_x && p.indptr == nullptr)
        return launch_tiles<kCode>(stream, p, grant);
    launch_plain<kCode, 4>(stream, p, grant);
}

}  // namespace

void plain(Stream stream, const Problem& p, const LaunchGrant& grant) {
    if (p.code == WeightCode::f32) return launch_plain<WeightCode::f32>(stream, p, grant);
    launch_plain<WeightCode::f16>(stream, p, grant);
}

}  // namespace espalier::linalg::cuda
