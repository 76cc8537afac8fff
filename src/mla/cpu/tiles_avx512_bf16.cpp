// SPDX-License-Identifier: Apache-2.0
// Tile folds over bf16 elements with AVX-512-BF16 dot products: pairs of columns in the scores,
// pairs of keys in the outputs, the broadcast side read from memory by the instruction itself.
// vdpbf16ps adds the odd product, then the even one, each rounded to f32 with subnormals flushed;
// so a key's place in its pair matters (it is its logical index) while a hidden key, whose
// probability is 0, adds exactly nothing. e4m3 caches are widened to the bf16 of their codes, which
// is exact, and keep their scales apart.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/isa.hpp"
#include "base/widening_table.hpp"
#include "mla/cpu/tile_kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512_BF16)
namespace espalier::mla::cpu {
namespace {

// Each needs those above.
// clang-format off
#include "base/simd_avx512.inc"
#include "base/simd_avx512_bf16.inc"
#include "mla/cpu/avx512_vector.inc"
#include "mla/cpu/softmax_tile.inc"
#include "mla/cpu/bf16_tile.inc"
// clang-format on

// One panel of 16 outputs for 16 latents: 32 dot products of pairs per 64 columns and latent. With
// scales, each 128-wide block of k has its own chain: total += chain · scale.
template <int kLatent, bool kScaled>
inline void project_panel(const std::uint32_t* latents, const std::uint32_t* panel,
                          const float* scales, __m512* total) {
    constexpr int kRowPairs = kLatent / 2 + 32;
    constexpr int kPairs = kLatent / 2;
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

template <int kLatent>
void up_project_bf16(const std::byte* const* latents, int groups, const UpWeights& weights,
                     const float* key_scale, std::byte* out, std::int64_t out_stride) {
    constexpr int kPanelPairs = kLatent / 2 * kLanes;
    constexpr int kScaleBlocks = kLatent / 128;
    for (int group = 0; group < groups; ++group) {
        const auto* x = reinterpret_cast<const std::uint32_t*>(latents[group]);
        for (int panel = 0; panel < weights.count; ++panel) {
            const auto* w =
                reinterpret_cast<const std::uint32_t*>(weights.panels) + panel * kPanelPairs;
            __m512 total[kGroupKeys];
            if (weights.scales == nullptr)
                project_panel<kLatent, false>(x, w, nullptr, total);
            else
                project_panel<kLatent, true>(x, w, weights.scales + panel * kScaleBlocks * kLanes,
                                             total);
            if (key_scale != nullptr) {
#pragma GCC unroll 16
                for (int i = 0; i < kGroupKeys; ++i)
                    total[i] =
                        _mm512_mul_ps(total[i], _mm512_set1_ps(key_scale[group * kGroupKeys + i]));
            }
            std::byte* to = out + (group * kGroupKeys * out_stride + panel * kLanes) * 2;
#pragma GCC unroll 16
            for (int i = 0; i < kGroupKeys; ++i)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * out_stride * 2),
                                    reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(total[i])));
        }
    }
}

void widen_e4m3(const std::byte* from, float, std::byte* to, std::int64_t count) {
    const E4m3Lookup lookup;
    for (std::int64_t i = 0; i < count; i += 64) widen_64(lookup, from + i, to + i * 2);
}

}  // namespace

// bf16 is read as it lies; f32 and fp16 caches go through the f32 kernels.
constinit const TileKernels kAvx512Bf16Tiles = {
    .bf16_elements = true,
    .absorbed_tile = 128,
    .absorbed = {fold_bf16<576, 512, 576>, fold_bf16<320, 256, 320>},
    .decompressed = {fold_bf16<192, 128, 128>, fold_bf16<256, 256, 256>, fold_bf16<128, 128, 128>,
                     fold_bf16<192, 192, 192>},
    .up_project = {up_project_bf16<512>, up_project_bf16<256>},
    .merge = merge_states<Vector>,
    .store_row = store_row_bf16,
    .index_scores = nullptr,  // the f32 kernels score index keys of every format
    .widen_bf16 = nullptr,
    .widen_fp16 = nullptr,
    .widen_e4m3 = widen_e4m3,
    .pack_rows = pack_rows};

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
