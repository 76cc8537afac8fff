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

template <KvFormat kFormat>
class KeyWidener {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr int kThreads = kOutputThreads;
    static constexpr int kChunks = kTileKeys * 8;  // of 16 bytes, in a block
    static constexpr int kRounds = kChunks / kThreads;

  public:
    __device__ explicit KeyWidener(Shared& shared)
        : shared_(shared), thread_(static_cast<int>(threadIdx.x) % kThreads) {}

    __device__ bool arrived() { return phase_done(&shared_.codes_full[keys_.index], keys_.phase); }

    // Keys from `valid` on are slots past the end: they may hold anything, and become zeros.
    __device__ void widen(int valid) {
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
                codes[i] = at / 8 < valid
                               ? *chunk(tile + T::kCodes + block * kBlockBytes, at / 8, at % 8)
                               : int4{};
            }
            if (block >= 2) named_barrier(kOutputBarrier, kThreads);
#pragma unroll
            for (int i = 0; i < kRounds; ++i) {
                const int at = thread_ + i * kThreads;
                store_wide(tile + (block * 2 + at % 8 / 4) * kBlockBytes, at / 8, at % 4,
                           at % 8 / 4, codes[i]);
            }
        }
        fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&shared_.keys_full[stage][0]);
        keys_.advance();
    }

  private:
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
        static_assert(kThreads == kTileKeys * 4);
        const int row = thread_ / 4;
        const int4 codes =
            row < valid ? *reinterpret_cast<const int4*>(tile + T::kRopeCodes + row * 64 +
                                                         ((thread_ % 4 ^ (row >> 1 & 3)) << 4))
                        : int4{};
        named_barrier(kOutputBarrier, kThreads);
        store_wide(tile + 8 * kBlockBytes, row, thread_ % 4, 0, codes);
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
            const int shift = shift_below_2_15(largest);
            const float scale = power_of_two(shift);
            *place = int4{to_fp16(pairs.x, scale), to_fp16(pairs.y, scale), to_fp16(pairs.z, scale),
                          to_fp16(pairs.w, scale)};
            if (at % 8 != 0) continue;
            float sigma = row < valid ? shared_.key_scale[stage][row] : 1.0f;
            if (!(sigma > 0.0f && sigma < 3e38f)) sigma = 1.0f;  // a key of zeros
            // Below 2^-64 a key's latent is nothing beside any rope, and 1 / σ must stay finite.
            sigma = fmaxf(sigma, 0x1p-64f);
            shared_.key_scale[stage][row] = sigma;
            shared_.key_inverse[stage][row] = 1.0f / sigma;
            shared_.rope_factor[stage][row] = power_of_two(-shift) / sigma;
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

    Shared& shared_;
    const int thread_;
    Ring<kStages> keys_;
};

}  // namespace espalier::mla::cuda
