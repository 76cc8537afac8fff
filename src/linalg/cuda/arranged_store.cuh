// SPDX-License-Identifier: Apache-2.0
// Gated products of prompts (arranged.cuh): from a warp's sums to y.
//
// A tile of 192 tokens is 48 values of silu a lane. Written out for each, as sums in registers must
// be, they are 3,000 instructions that a warp runs through once a tile, and that takes 8 µs of a
// tile's 33 whether divisions branch or not: they have to be fetched first. So sums go through
// shared memory, 16 tokens at a time, and one loop computes.
#pragma once

#include "linalg/cuda/arrange.cuh"
#include "linalg/cuda/gates.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

// A warp's: 16 outputs (eight of the gate, eight of up) of 16 tokens.
inline constexpr int kGatedTokens = 16;
inline constexpr int kGatedStride = 24;  // stores of two tokens go to all banks
inline constexpr int kGatedFloats = 16 * kGatedStride;

// Its 128 threads; barrier 0 is the block's.
__device__ __forceinline__ void synchronize_warpgroup(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Sums of tokens 16 · piece … to [output][token].
template <int kTokens, int kSums>
__device__ __forceinline__ void put_piece(const float (&sums)[kSums], int piece, float* to) {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
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

// Of a lane's four columns, from the warp's sums of 16 tokens. bf16: that is what they are rounded
// to.
__device__ __forceinline__ void gate_four(const float* from, bool bf16, float (&value)[4]) {
    float gate[4], up[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        gate[i] = from[i * kGatedStride];
        up[i] = from[(i + 8) * kGatedStride];
    }
    __syncwarp();
    if (!bf16 || !gate_quickly(gate, up, value)) gate_exactly(gate, up, value);
}

// column: the warp's first. memory: the warp's.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_gated_pieces(const float (&sums)[kSums], const Problem& p,
                                                   const TokenTile& tile, int column,
                                                   float* memory) {
    static_assert(kTokens / 2 <= kSums && kTokens % kGatedTokens == 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int token = lane % 16, four = lane / 16 * 4;
#pragma unroll 1
    for (int piece = 0; piece * kGatedTokens < tile.count; ++piece) {
        put_piece<kTokens>(sums, piece, memory);
        __syncwarp();
        float value[4];
        gate_four(memory + four * kGatedStride + token, p.y_type == DType::bf16, value);
        const int row = piece * kGatedTokens + token;
        if (row < tile.count) store_four(p, tile, tile.first + row, column + four, value);
    }
}

// Where the product behind a gated one has its x arranged: the gated one puts it there itself.
struct ArrangedY {
    std::byte* data = nullptr;  // behind the header; null: y is a matrix
    int* next = nullptr;        // the header
    int tile_tokens = 0;
    int stages = 0;  // of 64 inputs
};

// A warpgroup's 32 columns of 16 tokens as they are arranged, half of a stage's row, and 16 bytes
// so that rows begin in other banks. Twice: one is filled while the other is read.
inline constexpr int kTurnedRow = 64 + 16;
inline constexpr int kTurnedBytes = 2 * kGatedTokens * kTurnedRow;

// Row `row` of y in that stage.
__device__ __forceinline__ std::byte* arranged_line(const ArrangedY& y, const Problem& p,
                                                    const TokenTile& tile, int stage, int& row) {
    TokenTile to = tile;
    if (p.indptr == nullptr) {  // tiles of the other product
        const int first = (tile.first + row) / y.tile_tokens * y.tile_tokens;
        row += tile.first - first;
        to = {0, first, min(y.tile_tokens, p.rows - first)};
    }
    const std::int64_t line = arranged_row(to) * y.stages + stage * padded_rows(to) + row;
    return y.data + line * 128;
}

// Of 64 columns of y, a stage, this is warpgroup `half`. Word i of the warp's eight columns is word
// `warp` of unit i there (turn() in arrange.cuh). memory, turned: the warpgroup's.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_gated_arranged(const float (&sums)[kSums], const Problem& p,
                                                     const ArrangedY& y, const TokenTile& tile,
                                                     int stage, int half,
                                                     float (*memory)[kGatedFloats],
                                                     std::byte* turned) {
    int thread;  // volatile: what follows from it is not kept in registers from tile to tile
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread %= 128;
    const int warp = thread / 32, lane = thread % 32;
    std::byte* to = turned + lane % 16 * kTurnedRow + lane / 16 * 32 + warp * 4;
    const std::byte* from = turned + thread / 8 * kTurnedRow + thread % 8 * 8;
#pragma unroll 1
    for (int piece = 0; piece * kGatedTokens < tile.count; ++piece) {
        put_piece<kTokens>(sums, piece, memory[warp]);
        __syncwarp();
        float value[4];
        gate_four(memory[warp] + lane / 16 * 4 * kGatedStride + lane % 16, true, value);
        const int other = piece % 2 * kGatedTokens * kTurnedRow;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            *reinterpret_cast<__nv_bfloat162*>(to + other + i * 16) =
                __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
        synchronize_warpgroup(half);
        if (int row = piece * kGatedTokens + thread / 8; row < tile.count) {
            std::byte* line = arranged_line(y, p, tile, stage, row);
            const int unit = (half * 4 + thread % 8 / 2) ^ row % 8;
            *reinterpret_cast<uint2*>(line + unit * 16 + thread % 2 * 8) =
                *reinterpret_cast<const uint2*>(from + other);
        }
    }
}

}  // namespace espalier::linalg::cuda
