// SPDX-License-Identifier: Apache-2.0
// FP8 caches: three warps beside the copying one widen codes to fp16, where e4m3 is exact, in the
// tile they were copied to; scales stay outside (score_role.cuh). Codes of 128 columns become two
// blocks of 64: block i goes to bytes 16i … 16i + 16 KB of the tile while codes lie at 32 + 8i KB,
// so a block is written when all of its codes, and those it overwrites, were read.
//
// Queries become fp16 as well, scaled by a power of two per packed row so that the largest element
// is just below 2^15: exact for bf16, fp16 and e4m3 down to 2^-39 of it. The same is done to the
// rope columns of fp8_token, per key.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

inline constexpr int kWidenWarps = 3;

template <KvFormat kFormat>
class Widener {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr int kThreads = kWidenWarps * 32;
    static constexpr int kBarrier = 3;             // named, of these warps
    static constexpr int kChunks = kTileKeys * 8;  // of 16 bytes, in a block
    static constexpr int kRounds = (kChunks + kThreads - 1) / kThreads;

  public:
    __device__ Widener(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), thread_(threadIdx.x % 128 - 32), lane_(threadIdx.x % 32) {}

    __device__ void run() {
        Ring<2> items;
        while (true) {
            wait(&shared_.item_full[items.index], items.phase);
            const Item& item = shared_.items[items.index];
            if (uniform(item.last) != 0) return;
            const int tile_end = uniform(item.tile_end);
            int tile = uniform(item.tile_begin);
            if (tile < tile_end) widen_query(item);
            for (; tile < tile_end; ++tile) widen_tile(item.keys - tile * kTileKeys);
            __syncwarp();
            if (lane_ == 0) arrive(&shared_.item_free[items.index]);
            items.advance();
        }
    }

  private:
    __device__ void widen_query(const Item& item) {
        wait(&shared_.query_free, query_phase_ ^ 1);
        query_phase_ ^= 1;
#pragma unroll 1
        for (int row = thread_ / 32; row < item.columns; row += kWidenWarps)
            widen_query_row(item.packed_first + row, row);
        fence_async_proxy();
        __syncwarp();
        if (lane_ == 0) arrive(&shared_.query_full);
    }

    // Keys from `valid` on are slots past the end: they may hold anything, and become zeros.
    __device__ void widen_tile(int valid) {
        const int stage = keys_.index;
        wait(&shared_.codes_full[stage], keys_.phase);
        std::byte* tile = shared_.keys[stage];
        if constexpr (T::kTokenScale)
            widen_rope(stage, valid);
        else
            widen_rope_codes(tile, valid);
#pragma unroll 1
        for (int block = 0; block < 4; ++block) {
            int4 codes[kRounds];
#pragma unroll
            for (int i = 0; i < kRounds; ++i) {
                const int at = thread_ + i * kThreads;
                if (at < kChunks)
                    codes[i] = at / 8 < valid
                                   ? *chunk(tile + T::kCodes + block * kBlockBytes, at / 8, at % 8)
                                   : int4{};
            }
            if (block >= 2) named_barrier(kBarrier, kThreads);
#pragma unroll
            for (int i = 0; i < kRounds; ++i) {
                const int at = thread_ + i * kThreads;
                if (at < kChunks)
                    store_wide(tile + (block * 2 + at % 8 / 4) * kBlockBytes, at / 8, at % 4,
                               at % 8 / 4, codes[i]);
            }
        }
        fence_async_proxy();
        __syncwarp();
        if (lane_ == 0) arrive(&shared_.keys_full[stage][0]);
        keys_.advance();
    }

    // Sixteen bytes of a row in a block of 128-byte rows.
    __device__ static int4* chunk(std::byte* block, int row, int index) {
        return reinterpret_cast<int4*>(block + row * 128 + ((index ^ (row & 7)) << 4));
    }
    __device__ static int4 widen_eight(int a, int b) {
        const auto two = [](int codes) {
            return static_cast<int>(widen_e4m3(static_cast<std::uint16_t>(codes)));
        };
        return int4{two(a), two(a >> 16), two(b), two(b >> 16)};
    }
    // Sixteen codes to the chunks 2·index and 2·index + 1 of a row; lanes of the other half of a
    // row
    // (`turned`) begin with the second, so that no two meet in a bank.
    __device__ static void store_wide(std::byte* block, int row, int index, int turned,
                                      int4 codes) {
        const int4 first = turned ? widen_eight(codes.z, codes.w) : widen_eight(codes.x, codes.y);
        *chunk(block, row, 2 * index + turned) = first;
        const int4 second = turned ? widen_eight(codes.x, codes.y) : widen_eight(codes.z, codes.w);
        *chunk(block, row, 2 * index + 1 - turned) = second;
    }

    // --- the rope columns of fp8_tensor: rows of 64 bytes in the last half of the tile's last
    // block
    __device__ void widen_rope_codes(std::byte* tile, int valid) {
        constexpr int kRopeChunks = kTileKeys * 4;
        constexpr int kRopeRounds = (kRopeChunks + kThreads - 1) / kThreads;
        int4 codes[kRopeRounds];
#pragma unroll
        for (int i = 0; i < kRopeRounds; ++i) {
            const int at = thread_ + i * kThreads;
            const int row = at / 4;
            if (at < kRopeChunks)
                codes[i] = row < valid
                               ? *reinterpret_cast<const int4*>(tile + T::kRopeCodes + row * 64 +
                                                                ((at % 4 ^ (row >> 1 & 3)) << 4))
                               : int4{};
        }
        named_barrier(kBarrier, kThreads);
#pragma unroll
        for (int i = 0; i < kRopeRounds; ++i) {
            const int at = thread_ + i * kThreads;
            if (at < kRopeChunks) store_wide(tile + 8 * kBlockBytes, at / 4, at % 4, 0, codes[i]);
        }
    }

    // --- the rope columns of fp8_token: bf16 in place, eight lanes to a key, and the key's scales
    __device__ void widen_rope(int stage, int valid) {
        std::byte* block = shared_.keys[stage] + 8 * kBlockBytes;
#pragma unroll 1
        for (int at = thread_; at < kChunks; at += kThreads) {  // whole warps
            const int row = at / 8;
            int4* place = chunk(block, row, at % 8);
            const int4 pairs = row < valid ? *place : int4{};
            float largest = fmaxf(fmaxf(largest_of(pairs.x), largest_of(pairs.y)),
                                  fmaxf(largest_of(pairs.z), largest_of(pairs.w)));
            for (int step = 1; step < 8; step *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
            const int shift = shift_for(largest);
            const float scale = ldexpf(1.0f, shift);
            *place = int4{to_fp16(pairs.x, scale), to_fp16(pairs.y, scale), to_fp16(pairs.z, scale),
                          to_fp16(pairs.w, scale)};
            if (at % 8 != 0) continue;
            float sigma = row < valid ? shared_.key_scale[stage][row] : 1.0f;
            if (!(sigma > 0.0f && sigma < 3e38f)) sigma = 1.0f;  // a key of zeros
            shared_.key_scale[stage][row] = sigma;
            shared_.key_inverse[stage][row] = 1.0f / sigma;
            shared_.rope_factor[stage][row] = ldexpf(1.0f, -shift) / sigma;
        }
        __syncwarp();
    }
    __device__ static float low(int two) { return __int_as_float(two << 16); }
    __device__ static float high(int two) {
        return __int_as_float(static_cast<int>(static_cast<unsigned>(two) & 0xffff0000u));
    }
    __device__ static float largest_of(int two) { return fmaxf(fabsf(low(two)), fabsf(high(two))); }
    __device__ static int to_fp16(int two, float scale) {
        return static_cast<int>(pack<Element::f16>(low(two) * scale, high(two) * scale));
    }

    // The power of two that brings `largest` just below 2^15.
    __device__ static int shift_for(float largest) {
        if (!(largest > 0.0f && largest < 3e38f)) return 0;
        int exponent = 0;
        frexpf(largest, &exponent);
        return min(15 - exponent, 120);
    }

    // --- queries
    __device__ float2 load_pair(long long packed, int pair) const {
        const long long index = packed * (kKey / 2) + pair;
        if (p_.q_dtype == DType::bf16)
            return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(p_.q)[index]);
        if (p_.q_dtype == DType::f16)
            return __half22float2(reinterpret_cast<const __half2*>(p_.q)[index]);
        const std::uint32_t wide = widen_e4m3(reinterpret_cast<const std::uint16_t*>(p_.q)[index]);
        return __half22float2(reinterpret_cast<const __half2&>(wide));
    }

    __device__ void widen_query_row(long long packed, int row) {
        float2 pair[9];
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < 9; ++i) {
            pair[i] = load_pair(packed, i * 32 + lane_);
            largest = fmaxf(largest, fmaxf(fabsf(pair[i].x), fabsf(pair[i].y)));
        }
#pragma unroll 1
        for (int step = 16; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        const int shift = shift_for(largest);
        const float scale = ldexpf(1.0f, shift);
        if (lane_ == 0) shared_.query_scale[row] = ldexpf(1.0f, -shift);
#pragma unroll
        for (int i = 0; i < 9; ++i)
            *reinterpret_cast<std::uint32_t*>(shared_.query + i * kBlockBytes + row * 128 +
                                              ((lane_ / 4 ^ (row & 7)) << 4) + lane_ % 4 * 4) =
                pack<Element::f16>(pair[i].x * scale, pair[i].y * scale);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int thread_, lane_;
    Ring<kStages> keys_;
    std::uint32_t query_phase_ = 0;
};

}  // namespace espalier::mla::cuda
