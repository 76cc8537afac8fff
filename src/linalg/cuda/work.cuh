// SPDX-License-Identifier: Apache-2.0
// What the kernels share: which tokens a tile has, and how a result is stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

// Tokens of one group that are computed together: rows first … first + count - 1 of y.
struct TokenTile {
    std::int32_t group;
    std::int32_t first;
    std::int32_t count;
};

// Lists the tiles of `tokens` tokens of all experts, in order; the calling warp does it. Returns
// their number. `room` is what the host has reckoned with: more would mean that indptr contradicts
// y, and is dropped.
__device__ inline int list_expert_tiles(const Problem& p, int tokens, TokenTile* tiles, int room) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int each = (p.groups + 31) / 32;  // a lane's experts, so that all loads are on their way
    const int begin = min(lane * each, p.groups), end = min(begin + each, p.groups);
    int mine = 0;
    for (int e = begin; e < end; ++e)
        mine += (max(0, p.indptr[e + 1] - p.indptr[e]) + tokens - 1) / tokens;
    int after = mine;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, after, step);
        if (lane >= step) after += other;
    }
    const int total = __shfl_sync(~0u, after, 31);
    int place = after - mine;
    for (int e = begin; e < end; ++e) {
        const int last = min(p.indptr[e + 1], p.rows);
        for (int first = p.indptr[e]; first < last && place < room; first += tokens)
            tiles[place++] = {e, first, min(tokens, last - first)};
    }
    return min(total, room);
}

// Tile `index` of a problem whose groups all have every token.
__device__ inline TokenTile dense_tile(const Problem& p, int tokens, int index) {
    const int tiles = (p.rows + tokens - 1) / tokens;
    const int first = index % tiles * tokens;
    return {index / tiles, first, min(tokens, p.rows - first)};
}

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

}  // namespace espalier::linalg::cuda
