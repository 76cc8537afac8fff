// SPDX-License-Identifier: Apache-2.0
// What the kernels share: which tokens a tile has, and how a result is stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/portable_math.hpp"
#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

// Tokens of one group that are computed together: rows first … first + count - 1 of y.
struct TokenTile {
    std::int32_t group;
    std::int32_t first;
    std::int32_t count;
};
static_assert(sizeof(TokenTile) == kTokenTileBytes);

// Calls visit(index, tile) for the tiles of `tokens` tokens of all experts; the calling warp does
// it, each lane for some. Returns their number.
template <typename Visit>
__device__ int scan_expert_tiles(const Problem& p, int tokens, const Visit& visit) {
    constexpr int kAtOnce = 4;  // experts of a lane whose loads are on their way together
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int seen = 0;
#pragma unroll 1
    for (int base = 0; base < p.groups; base += 32 * kAtOnce) {
        int bound[kAtOnce + 1];
#pragma unroll
        for (int i = 0; i <= kAtOnce; ++i)
            bound[i] = min(p.indptr[min(base + lane * kAtOnce + i, p.groups)], p.rows);
        int mine = 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            mine += (max(0, bound[i + 1] - bound[i]) + tokens - 1) / tokens;
        int after = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, after, step);
            if (lane >= step) after += other;
        }
        int index = seen + after - mine;
        seen += __shfl_sync(~0u, after, 31);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll 1
            for (int first = bound[i]; first < bound[i + 1]; first += tokens)
                visit(index++, TokenTile{base + lane * kAtOnce + i, first,
                                         min(tokens, bound[i + 1] - first)});
    }
    return seen;
}

// Lists them. `room` is what the host has reckoned with: more would mean that indptr contradicts y,
// and is dropped.
__device__ inline int list_expert_tiles(const Problem& p, int tokens, TokenTile* tiles, int room) {
    const int count = scan_expert_tiles(p, tokens, [&](int index, const TokenTile& tile) {
        if (index < room) tiles[index] = tile;
    });
    return min(count, room);
}

// Tile `index` of a problem whose groups all have every token.
__device__ inline TokenTile dense_tile(const Problem& p, int tokens, int index) {
    const int tiles = (p.rows + tokens - 1) / tokens;
    const int first = index % tiles * tokens;
    return {index / tiles, first, min(tokens, p.rows - first)};
}

// Output of a gated product for two sums.
__device__ __forceinline__ float gated(float gate, float up) { return portable_silu(gate) * up; }

// Output n of row `row`.
__device__ __forceinline__ void store(const Problem& p, int group, int row, int n, float sum) {
    const std::int64_t at = row * p.y_stride + group * p.y_step + n;
    if (p.y_type == DType::f32) {
        auto* y = reinterpret_cast<float*>(p.y) + at;
        *y = p.accumulate ? *y + sum : sum;
    } else if (p.y_type == DType::bf16) {
        reinterpret_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(sum);
    } else {
        reinterpret_cast<__half*>(p.y)[at] = __float2half_rn(sum);
    }
}

// Output n of row `row`, a column of a head's query. other(): the output that it is rotated with.
template <typename Other>
__device__ __forceinline__ void store_query(const QueryStore& to, int row, int n, float sum,
                                            const Other& other) {
    constexpr int kRope = 64;
    const int head = n / (to.width + kRope), i = n % (to.width + kRope);
    const auto bits = [](float value) { return to_bf16(value).bits; };
    if (i < to.width) {
        to.act[row * to.act_stride + n] = bits(sum);
        return;
    }
    const int column = i - to.width;
    const float* angle = to.cos_sin + row * to.cos_sin_stride + column / 2 * 2;
    const float cosine = angle[0], sine = angle[1], beside = other();
    to.rope[row * to.rope_stride + head * to.rope_step + column] =
        bits(column % 2 == 0 ? sum * cosine - beside * sine : beside * sine + sum * cosine);
}

}  // namespace espalier::linalg::cuda
