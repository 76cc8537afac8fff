// SPDX-License-Identifier: Apache-2.0
// The vector conversions against the definitions in base/numeric.hpp: every e4m3 code, every bf16,
// and f32 numbers around every rounding that matters.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/cpu_features.hpp"
#include "base/isa.hpp"
#include "base/numeric.hpp"
#include "base/widening_table.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace espalier {
namespace {

// Sixteen at a time, of any instruction set.
using FromCodes = void (*)(const std::uint8_t* codes, float* out);
using FromBf16 = void (*)(const std::uint16_t* bits, float* out);
using ToBf16 = void (*)(const float* values, std::uint16_t* out);

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX2)
namespace avx2 {
namespace {
#include "base/simd_avx2.inc"

void from_codes(const std::uint8_t* codes, float* out) {
    const __m256i wide =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const F32x16 numbers = f32_of_e4m3(_mm256_slli_epi16(wide, 8));
    _mm256_storeu_ps(out, numbers.low);
    _mm256_storeu_ps(out + 8, numbers.high);
}
void from_bf16(const std::uint16_t* bits, float* out) {
    for (int half = 0; half < 16; half += 8)
        _mm256_storeu_ps(
            out + half,
            f32_of_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits + half))));
}
void to_bf16(const float* values, std::uint16_t* out) {
    for (int half = 0; half < 16; half += 8) {
        std::uint32_t wide[8];
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(wide),
                            bf16_of_f32(_mm256_loadu_ps(values + half)));
        for (int i = 0; i < 8; ++i) out[half + i] = static_cast<std::uint16_t>(wide[i]);
    }
}
}  // namespace
}  // namespace avx2
ESPALIER_ISA_END

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512)
namespace avx512 {
namespace {
#include "base/simd_avx512.inc"

void from_codes(const std::uint8_t* codes, float* out) {
    const __m256i wide =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    _mm512_storeu_ps(out, f32_of_e4m3(_mm256_slli_epi16(wide, 8)));
}
void from_bf16(const std::uint16_t* bits, float* out) {
    _mm512_storeu_ps(out, f32_of_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits))));
}
void to_bf16(const float* values, std::uint16_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bf16_of_f32(_mm512_loadu_ps(values)));
}
}  // namespace
}  // namespace avx512
ESPALIER_ISA_END

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512_BF16)
namespace avx512_bf16 {
namespace {
#include "base/simd_avx512_bf16.inc"

void widen_64(const std::uint8_t* codes, std::uint16_t* out) {
    __m512i first, second;
    E4m3Lookup().widen(_mm512_loadu_si512(codes), first, second);
    _mm512_storeu_si512(out, first);
    _mm512_storeu_si512(out + 32, second);
}
}  // namespace
}  // namespace avx512_bf16
ESPALIER_ISA_END

struct Conversions {
    CpuVariant variant;
    FromCodes from_codes;
    FromBf16 from_bf16;
    ToBf16 to_bf16;
};

std::vector<Conversions> conversions() {
    std::vector<Conversions> all;
    if (best_cpu_variant() >= CpuVariant::avx2)
        all.push_back({CpuVariant::avx2, avx2::from_codes, avx2::from_bf16, avx2::to_bf16});
    if (best_cpu_variant() >= CpuVariant::avx512)
        all.push_back({CpuVariant::avx512, avx512::from_codes, avx512::from_bf16, avx512::to_bf16});
    return all;
}

bool same(float a, float b) {
    return std::isnan(a) ? std::isnan(b)
                         : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST(Simd, EveryE4m3CodeBecomesItsNumber) {
    for (const Conversions& of : conversions())
        for (unsigned first = 0; first < 256; first += 16) {
            std::uint8_t codes[16];
            float got[16];
            for (unsigned i = 0; i < 16; ++i) codes[i] = static_cast<std::uint8_t>(first + i);
            of.from_codes(codes, got);
            for (unsigned i = 0; i < 16; ++i)
                EXPECT_TRUE(same(got[i], to_float(E4m3{codes[i]})))
                    << name_of(of.variant) << ", code " << first + i << ": " << got[i];
        }
    if (best_cpu_variant() < CpuVariant::avx512_bf16) return;
    for (unsigned first = 0; first < 256; first += 64) {
        std::uint8_t codes[64];
        std::uint16_t got[64];
        for (unsigned i = 0; i < 64; ++i) codes[i] = static_cast<std::uint8_t>(first + i);
        avx512_bf16::widen_64(codes, got);
        for (unsigned i = 0; i < 64; ++i)
            EXPECT_TRUE(same(to_float(Bf16{got[i]}), to_float(E4m3{codes[i]})))
                << "code " << first + i;
    }
}

TEST(Simd, EveryBf16BecomesItsNumber) {
    for (const Conversions& of : conversions())
        for (unsigned first = 0; first < 0x10000; first += 16) {
            std::uint16_t bits[16];
            float got[16];
            for (unsigned i = 0; i < 16; ++i) bits[i] = static_cast<std::uint16_t>(first + i);
            of.from_bf16(bits, got);
            for (unsigned i = 0; i < 16; ++i)
                ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), (first + i) << 16)
                    << name_of(of.variant);
        }
}

// Around every bf16: the number itself, its neighbours in f32, and both sides of the half way.
TEST(Simd, F32RoundsToBf16AsDefined) {
    constexpr std::uint32_t kBelow[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (const Conversions& of : conversions())
        for (const std::uint32_t below : kBelow)
            for (unsigned first = 0; first < 0x10000; first += 16) {
                float values[16];
                std::uint16_t got[16];
                for (unsigned i = 0; i < 16; ++i)
                    values[i] = std::bit_cast<float>((first + i) << 16 | below);
                of.to_bf16(values, got);
                for (unsigned i = 0; i < 16; ++i)
                    ASSERT_EQ(got[i], to_bf16(values[i]).bits)
                        << name_of(of.variant) << ": " << std::hex << ((first + i) << 16 | below);
            }
}

}  // namespace
}  // namespace espalier
#endif
