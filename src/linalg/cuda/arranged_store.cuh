// SPDX-License-Identifier: Apache-2.0
// Gated products of prompts (arranged.cuh): from a warp's sums to y.
//
// A tile of 192 tokens is 48 values of silu a lane. Written out for each, as sums in registers must
// be, they are 3,000 instructions that a warp runs through once a tile, and that takes 8 µs of a
// tile's 33 whether divisions branch or not: they have to be fetched first. So sums go through
// shared memory, 16 tokens at a time, and one loop computes.
#pragma once

#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

// A warp's: 16 outputs (eight of the gate, eight of up) of 16 tokens.
inline constexpr int kGatedTokens = 16;
inline constexpr int kGatedStride = 24;  // stores of two tokens go to all banks
inline constexpr int kGatedFloats = 16 * kGatedStride;

// portable_silu's bits where `exact` stays true; elsewhere it has to be called. The division is the
// one that the compiler makes (a reciprocal, a Newton step, two remainders) without its test for
// numbers that need more care: that is a branch, which keeps values from being computed beside each
// other.
__device__ __forceinline__ float quick_silu(float x, bool& exact) {
    const float d = 1.0f + portable_exp(-x);
    exact = exact && fabsf(x) > 0x1p-60f && fabsf(x) < 0x1p100f && d < 0x1p100f;  // no NaN either
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    y = __fmaf_rn(y, __fmaf_rn(-d, y, 1.0f), y);
    const float near = __fmul_rn(x, y);
    const float nearer = __fmaf_rn(__fmaf_rn(-d, near, x), y, near);
    return __fmaf_rn(__fmaf_rn(-d, nearer, x), y, nearer);
}

// Sums of tokens 16 · piece … to [output][token].
template <int kTokens, int kSums>
__device__ __forceinline__ void put_piece(const float (&sums)[kSums], int piece, float* to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    to += lane / 4 * kGatedStride + lane % 4 * 2;
#pragma unroll
    for (int one = 0; one < kTokens / kGatedTokens; ++one)
        if (one == piece)
#pragma unroll
            for (int i = 0; i < 4; ++i)  // eight tokens, eight outputs
                *reinterpret_cast<float2*>(to + i % 2 * 8 * kGatedStride + i / 2 * 8) =
                    make_float2(sums[8 * one + 4 * (i / 2) + 2 * (i % 2)],
                                sums[8 * one + 4 * (i / 2) + 2 * (i % 2) + 1]);
}

// A lane has four columns of one token.
__device__ __forceinline__ void store_four(const Problem& p, const TokenTile& tile, int row,
                                           int column, const float (&value)[4]) {
    const std::int64_t at = row * p.y_stride + tile.group * p.y_step + column;
    auto* y = reinterpret_cast<__nv_bfloat16*>(p.y) + at;
    if (p.y_type == DType::bf16 && 2 * column + 8 <= p.n &&
        reinterpret_cast<std::uintptr_t>(y) % 8 == 0) {
        const __nv_bfloat162 low = __floats2bfloat162_rn(value[0], value[1]);
        const __nv_bfloat162 high = __floats2bfloat162_rn(value[2], value[3]);
        *reinterpret_cast<uint2*>(y) = make_uint2(*reinterpret_cast<const std::uint32_t*>(&low),
                                                  *reinterpret_cast<const std::uint32_t*>(&high));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (2 * (column + i) < p.n) store(p, tile.group, row, column + i, value[i]);
}

// column: the warp's first. memory: the warp's.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_gated_pieces(const float (&sums)[kSums], const Problem& p,
                                                   const TokenTile& tile, int column,
                                                   float* memory) {
    static_assert(kTokens / 2 <= kSums && kTokens % kGatedTokens == 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int token = lane % 16, four = lane / 16 * 4;
    const float* from = memory + four * kGatedStride + token;
#pragma unroll 1
    for (int piece = 0; piece * kGatedTokens < tile.count; ++piece) {
        put_piece<kTokens>(sums, piece, memory);
        __syncwarp();
        float gate[4], up[4], value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            gate[i] = from[i * kGatedStride];
            up[i] = from[(i + 8) * kGatedStride];
        }
        __syncwarp();
        bool exact = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = quick_silu(gate[i], exact) * up[i];
        if (!exact)
#pragma unroll
            for (int i = 0; i < 4; ++i) value[i] = gated(gate[i], up[i]);
        const int row = piece * kGatedTokens + token;
        if (row < tile.count) store_four(p, tile, tile.first + row, column + four, value);
    }
}

}  // namespace espalier::linalg::cuda
