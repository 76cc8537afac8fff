// SPDX-License-Identifier: Apache-2.0
// Kernels for many tokens: from a warpgroup's sums to y. Sum 4j + 2h + i of a lane is that of token
// 8j + 2t + i and output g + 8h, where lane = 4g + t.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

// Address of y of a product, its type apart.
struct ManyPlace {
    std::int64_t stride = 0;
    std::int64_t offset = 0;  // of the group's columns
    int n = 0;
};

template <int kTokens, typename Y, typename Put, int kSums>
__device__ __forceinline__ void store_all(const float (&sums)[kSums], const TokenTile& tile,
                                          int output, const ManyPlace& place, Y* y,
                                          const Put& put) {
    static_assert(kTokens / 2 <= kSums);
    const int token = static_cast<int>(threadIdx.x) % 4 * 2;
    y += (tile.first + token) * place.stride + place.offset + output;
#pragma unroll
    for (int eight = 0; eight < kTokens / 8; ++eight, y += 8 * place.stride)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (eight * 8 + token + i % 2 < tile.count && output + i / 2 * 8 < place.n)
                put(y + i % 2 * place.stride + i / 2 * 8, sums[4 * eight + i]);
}

// Eight of a tile's 16 outputs are the gate's and eight are up's: a lane has both.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_gated(const float (&sums)[kSums], const Problem& p,
                                            const TokenTile& tile, int column) {
    static_assert(kTokens / 2 <= kSums);
    const int token = static_cast<int>(threadIdx.x) % 4 * 2;
    if (2 * column >= p.n) return;
#pragma unroll
    for (int eight = 0; eight < kTokens / 8; ++eight)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (eight * 8 + token + i < tile.count)
                store(p, tile.group, tile.first + eight * 8 + token + i, column,
                      gated(sums[4 * eight + i], sums[4 * eight + 2 + i]));
}

// output: the lane's first.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_sums(const float (&sums)[kSums], const Problem& p,
                                           const TokenTile& tile, int output) {
    if (p.gated) return store_gated<kTokens>(sums, p, tile, output / 16 * 8 + output % 8);
    const ManyPlace place{p.y_stride, tile.group * p.y_step, p.n};
    if (p.y_type == DType::f32 && !p.accumulate)
        store_all<kTokens>(sums, tile, output, place, reinterpret_cast<float*>(p.y),
                           [](float* to, float sum) { *to = sum; });
    else if (p.y_type == DType::f32)
        store_all<kTokens>(sums, tile, output, place, reinterpret_cast<float*>(p.y),
                           [](float* to, float sum) { *to = *to + sum; });
    else if (p.y_type == DType::bf16)
        store_all<kTokens>(sums, tile, output, place, reinterpret_cast<__nv_bfloat16*>(p.y),
                           [](__nv_bfloat16* to, float sum) { *to = __float2bfloat16_rn(sum); });
    else
        store_all<kTokens>(sums, tile, output, place, reinterpret_cast<__half*>(p.y),
                           [](__half* to, float sum) { *to = __float2half_rn(sum); });
}

}  // namespace espalier::linalg::cuda
