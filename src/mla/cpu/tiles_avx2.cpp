// SPDX-License-Identifier: Apache-2.0
// Tile folds for AVX2 with FMA and F16C: a 16-wide vector is two registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/isa.hpp"
#include "mla/cpu/tile_kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX2)
namespace espalier::mla::cpu {
namespace {

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
    // The bf16 bits in the low half of each element. To nearest even; a NaN stays one.
    static __m256i bf16_of(__m256 value) {
        const __m256i bits = _mm256_castps_si256(value);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded =
            _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256 chosen =
            _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
                             _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
        return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
    }
    void store_bf16(std::byte* to) const {
        const __m256i packed = _mm256_packus_epi32(bf16_of(low), bf16_of(high));
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

// count is a multiple of 8.
void widen_bf16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 8) {
        const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 2));
        _mm256_storeu_ps(to + i,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16)));
    }
}
void widen_fp16(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(
            to + i,
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 2))));
}

// A code's magnitude bits at the top of an f32 are its value · 2⁻¹²⁰, subnormals included.
void widen_e4m3(const std::byte* from, float scale, std::byte* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 8) {
        const __m256i codes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i)));
        const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
        const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(codes, magnitude), 24);
        const __m256 value = _mm256_mul_ps(
            _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(magnitude, 20), sign)),
            _mm256_set1_ps(0x1p120f));
        const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
        const __m256 exact =
            _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), _mm256_castsi256_ps(nan));
        _mm256_storeu_ps(reinterpret_cast<float*>(to) + i,
                         _mm256_mul_ps(exact, _mm256_set1_ps(scale)));
    }
}

#include "mla/cpu/softmax_tile.inc"
// (needs the above)
#include "mla/cpu/f32_tile.inc"

}  // namespace

constinit const TileKernels kAvx2Tiles = ESPALIER_MLA_F32_TILES(Vector);

}  // namespace espalier::mla::cpu
ESPALIER_ISA_END
#endif
