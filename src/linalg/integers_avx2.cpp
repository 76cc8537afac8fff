// SPDX-License-Identifier: Apache-2.0
// Integer products on AVX2: vpmaddubsw adds two products of unsigned and signed bytes in 16 bits.
// INT8 weights go in as magnitudes, their signs with x: 2 · 128 · 127 fits. INT4 codes are made
// unsigned: a block's 16 sums of two, at most 16 · 15 · 127, fit 16 bits too.
#include "base/isa.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/rounded_inputs.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

namespace espalier::linalg {
ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX2)
namespace {

#include "base/simd_avx2.inc"

inline __m256i load_256(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
inline __m256i four_bytes(const std::byte* at) {
    std::int32_t word;
    std::memcpy(&word, at, sizeof(word));
    return _mm256_set1_epi32(word);
}

struct MaddSums {
    struct Ints {
        __m256i low, high;
    };
    using Floats = F32x16;
    static constexpr int kMaxRows = 4;  // 8 of 16 registers
    static constexpr int kSums = 4;
    static constexpr bool kKeepTotals = false;

    static Ints start(std::int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Floats load_total(const float* from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    static void store_total(float* to, const Floats& total) {
        _mm256_storeu_ps(to, total.low);
        _mm256_storeu_ps(to + 8, total.high);
    }
    static Floats load_scales(const std::byte* from, bool bf16) {
        if (!bf16) return load_total(reinterpret_cast<const float*>(from));
        const auto* halves = reinterpret_cast<const __m128i*>(from);
        return {f32_of_bf16(_mm_loadu_si128(halves)), f32_of_bf16(_mm_loadu_si128(halves + 1))};
    }
    static Floats shifted(float sum, const Floats& zero_point, const Floats& total) {
        const __m256 all = _mm256_set1_ps(sum);
        return {_mm256_fmadd_ps(all, zero_point.low, total.low),
                _mm256_fmadd_ps(all, zero_point.high, total.high)};
    }
    static Floats add(__m256 low, __m256 high, float scale, const Floats& weight_scale,
                      const Floats& total) {
        const __m256 all = _mm256_set1_ps(scale);
        return {_mm256_fmadd_ps(_mm256_mul_ps(low, all), weight_scale.low, total.low),
                _mm256_fmadd_ps(_mm256_mul_ps(high, all), weight_scale.high, total.high)};
    }
};

// Codes of a block and the sums of its halves.
inline __m256i round_codes(const std::byte* x, RoundedBlock& block, std::int32_t half_range) {
    const __m256i low = load_256(x), high = load_256(x + 32);
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    const __m256i of_16 =
        _mm256_max_epu16(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
    const __m128i of_8 =
        _mm_max_epu16(_mm256_castsi256_si128(of_16), _mm256_extracti128_si256(of_16, 1));
    const __m128i complement = _mm_xor_si128(of_8, _mm_set1_epi16(-1));
    const auto least = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(complement)));
    const BlockScale found = block_scale(~least & 0xffffu);
    __m256i codes = _mm256_setzero_si256();
    if (found.inverse != 0.0f) {
        const __m256 inverse = _mm256_set1_ps(found.inverse);
        const auto eight = [&](__m128i bits) {
            return _mm256_cvtps_epi32(_mm256_mul_ps(f32_of_bf16(bits), inverse));
        };
        const __m256i first = _mm256_packs_epi32(eight(_mm256_castsi256_si128(low)),
                                                 eight(_mm256_extracti128_si256(low, 1)));
        const __m256i second = _mm256_packs_epi32(eight(_mm256_castsi256_si128(high)),
                                                  eight(_mm256_extracti128_si256(high, 1)));
        codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second),
                                            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
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

// Fours of outputs 0–3 and 8–11, and of 4–7 and 12–15.
struct MaddInt8 : MaddSums {
    struct Packed {
        Ints codes, magnitudes;
    };
    static constexpr int kStepK = 4, kStepBytes = 64, kHalfRange = 128;

    static Packed fours(__m256i first, __m256i second) {
        const Ints codes{_mm256_unpacklo_epi16(first, second),
                         _mm256_unpackhi_epi16(first, second)};
        return {codes, {_mm256_abs_epi8(codes.low), _mm256_abs_epi8(codes.high)}};
    }
    static Packed load(const std::byte* w) { return fours(load_256(w), load_256(w + 32)); }
    static Packed load_part(const std::byte* w) {
        return fours(load_256(w), _mm256_setzero_si256());
    }
    static __m256i dot(__m256i acc, __m256i codes, __m256i magnitudes, __m256i x) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, codes));
        return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static Ints step(const Ints& acc, const Packed& w, const std::byte* at) {
        const __m256i x = four_bytes(at);
        return {dot(acc.low, w.codes.low, w.magnitudes.low, x),
                dot(acc.high, w.codes.high, w.magnitudes.high, x)};
    }
    static Floats finish(const Ints& acc, std::int32_t, float scale, const Floats& weight_scale,
                         const Floats& total) {
        const __m256 low = _mm256_cvtepi32_ps(acc.low), high = _mm256_cvtepi32_ps(acc.high);
        return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31),
                   scale, weight_scale, total);
    }
    static void round(const std::byte* x, RoundedBlock& block) {
        const __m256i codes = round_codes(x, block, kHalfRange);
        std::memcpy(block.codes, &codes, sizeof(codes));
    }
};

// Sums stay in 16 bits for a block.
struct MaddInt4 : MaddSums {
    struct Packed {
        Ints low, high;  // codes in the low and the high halves of bytes
    };
    static constexpr int kStepK = 8, kStepBytes = 64, kHalfRange = 8;

    static __m256i made_unsigned(__m256i words) {
        return _mm256_and_si256(_mm256_xor_si256(words, _mm256_set1_epi8(static_cast<char>(0x88))),
                                _mm256_set1_epi8(0x0f));
    }
    static Packed load(const std::byte* w) {
        const __m256i low = load_256(w), high = load_256(w + 32);
        return {
            {made_unsigned(low), made_unsigned(high)},
            {made_unsigned(_mm256_srli_epi32(low, 4)), made_unsigned(_mm256_srli_epi32(high, 4))}};
    }
    static Ints step(const Ints& acc, const Packed& w, const std::byte* at) {
        const __m256i first = four_bytes(at), second = four_bytes(at + 4);
        const auto both = [&](__m256i sum, __m256i low, __m256i high) {
            return _mm256_add_epi16(sum, _mm256_add_epi16(_mm256_maddubs_epi16(low, first),
                                                          _mm256_maddubs_epi16(high, second)));
        };
        return {both(acc.low, w.low.low, w.high.low), both(acc.high, w.low.high, w.high.high)};
    }
    static Floats finish(const Ints& acc, std::int32_t offset, float scale,
                         const Floats& weight_scale, const Floats& total) {
        const auto wide = [&](__m256i sums) {
            return _mm256_cvtepi32_ps(_mm256_add_epi32(
                _mm256_madd_epi16(sums, _mm256_set1_epi16(1)), _mm256_set1_epi32(offset)));
        };
        return add(wide(acc.low), wide(acc.high), scale, weight_scale, total);
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

void take_avx2_integers(Microkernels& kernels) {
    kernels.integers_of(WeightCode::int8) = integer_kernels<MaddInt8>();
    kernels.integers_of(WeightCode::int4) = integer_kernels<MaddInt4>();
}

}  // namespace espalier::linalg
#endif
