// SPDX-License-Identifier: Apache-2.0
// Gated products of prompts (arranged.cuh): from a warp's sums to y.
//
// A tile of 192 tokens is 48 values of silu a lane. Written out for each, as sums in registers must
// be, they are 3,000 instructions that a warp runs through once a tile, and that takes 8 µs of a
// tile's 33 whether divisions branch or not: they have to be fetched first. So sums go through
// shared memory, 16 tokens at a time, and one loop computes.
#pragma once

#include <cuda_bf16.h>

#include "base/cuda/named_barrier.cuh"
#include "linalg/cuda/gates.cuh"
#include "linalg/cuda/hopper/arranged_params.hpp"
#include "linalg/cuda/many_store.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

// A warp's: 16 outputs (eight of the gate, eight of up) of 16 tokens.
inline constexpr int kGatedTokens = 16;
inline constexpr int kGatedStride = 24;  // stores of two tokens go to all banks
inline constexpr int kGatedFloats = 16 * kGatedStride;

// Its 128 threads; barrier 0 is the block's.
__device__ __forceinline__ void synchronize_warpgroup(int group) { named_barrier(group + 1, 128); }

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

// Gated values of a lane's four columns, from the warp's sums of 16 tokens.
__device__ __forceinline__ void gate_four(const float* from, float (&value)[4]) {
    float gate[4], up[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        gate[i] = from[i * kGatedStride];
        up[i] = from[(i + 8) * kGatedStride];
    }
    __syncwarp();
    gate_exactly(gate, up, value);
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
        gate_four(memory + four * kGatedStride + token, value);
        const int row = piece * kGatedTokens + token;
        if (row < tile.count) store_four(p, tile, tile.first + row, column + four, value);
    }
}

__device__ __forceinline__ std::uint32_t two_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// A warp's 16 columns of queries, from `output` on. Lanes exchange sums so that each has four
// columns of one token, and eight bytes of it are stored at once: 32 of a token by four lanes.
class QueryWords {
    static constexpr int kRope = 64;

  public:
    struct Angles {
        float2 low, high;  // cosine and sine of columns 0 … 7 and 8 … 15
    };

    __device__ QueryWords(const QueryStore& to, const TokenTile& tile, int output)
        : to_(to),
          end_(tile.first + tile.count),
          row_(tile.first + lane() % 4 * 2 + odd()),
          head_(output / (to.width + kRope)),
          column_(output % (to.width + kRope)) {}

    __device__ bool rotated() const { return column_ >= to_.width; }

    // Angles of the lane's two columns in both halves, tokens 8 · eight …
    __device__ Angles angles(int eight) const {
        const int row = min(row_ + eight * 8, end_ - 1);
        const float* from =
            to_.cos_sin + row * to_.cos_sin_stride + column_ - to_.width + lane() / 8 * 2;
        return {load(from), load(from + 8)};
    }

    // sums: four, of outputs g and g + 8 for two tokens.
    template <bool kRotated>
    __device__ void store(const float* sums, int eight, const Angles& angles) const {
        std::uint32_t words[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Lanes beside each other: one token for the other.
            const float first = sums[2 * half], second = sums[2 * half + 1];
            const float other = __shfl_xor_sync(~0u, odd() ? first : second, 4);
            const float low = odd() ? other : first, high = odd() ? second : other;
            const float2 angle = half == 0 ? angles.low : angles.high;
            words[half] =
                kRotated ? two_bf16(low * angle.x - high * angle.y, low * angle.y + high * angle.x)
                         : two_bf16(low, high);
        }
        // Then one half's word for the other's.
        const bool upper = lane() / 8 % 2 != 0;
        const std::uint32_t other = __shfl_xor_sync(~0u, upper ? words[0] : words[1], 8);
        const uint2 four = upper ? make_uint2(other, words[1]) : make_uint2(words[0], other);
        const int row = row_ + eight * 8;
        if (row >= end_) return;
        std::uint16_t* at =
            kRotated && row < to_.apart
                ? to_.rope + row * to_.rope_stride + head_ * to_.rope_step - to_.width
                : to_.act + row * to_.act_stride + head_ * (to_.width + kRope);
        *reinterpret_cast<uint2*>(at + column_ + upper * 8 + lane() / 16 * 4) = four;
    }

  private:
    __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ static bool odd() { return lane() / 4 % 2 != 0; }
    // Volatile, so that several are on their way before the first is used.
    __device__ static float2 load(const float* from) {
        float2 v;
        asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from));
        return v;
    }

    const QueryStore& to_;
    int end_;
    int row_;
    int head_;
    int column_;  // of the head
};

template <int kTokens, int kSums>
__device__ __forceinline__ void store_queries(const float (&sums)[kSums], const Problem& p,
                                              const TokenTile& tile, int output) {
    constexpr int kAtOnce = 4;  // times eight tokens, whose angles are asked for together
    static_assert(kTokens % (8 * kAtOnce) == 0);
    if (output >= p.n) return;
    const QueryWords words(p.query, tile, output);
    if (!words.rotated()) {
#pragma unroll
        for (int eight = 0; eight < kTokens / 8; ++eight)
            words.store<false>(sums + 4 * eight, eight, {});
        return;
    }
#pragma unroll
    for (int first = 0; first < kTokens / 8; first += kAtOnce) {
        if (first * 8 >= tile.count) return;
        QueryWords::Angles angles[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) angles[i] = words.angles(first + i);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            words.store<true>(sums + 4 * (first + i), first + i, angles[i]);
    }
}

// A warpgroup's 32 columns of 32 tokens as they are arranged, half of a stage's rows. Twice: one is
// filled while the other is read.
inline constexpr int kTurnedTokens = 32;
inline constexpr int kTurnedBytes = kTurnedTokens * 64;

// A warpgroup's; what is turned is read before sums are put there again.
union alignas(16) GatedMemory {
    float sums[4][kGatedFloats];  // warps'
    std::byte turned[2][kTurnedBytes];
};

// Row `row` of y in that stage.
__device__ __forceinline__ std::byte* arranged_line(const ArrangedY& y, const Problem& p,
                                                    const TokenTile& tile, int stage, int& row) {
    TokenTile to = tile;
    if (p.indptr == nullptr) {  // tiles of the other product
        const int first = (tile.first + row) / y.tile_tokens * y.tile_tokens;
        row += tile.first - first;
        to = {0, first, min(y.tile_tokens, p.rows - first)};
    }
    const std::int64_t line = std::int64_t{to.first} * y.stages + stage * to.count + row;
    return y.data + line * 128;
}

// Sums 8 · piece … of a lane, column g = lane / 4 of tokens 2t, 2t + 1, 2t + 8 and 2t + 9 of 16, to
// the words that the tensor cores take: lanes beside each other exchange one token for the other.
// Word i of the warp's eight columns is word `warp` of unit i (turn() in arrange.cuh). Whether all
// of the lane's are sure.
template <int kSums>
__device__ __forceinline__ bool turn_piece(const float (&sums)[kSums], int piece, int lane,
                                           std::byte* to) {
    const float* from = sums + 8 * piece;
    const float gate[4] = {from[0], from[1], from[4], from[5]};
    const float up[4] = {from[2], from[3], from[6], from[7]};
    float value[4];
    const bool sure = gate_quickly(gate, up, value);
    const bool odd = lane / 4 % 2 != 0;
    to += (lane % 4 * 2 + odd) * 64 + lane / 8 * 16;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
        const float first = value[2 * eight], second = value[2 * eight + 1];
        const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
        *reinterpret_cast<std::uint32_t*>(to + eight * 8 * 64) =
            odd ? two_bf16(other, second) : two_bf16(first, other);
    }
    return sure;
}

// Warpgroup `half`'s share of 64 columns of y, a stage.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_gated_arranged(const float (&sums)[kSums], const Problem& p,
                                                     const ArrangedY& y, const TokenTile& tile,
                                                     int stage, int half, GatedMemory& memory) {
    int thread;  // volatile: what follows from it is not kept in registers from tile to tile
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread %= 128;
    const int warp = thread / 32, lane = thread % 32;
    std::uint32_t unsure = 0;     // pieces
    synchronize_warpgroup(half);  // who was late with the tile before has read its sums
#pragma unroll
    for (int part = 0; part < kTokens / kTurnedTokens; ++part) {
        if (part * kTurnedTokens >= tile.count) break;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (!turn_piece(sums, 2 * part + i, lane,
                            memory.turned[part % 2] + i * 16 * 64 + warp * 4))
                unsure |= 1u << (2 * part + i);
        synchronize_warpgroup(half);
        if (int row = part * kTurnedTokens + thread / 4; row < tile.count) {
            std::byte* line = arranged_line(y, p, tile, stage, row);
            *reinterpret_cast<uint4*>(line + ((half * 4 + thread % 4) ^ row % 8) * 16) =
                *reinterpret_cast<const uint4*>(memory.turned[part % 2] + thread * 16);
        }
    }
    synchronize_warpgroup(half);
    // About two of a tile's twelve again, by the plain way.
    for (unsure = __reduce_or_sync(~0u, unsure); unsure != 0; unsure &= unsure - 1) {
        const int piece = __ffs(static_cast<int>(unsure)) - 1;
        put_piece<kTokens>(sums, piece, memory.sums[warp]);
        __syncwarp();
        float value[4];
        gate_four(memory.sums[warp] + lane / 16 * 4 * kGatedStride + lane % 16, value);
        if (int row = piece * kGatedTokens + lane % 16; row < tile.count) {
            std::byte* line = arranged_line(y, p, tile, stage, row) + warp * 4;
            const int unit = half * 4 + lane / 16 * 2;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                *reinterpret_cast<std::uint32_t*>(line + ((unit + i) ^ row % 8) * 16) =
                    two_bf16(value[2 * i], value[2 * i + 1]);
        }
    }
}

}  // namespace espalier::linalg::cuda
