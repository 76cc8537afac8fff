// SPDX-License-Identifier: Apache-2.0
// Tile folds over bf16 elements with AVX-512-BF16 dot products: pairs of columns in the scores,
// pairs of keys in the outputs, the broadcast side read from memory by the instruction itself.
// vdpbf16ps adds the odd product, then the even one, each rounded to f32 with subnormals flushed;
// so a key's place in its pair matters (it is its logical index) while a hidden key, whose
// probability is 0, adds exactly nothing.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/isa.hpp"
#include "mla/cpu/tile_kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512_BF16)
namespace espalier::mla::cpu {
namespace {

#include "mla/cpu/avx512_vector.inc"
// (needs the above)
#include "mla/cpu/softmax_tile.inc"

// sum + pairs · broadcast(*pair). Written out because compilers load the broadcast into a register
// first, which costs the 17th and later registers of the tiles below.
inline __m512 dot_broadcast(__m512 sum, __m512i pairs, const std::uint32_t* pair) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(pairs), "m"(*pair));
    return sum;
}

inline __m512i bf16_of(__m512 value) {
    return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
}

template <int kColumns>
inline void score_group(const std::uint32_t* query, const std::uint32_t* keys, __m512 scale,
                        float* scores) {
    constexpr int kPairs = kColumns / 2;
    __m512 dot[kGroupKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kGroupKeys; ++i) dot[i] = _mm512_setzero_ps();
    for (int d = 0; d < kPairs; ++d) {
        const __m512i q = _mm512_loadu_si512(query + d * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < kGroupKeys; ++i)
            dot[i] = dot_broadcast(dot[i], q, keys + i * kPairs + d);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kGroupKeys; ++i)
        _mm512_storeu_ps(scores + i * kLanes, _mm512_mul_ps(dot[i], scale));
}

void pack_probabilities(const float* p, int keys, std::uint32_t* pairs) {
    for (int key = 0; key < keys; key += 2) {
        const __m512i even = bf16_of(_mm512_loadu_ps(p + key * kLanes));
        const __m512i odd = bf16_of(_mm512_loadu_ps(p + (key + 1) * kLanes));
        _mm512_storeu_si512(pairs + key / 2 * kLanes,
                            _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
}

// 8 lanes × 32 columns. Two keys' values are interleaved on the fly; `column` below undoes the
// order that leaves.
template <int kColumns, int kValueStride>
inline void add_values(const KeyTile& tile, const std::uint32_t* pairs, const float* shrink,
                       float* out, int lane, int c) {
    constexpr int kOutLanes = 8;
    __m512 low[kOutLanes];
    __m512 high[kOutLanes];
    float* const at = out + lane * kColumns + c;
#pragma GCC unroll 8
    for (int i = 0; i < kOutLanes; ++i) {
        const __m512 factor = _mm512_set1_ps(shrink[lane + i]);
        low[i] = _mm512_mul_ps(_mm512_loadu_ps(at + i * kColumns), factor);
        high[i] = _mm512_mul_ps(_mm512_loadu_ps(at + i * kColumns + kLanes), factor);
    }
    const std::uint32_t* weight = pairs + lane;
    for (int group = 0; group < tile.groups; ++group) {
        const std::byte* value = tile.value[group] + c * 2;
        for (int key = 0; key < kGroupKeys; key += 2, value += 4 * kValueStride, weight += kLanes) {
            const __m512i even = _mm512_loadu_si512(value);
            const __m512i odd = _mm512_loadu_si512(value + 2 * kValueStride);
            const __m512i first = _mm512_unpacklo_epi16(even, odd);
            const __m512i second = _mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 8
            for (int i = 0; i < kOutLanes; ++i) {
                low[i] = dot_broadcast(low[i], first, weight + i);
                high[i] = dot_broadcast(high[i], second, weight + i);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kOutLanes; ++i) {
        _mm512_storeu_ps(at + i * kColumns, low[i]);
        _mm512_storeu_ps(at + i * kColumns + kLanes, high[i]);
    }
}

template <int kKeyColumns, int kValueColumns, int kValueStride>
void fold_bf16(const std::byte* query, float scale, const KeyTile& tile, TileScratch& scratch,
               const LaneState& state) {
    for (int group = 0; group < tile.groups; ++group)
        score_group<kKeyColumns>(reinterpret_cast<const std::uint32_t*>(query),
                                 reinterpret_cast<const std::uint32_t*>(tile.key[group]),
                                 _mm512_set1_ps(scale),
                                 scratch.scores + group * kGroupKeys * kLanes);
    alignas(64) float shrink[kLanes];
    softmax_tile<Vector>(scratch.scores, tile, state).store(shrink);
    pack_probabilities(scratch.scores, tile.groups * kGroupKeys, scratch.pairs);
    for (int c = 0; c < kValueColumns; c += 2 * kLanes)
        for (int lane = 0; lane < kLanes; lane += 8)
            add_values<kValueColumns, kValueStride>(tile, scratch.pairs, shrink, state.out, lane,
                                                    c);
}

// One panel of 16 outputs for 16 latents: 32 dot products of pairs per 64 columns and latent. With
// scales, each 128-wide block of k has its own chain: total += chain · scale.
template <bool kScaled>
inline void project_panel(const std::uint32_t* latents, const std::uint32_t* panel,
                          const float* scales, __m512* total) {
    constexpr int kRowPairs = 288;
    constexpr int kPairs = 256;
    constexpr int kBlock = kScaled ? 64 : kPairs;
    __m512 sum[kGroupKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kGroupKeys; ++i) sum[i] = _mm512_setzero_ps();
    for (int block = 0; block < kPairs; block += kBlock) {
        for (int d = block; d < block + kBlock; ++d) {
            const __m512i column = _mm512_loadu_si512(panel + d * kLanes);
#pragma GCC unroll 16
            for (int i = 0; i < kGroupKeys; ++i)
                sum[i] = dot_broadcast(sum[i], column, latents + i * kRowPairs + d);
        }
        if constexpr (kScaled) {
            const __m512 scale = _mm512_loadu_ps(scales + block / kBlock * kLanes);
#pragma GCC unroll 16
            for (int i = 0; i < kGroupKeys; ++i) {
                total[i] =
                    _mm512_fmadd_ps(sum[i], scale, block == 0 ? _mm512_setzero_ps() : total[i]);
                sum[i] = _mm512_setzero_ps();
            }
        }
    }
    if constexpr (!kScaled) {
#pragma GCC unroll 16
        for (int i = 0; i < kGroupKeys; ++i) total[i] = sum[i];
    }
}

void up_project_bf16(const std::byte* const* latents, int groups, const UpWeights& weights,
                     std::byte* out, std::int64_t out_stride) {
    constexpr int kPanels = 8;
    constexpr int kPanelPairs = 256 * kLanes;
    constexpr int kScaleBlocks = 4;
    for (int group = 0; group < groups; ++group) {
        const auto* x = reinterpret_cast<const std::uint32_t*>(latents[group]);
        for (int panel = 0; panel < kPanels; ++panel) {
            const auto* w =
                reinterpret_cast<const std::uint32_t*>(weights.panels) + panel * kPanelPairs;
            __m512 total[kGroupKeys];
            if (weights.scales == nullptr)
                project_panel<false>(x, w, nullptr, total);
            else
                project_panel<true>(x, w, weights.scales + panel * kScaleBlocks * kLanes, total);
            std::byte* to = out + (group * kGroupKeys * out_stride + panel * kLanes) * 2;
#pragma GCC unroll 16
            for (int i = 0; i < kGroupKeys; ++i)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * out_stride * 2),
                                    reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(total[i])));
        }
    }
}

}  // namespace

constinit const TileKernels kAvx512Bf16Tiles = {
    true,
    128,
    fold_bf16<576, 512, 576>,
    fold_bf16<192, 128, 128>,
    up_project_bf16,
    merge_states<Vector>,
    nullptr,  // bf16 elements are read as they lie; other caches go through the f32 kernels
    nullptr,
    {0, 1, 2,  3,  16, 17, 18, 19, 4,  5,  6,  7,  20, 21, 22, 23,
     8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
