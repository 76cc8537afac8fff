// SPDX-License-Identifier: Apache-2.0
// Tile folds in f32 for AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/isa.hpp"
#include "mla/cpu/tile_kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512)
namespace espalier::mla::cpu {
namespace {

// Each needs those above.
// clang-format off
#include "base/simd_avx512.inc"
#include "mla/cpu/avx512_vector.inc"
// clang-format on

// count is a multiple of 16.
void widen_bf16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(
            to + i,
            f32_of_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 2))));
}
void widen_fp16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(
            to + i,
            _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 2))));
}

void widen_e4m3(const std::byte* from, float scale, std::byte* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16) {
        const __m256i codes =
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        const __m512 exact = f32_of_e4m3(_mm256_slli_epi16(codes, 8));
        _mm512_storeu_ps(reinterpret_cast<float*>(to) + i,
                         _mm512_mul_ps(exact, _mm512_set1_ps(scale)));
    }
}

// Each needs those above.
// clang-format off
#include "mla/cpu/softmax_tile.inc"
#include "mla/cpu/f32_tile.inc"
// clang-format on

}  // namespace

constinit const TileKernels kAvx512Tiles = f32_tiles<Vector>();

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
