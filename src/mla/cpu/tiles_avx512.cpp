// SPDX-License-Identifier: Apache-2.0
// Tile folds in f32 for AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/isa.hpp"
#include "mla/cpu/tile_kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512)
namespace espalier::mla::cpu {
namespace {

#include "mla/cpu/avx512_vector.inc"

// count is a multiple of 16.
void widen_bf16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16) {
        const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 2));
        _mm512_storeu_ps(to + i,
                         _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16)));
    }
}
void widen_fp16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(
            to + i,
            _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 2))));
}

// A code's magnitude bits at the top of an f32 are its value · 2⁻¹²⁰, subnormals included.
void widen_e4m3(const std::byte* from, float scale, std::byte* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16) {
        const __m512i codes =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
        const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(codes, magnitude), 24);
        const __m512 value = _mm512_mul_ps(
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(magnitude, 20), sign)),
            _mm512_set1_ps(0x1p120f));
        const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
        const __m512 exact = _mm512_mask_blend_ps(nan, value, _mm512_set1_ps(__builtin_nanf("")));
        _mm512_storeu_ps(reinterpret_cast<float*>(to) + i,
                         _mm512_mul_ps(exact, _mm512_set1_ps(scale)));
    }
}

#include "mla/cpu/softmax_tile.inc"
// (needs the above)
#include "mla/cpu/f32_tile.inc"

}  // namespace

constinit const TileKernels kAvx512Tiles = ESPALIER_MLA_F32_TILES(Vector);

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
