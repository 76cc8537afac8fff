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

#include "mla/cpu/softmax_tile.inc"
// (needs the above)
#include "mla/cpu/f32_tile.inc"

}  // namespace

constinit const TileKernels kAvx512Tiles = ESPALIER_MLA_F32_TILES(Vector);

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
