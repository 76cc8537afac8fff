// SPDX-License-Identifier: Apache-2.0
// Integer products on AVX-512 VNNI: vpdpbusd adds four products of unsigned and signed bytes to
// each of 16 sums of 32 bits, without saturation. Weight codes are made unsigned by half their
// range, which their start takes off. Sums are exact, so that the bits are those of
// integers_avx2.cpp.
#include "base/isa.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/rounded_inputs.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

namespace espalier::linalg {
ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512_VNNI)
namespace {

#include "base/simd_avx512.inc"

using Word [[gnu::may_alias]] = std::uint32_t;

struct VnniSums {
    using Ints = __m512i;
    using Floats = __m512;
    static constexpr int kMaxRows = 12;
    static constexpr int kSums = 12;  // and as many totals, of 32 registers
    static constexpr bool kKeepTotals = true;

    static Ints start(std::int32_t offset) { return _mm512_set1_epi32(offset); }
    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats load_total(const float* from) { return _mm512_loadu_ps(from); }
    static void store_total(float* to, Floats total) { _mm512_storeu_ps(to, total); }
    static Floats load_scales(const std::byte* from, bool bf16) {
        if (!bf16) return _mm512_loadu_ps(from);
        return f32_of_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static Floats shifted(float sum, Floats zero_point, Floats total) {
        return _mm512_fmadd_ps(_mm512_set1_ps(sum), zero_point, total);
    }
    static Floats finish(Ints acc, std::int32_t, float scale, Floats weight_scale, Floats total) {
        const __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(acc), _mm512_set1_ps(scale));
        return _mm512_fmadd_ps(sum, weight_scale, total);
    }
    // By hand, as in kernels_avx512_bf16.cpp: x is a memory operand.
    static Ints dot(Ints acc, __m512i weights, const std::byte* x) {
        asm("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(weights), "m"(*reinterpret_cast<const Word*>(x)));
        return acc;
    }
};

// Codes of a block and the sums of its halves.
inline __m256i round_codes(const std::byte* x, RoundedBlock& block, std::int32_t half_range) {
    const __m512i bits = _mm512_loadu_si512(x);
    const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    const __m256i of_16 = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes),
                                           _mm512_extracti64x4_epi64(magnitudes, 1));
    const __m128i of_8 =
        _mm_max_epu16(_mm256_castsi256_si128(of_16), _mm256_extracti128_si256(of_16, 1));
    const __m128i complement = _mm_xor_si128(of_8, _mm_set1_epi16(-1));
    const auto least = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(complement)));
    const BlockScale found = block_scale(~least & 0xffffu);
    __m256i codes = _mm256_setzero_si256();
    if (found.inverse != 0.0f) {
        const __m512 inverse = _mm512_set1_ps(found.inverse);
        const __m512i low =
            _mm512_cvtps_epi32(_mm512_mul_ps(f32_of_bf16(_mm512_castsi512_si256(bits)), inverse));
        const __m512i high = _mm512_cvtps_epi32(
            _mm512_mul_ps(f32_of_bf16(_mm512_extracti64x4_epi64(bits, 1)), inverse));
        codes = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
    }
    const __m256i sums = _mm256_sad_epu8(
        _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80))), _mm256_setzero_si256());
    const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
    constexpr std::int32_t kAdded = 128 * kRoundedInputs / 2;
    finish_block(block, found.scale,
                 _mm_cvtsi128_si32(first) + _mm_extract_epi16(first, 4) - kAdded,
                 _mm_cvtsi128_si32(second) + _mm_extract_epi16(second, 4) - kAdded, half_range);
    return codes;
}

struct VnniInt8 : VnniSums {
    using Packed = __m512i;
    static constexpr int kStepK = 4, kStepBytes = 64, kHalfRange = 128;

    // Two rows of pairs become one of fours.
    static Packed fours(__m512i pairs) {
        const __m512i order =
            _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                             22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        return _mm512_xor_si512(_mm512_permutexvar_epi16(order, pairs),
                                _mm512_set1_epi8(static_cast<char>(0x80)));
    }
    static Packed load(const std::byte* w) { return fours(_mm512_loadu_si512(w)); }
    static Packed load_part(const std::byte* w) {
        return fours(_mm512_maskz_loadu_epi16(0xffff, w));
    }
    static Ints step(Ints acc, Packed w, const std::byte* x) { return dot(acc, w, x); }
    static void round(const std::byte* x, RoundedBlock& block) {
        const __m256i codes = round_codes(x, block, kHalfRange);
        std::memcpy(block.codes, &codes, sizeof(codes));
    }
};

// Words of eight codes: those in the low halves of bytes are k 0, 4, 1, 5, the others 2, 6, 3, 7.
struct VnniInt4 : VnniSums {
    struct Packed {
        __m512i low, high;
    };
    static constexpr int kStepK = 8, kStepBytes = 64, kHalfRange = 8;

    static __m512i made_unsigned(__m512i words) {
        // (words ^ 0x88…) & 0x0f…
        return _mm512_ternarylogic_epi32(words, _mm512_set1_epi8(static_cast<char>(0x88)),
                                         _mm512_set1_epi8(0x0f), 0x28);
    }
    static Packed load(const std::byte* w) {
        const __m512i words = _mm512_loadu_si512(w);
        return {made_unsigned(words), made_unsigned(_mm512_srli_epi32(words, 4))};
    }
    static Ints step(Ints acc, const Packed& w, const std::byte* x) {
        return dot(dot(acc, w.low, x), w.high, x + 4);
    }
    static void round(const std::byte* x, RoundedBlock& block) {
        const __m256i dealt =
            _mm256_shuffle_epi8(round_codes(x, block, kHalfRange),
                                _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                    0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)));
        std::memcpy(block.codes, &dealt, sizeof(dealt));
    }
};

#include "linalg/integer_body.inc"

}  // namespace
ESPALIER_ISA_END

void take_avx512_integers(Microkernels& kernels) {
    kernels.integers_of(WeightCode::int8) = integer_kernels<VnniInt8>();
    kernels.integers_of(WeightCode::int4) = integer_kernels<VnniInt4>();
}

}  // namespace espalier::linalg
#endif
