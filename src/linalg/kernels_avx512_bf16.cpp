// SPDX-License-Identifier: Apache-2.0
// The AVX-512-BF16 variant: pairs of bf16 products straight into f32 (vdpbf16ps), x broadcast as a
// memory operand. f32 and f16 weights, which have no such instruction, use the AVX-512 kernels.
//
// vdpbf16ps treats subnormal inputs and results as zero. e4m3 loses nothing: its smallest value,
// 2⁻⁹, is a normal bf16.
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

using Word [[gnu::may_alias]] = std::uint32_t;

struct DotAcc {
    using Acc = __m512;
    using Packed = __m512i;
    static constexpr int kStepK = 2;
    static constexpr int kBytesPerK = 2;
    static constexpr int kMaxRows = kMaxTileRows;
    static constexpr int kAccumulators = 24;

    static Acc zero() { return _mm512_setzero_ps(); }
    static Acc load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, Acc acc) { _mm512_storeu_ps(to, acc); }
    static Acc multiply_add(Acc a, const float* scale, Acc b) {
        return _mm512_fmadd_ps(a, _mm512_loadu_ps(scale), b);
    }
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
    static constexpr int kScaleBlock = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        packed[0] = _mm512_loadu_si512(bytes);
    }
};

// Two permutes look up the low and the high byte of the bf16 of 64 codes, which is two steps.
struct DotE4m3 : DotAcc {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 2;
    static constexpr int kScaleBlock = kFp8Blocks.group_k;

    // codes: in each 16 bytes, eight of the first step and eight of the second.
    static void widen(__m512i codes, Packed (&packed)[2]) {
        const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kWidening.low), codes,
                                                     _mm512_load_si512(kWidening.low + 64));
        const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(kWidening.high), codes,
                                                      _mm512_load_si512(kWidening.high + 64));
        // high | (codes & 0x80)
        const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
        const __m512i with_sign = _mm512_ternarylogic_epi32(high, codes, sign, 0xf8);
        packed[0] = _mm512_unpacklo_epi8(low, with_sign);
        packed[1] = _mm512_unpackhi_epi8(low, with_sign);
    }
    static void unpack(const std::byte* bytes, Packed (&packed)[2]) {
        const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        widen(_mm512_permutexvar_epi64(order, _mm512_loadu_si512(bytes)), packed);
    }
    static Packed unpack_one(const std::byte* bytes) {
        const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
        Packed packed[2];
        widen(_mm512_permutexvar_epi64(order, _mm512_castsi256_si512(codes)), packed);
        return packed[0];
    }
};

#include "linalg/kernel_body.inc"

void fill_pairs(const std::byte* x, std::int64_t k, std::byte* tile_row) {
    std::memcpy(tile_row, x, static_cast<std::size_t>(k) * sizeof(Bf16));
    if (k % 2 != 0) std::memset(tile_row + k * 2, 0, sizeof(Bf16));
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
