// SPDX-License-Identifier: Apache-2.0
// The AVX-512-BF16 variant: pairs of bf16 products straight into f32 (vdpbf16ps), x broadcast as a
// memory operand. f32 and f16 weights, which have no such instruction, use the AVX-512 kernels.
//
// vdpbf16ps treats subnormal inputs and results as zero. e4m3 loses nothing: its smallest value,
// 2⁻⁹, is a normal bf16; nor do integers and e2m1.
#include "base/isa.hpp"
#include "base/widening_table.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/product.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

namespace espalier::linalg {
ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512_BF16)
namespace {

#include "base/simd_avx512_bf16.inc"

using Word [[gnu::may_alias]] = std::uint32_t;

struct DotAcc {
    using Acc = __m512;
    using Packed = __m512i;
    static constexpr int kStepK = 2;
    static constexpr int kBytesPerK = 2;
    static constexpr int kMaxRows = kMaxTileRows;
    static constexpr int kAccumulators = 24;

    static Acc zero() { return _mm512_setzero_ps(); }
    static Acc broadcast(float value) { return _mm512_set1_ps(value); }
    static Acc load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, Acc acc) { _mm512_storeu_ps(to, acc); }
    static Acc load_scales(const std::byte* from, bool bf16) {
        if (!bf16) return _mm512_loadu_ps(from);
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    static Acc multiply_add(Acc a, Acc scale, Acc b) { return _mm512_fmadd_ps(a, scale, b); }
    // By hand: g++ 12 turns the intrinsic's broadcast into an instruction of its own, which halves
    // the speed.
    static Acc step(Acc acc, Packed w, const std::byte* x) {
        asm("vdpbf16ps %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(w), "m"(*reinterpret_cast<const Word*>(x)));
        return acc;
    }
};

struct DotBf16 : DotAcc {
    static constexpr int kStepBytes = 64;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        packed[0] = _mm512_loadu_si512(bytes);
    }
};

// 64 codes are two steps.
struct DotE4m3 : DotAcc {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 2;
    static constexpr int kLeastGroup = kFp8Blocks.group_k;

    static void unpack(const std::byte* bytes, Packed (&packed)[2]) {
        E4m3Lookup().widen(_mm512_loadu_si512(bytes), packed[0], packed[1]);
    }
    static Packed unpack_one(const std::byte* bytes) {
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
        Packed one, nothing;
        E4m3Lookup().widen(_mm512_castsi256_si512(codes), one, nothing);
        return one;
    }
};

// The low and the high byte of the bf16 of 1 … 127, and of 128 at 0.
constexpr WideningTable make_integer_table() {
    WideningTable table{};
    for (int code = 0; code < 128; ++code) {
        const Bf16 value = to_bf16(static_cast<float>(code == 0 ? 128 : code));
        table.low[code] = static_cast<std::uint8_t>(value.bits & 0xffu);
        table.high[code] = static_cast<std::uint8_t>(value.bits >> 8);
    }
    return table;
}
constexpr WideningTable kIntegers = make_integer_table();

// E4m3Lookup of magnitudes. The permutes look at seven bits of them and take 128 for 0, so that
// is what stands there; a code of 0 is masked instead, in the high byte alone: both have 0 in the
// low one.
struct Int8Lookup {
    __m512i low[2];
    __m512i high[2];
    __m512i order;
    __m512i sign;

    Int8Lookup() {
        low[0] = _mm512_load_si512(kIntegers.low);
        low[1] = _mm512_load_si512(kIntegers.low + 64);
        high[0] = _mm512_load_si512(kIntegers.high);
        high[1] = _mm512_load_si512(kIntegers.high + 64);
        order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        sign = _mm512_set1_epi8(static_cast<char>(0x80));
    }
    void widen(__m512i codes, __m512i& first, __m512i& second) const {
        const __m512i dealt = _mm512_permutexvar_epi64(order, codes);
        const __m512i magnitude = _mm512_abs_epi8(dealt);
        const __m512i low_bytes = _mm512_permutex2var_epi8(low[0], magnitude, low[1]);
        // the looked-up magnitude | (codes & sign)
        const __m512i high_bytes = _mm512_ternarylogic_epi32(
            _mm512_maskz_permutex2var_epi8(_mm512_test_epi8_mask(dealt, dealt), high[0], magnitude,
                                           high[1]),
            dealt, sign, 0xf8);
        first = _mm512_unpacklo_epi8(low_bytes, high_bytes);
        second = _mm512_unpackhi_epi8(low_bytes, high_bytes);
    }
};

struct DotInt8 : DotAcc {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 2;
    static constexpr int kLeastGroup = kLeastScaleGroup;

    // Groups are whole steps of both; the last one need not be.
    static void unpack(const std::byte* bytes, Packed (&packed)[2]) {
        Int8Lookup().widen(_mm512_loadu_si512(bytes), packed[0], packed[1]);
    }
    static Packed unpack_one(const std::byte* bytes) {
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
        Packed one, nothing;
        Int8Lookup().widen(_mm512_castsi256_si512(codes), one, nothing);
        return one;
    }
};

// The bf16 of every 4-bit code, twice: a permute's index has five bits, the highest of which
// belongs to the next code.
struct NibbleTable {
    alignas(64) std::uint16_t value[32];
};
template <WeightCode kCode>
constexpr NibbleTable make_nibble_table() {
    NibbleTable table{};
    for (int i = 0; i < 32; ++i) {
        const int code = i % 16;
        const bool negative = code >= 8;
        float value = static_cast<float>(negative ? code - 16 : code);
        if (kCode == WeightCode::e2m1)
            value = negative ? -kE2m1[static_cast<std::size_t>(code - 8)]
                             : kE2m1[static_cast<std::size_t>(code)];
        table.value[i] = to_bf16(value).bits;
    }
    return table;
}
template <WeightCode kCode>
constexpr NibbleTable kNibbles = make_nibble_table<kCode>();

// Words of eight 4-bit codes are four steps: a shift brings a pair to the bottom of both halves.
template <WeightCode kCode>
struct DotNibbles : DotAcc {
    static constexpr int kStepBytes = 16;
    static constexpr int kGroup = 4;
    static constexpr int kLeastGroup = kLeastScaleGroup;

    static void unpack(const std::byte* bytes, Packed (&packed)[4]) {
        const __m512i table = _mm512_load_si512(kNibbles<kCode>.value);
        const __m512i words = _mm512_loadu_si512(bytes);
        packed[0] = _mm512_permutexvar_epi16(words, table);
        packed[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
        packed[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
        packed[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
    }
};

#include "linalg/kernel_body.inc"

void fill_pairs(const std::byte* x, std::int64_t k, std::int64_t padded, std::byte* tile_row) {
    std::memcpy(tile_row, x, static_cast<std::size_t>(k) * sizeof(Bf16));
    std::memset(tile_row + k * 2, 0, static_cast<std::size_t>(padded - k) * sizeof(Bf16));
}

constexpr int kSpinAccumulators = 24;

float spin(std::int64_t rounds) {
    alignas(64) static constexpr std::uint32_t kHalf[1] = {0x3f003f00u};
    __m512 acc[kSpinAccumulators];
    ESPALIER_UNROLL
    for (int i = 0; i < kSpinAccumulators; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
    const __m512i half = _mm512_set1_epi32(0x3f003f00);
    for (std::int64_t round = 0; round < rounds; ++round) {
        ESPALIER_UNROLL
        for (int i = 0; i < kSpinAccumulators; ++i)
            acc[i] = DotAcc::step(acc[i], half, reinterpret_cast<const std::byte*>(kHalf));
    }
    ESPALIER_UNROLL
    for (int i = 1; i < kSpinAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    return _mm512_cvtss_f32(acc[0]);
}

Microkernels make_table() {
    Microkernels kernels = avx512_microkernels();
    kernels.of(WeightCode::bf16) = kernels_for<DotBf16>(fill_pairs);
    kernels.of(WeightCode::e4m3) = kernels_for<DotE4m3>(fill_pairs);
    kernels.of(WeightCode::int8) = kernels_for<DotInt8>(fill_pairs);
    kernels.of(WeightCode::int4) = kernels_for<DotNibbles<WeightCode::int4>>(fill_pairs);
    kernels.of(WeightCode::e2m1) = kernels_for<DotNibbles<WeightCode::e2m1>>(fill_pairs);
    kernels.spin_bf16 = spin;
    kernels.bf16_flops_per_round = 64.0 * kSpinAccumulators;
    return kernels;
}

}  // namespace
ESPALIER_ISA_END

const Microkernels& avx512_bf16_microkernels() {
    static const Microkernels table = make_table();
    return table;
}

}  // namespace espalier::linalg
#endif
