// SPDX-License-Identifier: Apache-2.0
// Tile folds for AVX2 with FMA and F16C: a 16-wide vector is two registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/isa.hpp"
#include "mla/cpu/tile_kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX2)
namespace espalier::mla::cpu {
namespace {

#include "base/simd_avx2.inc"

struct Vector {
    __m256 low;
    __m256 high;

    static constexpr int kScoreKeys = 4;  // 8 of the 16 registers hold sums
    static constexpr int kOutLanes = 4;
    static constexpr int kOutVectors = 1;

    static Vector set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Vector zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Vector load(const float* from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    void store(float* to) const {
        _mm256_storeu_ps(to, low);
        _mm256_storeu_ps(to + 8, high);
    }
    void store_fp16(std::byte* to) const {
        constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(low, kNearest));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm256_cvtps_ph(high, kNearest));
    }
    void store_bf16(std::byte* to) const {
        const __m256i packed = _mm256_packus_epi32(bf16_of_f32(low), bf16_of_f32(high));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    static Vector add(Vector a, Vector b) {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    static Vector sub(Vector a, Vector b) {
        return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
    }
    static Vector mul(Vector a, Vector b) {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    static Vector max(Vector a, Vector b) {
        return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
    }
    static Vector fma(Vector a, Vector b, Vector c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    static Vector if_below(Vector x, Vector limit, Vector yes, Vector no) {
        return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(x.low, limit.low, _CMP_LT_OQ)),
                _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(x.high, limit.high, _CMP_LT_OQ))};
    }
    static __m256 times_power(__m256 p, __m256 shifted) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
        return _mm256_mul_ps(
            p, _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000))));
    }
    // p · 2^n with n in the low bits of `shifted`.
    static Vector times_power(Vector p, Vector shifted) {
        return {times_power(p.low, shifted.low), times_power(p.high, shifted.high)};
    }
};

// count is a multiple of 16.
void widen_bf16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(
            to + i, f32_of_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 2))));
}
void widen_fp16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(
            to + i,
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 2))));
}

void widen_e4m3(const std::byte* from, float scale, std::byte* to, std::int64_t count) {
    auto* out = reinterpret_cast<float*>(to);
    for (std::int64_t i = 0; i < count; i += 16) {
        const __m256i codes =
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        const F32x16 exact = f32_of_e4m3(_mm256_slli_epi16(codes, 8));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(exact.low, _mm256_set1_ps(scale)));
        _mm256_storeu_ps(out + i + 8, _mm256_mul_ps(exact.high, _mm256_set1_ps(scale)));
    }
}

// Each needs those above.
// clang-format off
#include "mla/cpu/softmax_tile.inc"
#include "mla/cpu/f32_tile.inc"
// clang-format on

}  // namespace

constinit const TileKernels kAvx2Tiles = f32_tiles<Vector>();

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
