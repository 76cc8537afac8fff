// SPDX-License-Identifier: Apache-2.0
// f32 and f16 weights over many tokens: the router of a prompt. The sums are plain.cu's, lane by
// lane; what differs is who shares what is read. A block has 64 outputs of 16 tokens, a warp eight
// of the outputs: x comes to shared memory once for all of them, and a lane's four weights of an
// output serve 16 tokens, so that 512 multiply-adds stand against 24 loads.
#pragma once

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/plain_load.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct PlainTiles {
    static constexpr int kTokens = 16;
    static constexpr int kWarps = 8;
    static constexpr int kOutputs = 8;  // of a warp
    static constexpr int kPart = 256;   // inputs of x that are in shared memory, twice
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kSums = kTokens * kOutputs;
};

// Asks for inputs [first, first + kPart) of the tile's tokens.
__device__ inline void ask_part(const float* const (&x)[4], float (&to)[16][PlainTiles::kPart],
                                int first, int k) {
    const int row = static_cast<int>(threadIdx.x) / 64, at = static_cast<int>(threadIdx.x) % 64 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + at < k)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             shared_address(&to[row + 4 * i][at])),
                         "l"(x[i] + first + at)
                         : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// The lanes' sums added in plain.cu's tree: a lane passes on half of what it has at each level, and
// ends with four outputs of one token, `lane` / 2.
template <int kSums, int kDistance = 16, int kHalf = kSums / 2>
__device__ __forceinline__ void add_lanes(float (&sum)[kSums]) {
    const bool upper = (threadIdx.x & kDistance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
        const float passed = upper ? sum[i] : sum[i + kHalf];
        const float kept = upper ? sum[i + kHalf] : sum[i];
        sum[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, passed, kDistance));
    }
    if constexpr (kDistance > 1) add_lanes<kSums, kDistance / 2, kHalf / 2>(sum);
}

template <WeightCode kCode>
__global__ void __launch_bounds__(PlainTiles::kThreads, 1)
    plain_tiles_kernel(const __grid_constant__ PlainParams params) {
    using C = PlainTiles;
    __shared__ float shared[2][C::kTokens][C::kPart];
    const Problem& p = params.problem;
    const TokenTile tile =
        dense_tile(p, C::kTokens, static_cast<int>(blockIdx.x) / params.row_blocks);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int output = (static_cast<int>(blockIdx.x) % params.row_blocks * C::kWarps +
                        static_cast<int>(threadIdx.x) / 32) *
                       C::kOutputs;
    const std::int64_t row_bytes = padded_row(p.k) * (kCode == WeightCode::f32 ? 4 : 2);
    const std::byte* rows = p.weights + tile.group * p.matrix_bytes;
    Four weights[C::kOutputs], ahead[C::kOutputs];
    const auto load = [&](int input) {
        if (input < p.k)
#pragma unroll
            for (int n = 0; n < C::kOutputs; ++n)
                ahead[n] = load_weights<kCode>(rows + min(output + n, p.n - 1) * row_bytes, input);
    };
    if (!params.holds_next) let_next_kernel_start();
    load(lane * 4);  // no other kernel writes weights
    wait_for_previous_kernel();
    if (params.holds_next) let_next_kernel_start();
    const float* x[4];  // of the rows that this thread brings
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int token = static_cast<int>(threadIdx.x) / 64 + 4 * i;
        x[i] = reinterpret_cast<const float*>(p.x) +
               std::int64_t{tile.first + min(token, tile.count - 1)} * p.x_stride +
               tile.group * p.x_step;
    }
    ask_part(x, shared[0], 0, p.k);
    float sum[C::kSums] = {};
    for (int first = 0, turn = 0; first < p.k; first += C::kPart, turn ^= 1) {
        ask_part(x, shared[turn ^ 1], first + C::kPart, p.k);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
#pragma unroll 1
        for (int step = 0; step < C::kPart; step += 128) {
            const int input = first + step + lane * 4;
            if (input >= p.k) break;
#pragma unroll
            for (int n = 0; n < C::kOutputs; ++n) weights[n] = ahead[n];
            load(input + 128);
#pragma unroll
            for (int t = 0; t < C::kTokens; ++t) {
                const float4 v =
                    *reinterpret_cast<const float4*>(&shared[turn][t][step + lane * 4]);
                const float inputs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int n = 0; n < C::kOutputs; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        sum[t * C::kOutputs + n] =
                            fmaf(inputs[e], weights[n].value[e], sum[t * C::kOutputs + n]);
            }
        }
        __syncthreads();
    }
    add_lanes(sum);
    if (lane / 2 >= tile.count) return;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (const int n = output + lane % 2 * 4 + i; n < p.n)
            store(p, tile.group, tile.first + lane / 2, n, sum[i]);
}

}  // namespace espalier::linalg::cuda
