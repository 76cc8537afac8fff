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

// 64 codes are two steps.
struct DotE4m3 : DotAcc {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 2;
    static constexpr int kScaleBlock = kFp8Blocks.group_k;

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
