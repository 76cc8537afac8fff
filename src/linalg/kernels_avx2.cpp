// SPDX-License-Identifier: Apache-2.0
// The AVX2 variant: a panel is two registers of 8 outputs, x is widened to f32 in the tile, one
// fused multiply-add per k.
#include "base/isa.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/product.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

namespace espalier::linalg {

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX2)
namespace {

#include "base/simd_avx2.inc"

using Halves = F32x16;  // the outputs of a panel

inline __m128i load_128(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
inline __m256i load_256(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

struct Avx2Acc {
    using Acc = Halves;
    static constexpr int kBytesPerK = 4;
    static constexpr int kMaxRows = 6;  // 12 of 16 registers; two for weights, one for x
    static constexpr int kAccumulators = 6;

    static Acc zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Acc broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Acc load(const float* from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    static void store(float* to, const Acc& acc) {
        _mm256_storeu_ps(to, acc.low);
        _mm256_storeu_ps(to + 8, acc.high);
    }
    static Halves load_scales(const std::byte* from, bool bf16) {
        if (bf16) return {f32_of_bf16(load_128(from)), f32_of_bf16(load_128(from + 16))};
        return load(reinterpret_cast<const float*>(from));
    }
    static Acc multiply_add(const Acc& a, const Halves& scale, const Acc& b) {
        return {_mm256_fmadd_ps(a.low, scale.low, b.low),
                _mm256_fmadd_ps(a.high, scale.high, b.high)};
    }
    static Acc add_product(const Acc& acc, const Halves& w, const std::byte* x) {
        const __m256 factor = _mm256_broadcast_ss(reinterpret_cast<const float*>(x));
        return {_mm256_fmadd_ps(factor, w.low, acc.low), _mm256_fmadd_ps(factor, w.high, acc.high)};
    }
};

struct Avx2F32 : Avx2Acc {
    using Packed = Halves;
    static constexpr int kStepK = 1, kStepBytes = 64;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        packed[0] = {_mm256_castsi256_ps(load_256(bytes)),
                     _mm256_castsi256_ps(load_256(bytes + 32))};
    }
    static Acc step(const Acc& acc, const Packed& w, const std::byte* x) {
        return add_product(acc, w, x);
    }
};

struct Avx2F16 : Avx2Acc {
    using Packed = Halves;
    static constexpr int kStepK = 1, kStepBytes = 32;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        packed[0] = {_mm256_cvtph_ps(load_128(bytes)), _mm256_cvtph_ps(load_128(bytes + 16))};
    }
    static Acc step(const Acc& acc, const Packed& w, const std::byte* x) {
        return add_product(acc, w, x);
    }
};

struct Avx2Pair : Avx2Acc {
    struct Packed {
        Halves even, odd;
    };
    static constexpr int kStepK = 2;
    static Acc step(const Acc& acc, const Packed& w, const std::byte* x) {
        return add_product(add_product(acc, w.even, x), w.odd, x + 4);
    }
};

struct Avx2Bf16 : Avx2Pair {
    static constexpr int kStepBytes = 64;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static __m256 even_of(__m256i pairs) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    }
    static __m256 odd_of(__m256i pairs) {
        return _mm256_castsi256_ps(
            _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        const __m256i low = load_256(bytes), high = load_256(bytes + 32);
        packed[0] = {{even_of(low), even_of(high)}, {odd_of(low), odd_of(high)}};
    }
};

// e4m3 has the bits of an f16 whose exponent is 8 too small, shifted by one: S EEEE MMM → S 0EEEE
// MMM0000000. Chains run over these f16 as they are, 2⁸ too small; a group's sum is put right
// before its scale, which changes no bit (a power of two) and saves two products per 16 weights.
// Packing has refused NaN, the one code that is no such number.
struct Avx2E4m3 : Avx2Pair {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = kFp8Blocks.group_k;
    static Acc multiply_add(const Acc& a, const Halves& scale, const Acc& b) {
        const __m256 rebias = _mm256_set1_ps(256.0f);
        return Avx2Acc::multiply_add({_mm256_mul_ps(a.low, rebias), _mm256_mul_ps(a.high, rebias)},
                                     scale, b);
    }
    // codes: 16 of 16 bits, the code in the high byte.
    static Halves widen(__m256i codes) {
        const __m256i half = _mm256_and_si256(_mm256_srai_epi16(codes, 1),
                                              _mm256_set1_epi16(static_cast<short>(0xbf80)));
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
    }
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        const __m256i codes = load_256(bytes);
        packed[0] = {widen(_mm256_slli_epi16(codes, 8)), widen(codes)};
    }
};

// Weights that Avx2E4m3 unpacks, unpacked before.
struct Avx2WidenedE4m3 : Avx2F32 {
    static constexpr int kLeastGroup = Avx2E4m3::kLeastGroup;
    static constexpr std::int64_t kTileStride = kWidenedTileStride;
    static Acc multiply_add(const Acc& a, const Halves& scale, const Acc& b) {
        return Avx2E4m3::multiply_add(a, scale, b);
    }
};

struct Avx2Int8 : Avx2Pair {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = kLeastScaleGroup;
    // pairs: 8 of 32 bits, their codes in the low half
    static __m256 even_of(__m256i pairs) {
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pairs, 24), 24));
    }
    static __m256 odd_of(__m256i pairs) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 8)); }
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        const __m256i low = _mm256_cvtepi16_epi32(load_128(bytes)),
                      high = _mm256_cvtepi16_epi32(load_128(bytes + 16));
        packed[0] = {{even_of(low), even_of(high)}, {odd_of(low), odd_of(high)}};
    }
};

// Words of eight 4-bit codes are four steps.
template <WeightCode kCode>
struct Avx2Nibbles : Avx2Pair {
    static constexpr int kStepBytes = 16;
    static constexpr int kGroup = 4;
    static constexpr int kLeastGroup = kLeastScaleGroup;
    // The code whose lowest bit is `bit` of every word.
    template <int bit>
    static __m256 code_at(__m256i words) {
        const __m256i top = _mm256_slli_epi32(words, 28 - bit);
        if constexpr (kCode == WeightCode::int4) {
            return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 28));
        } else {
            const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kE2m1.data()),
                                                              _mm256_srli_epi32(words, bit));
            const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(top), _mm256_set1_ps(-0.0f));
            return _mm256_xor_ps(magnitude, sign);
        }
    }
    template <int step>
    static Packed pair_at(__m256i low, __m256i high) {
        return {{code_at<4 * step>(low), code_at<4 * step>(high)},
                {code_at<4 * step + 16>(low), code_at<4 * step + 16>(high)}};
    }
    static void unpack(const std::byte* bytes, Packed (&packed)[4]) {
        const __m256i low = load_256(bytes), high = load_256(bytes + 32);
        packed[0] = pair_at<0>(low, high);
        packed[1] = pair_at<1>(low, high);
        packed[2] = pair_at<2>(low, high);
        packed[3] = pair_at<3>(low, high);
    }
};

// Weights that these unpack, unpacked before.
struct Avx2Widened : Avx2F32 {
    static constexpr int kLeastGroup = kLeastScaleGroup;
    static constexpr std::int64_t kTileStride = kWidenedTileStride;
};

#include "linalg/kernel_body.inc"

template <class Weight>
void widen(const std::byte* w, std::int64_t depth, float* to) {
    for (std::int64_t k = 0; k < depth; k += Weight::kStepK * Weight::kGroup) {
        typename Weight::Packed packed[Weight::kGroup];
        Weight::unpack(w, packed);
        for (const typename Weight::Packed& pair : packed) {
            Avx2Acc::store(to, pair.even);
            Avx2Acc::store(to + kPanel, pair.odd);
            to += Weight::kStepK * kPanel;
        }
        w += Weight::kStepBytes * Weight::kGroup;
    }
}

// From nine rows on weights are widened before.
template <class Weight, class Widened>
WeightKernels widening_kernels(FillRow fill_row) {
    WeightKernels kernels = kernels_for<Weight>(fill_row);
    kernels.widened = {.from_rows = 9, .widen = widen<Weight>, .tile = tiles_of<Widened>()};
    return kernels;
}

void fill_f32(const std::byte* x, std::int64_t k, std::int64_t, std::byte* tile_row) {
    std::memcpy(tile_row, x, static_cast<std::size_t>(k) * sizeof(float));
}

void fill_widened(const std::byte* x, std::int64_t k, std::int64_t padded, std::byte* tile_row) {
    auto* to = reinterpret_cast<float*>(tile_row);
    std::int64_t i = 0;
    for (; i + 8 <= k; i += 8) _mm256_storeu_ps(to + i, f32_of_bf16(load_128(x + 2 * i)));
    const auto* from = reinterpret_cast<const Bf16*>(x);
    for (; i < k; ++i) to[i] = to_float(from[i]);
    for (; i < padded; ++i) to[i] = 0.0f;
}

inline __m128i narrow_8(__m256 value, DType dtype) {
    if (dtype == DType::f16) return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    const __m256i bits = bf16_of_f32(value);
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

// Sixteen outputs at y, whatever is behind them.
inline void store_panel(const float* acc, std::byte* y, DType dtype, Store store) {
    const __m256 low = _mm256_loadu_ps(acc), high = _mm256_loadu_ps(acc + 8);
    if (dtype != DType::f32) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y), narrow_8(low, dtype));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 16), narrow_8(high, dtype));
        return;
    }
    auto* out = reinterpret_cast<float*>(y);
    const bool add = store == Store::accumulate;
    _mm256_storeu_ps(out, add ? _mm256_add_ps(_mm256_loadu_ps(out), low) : low);
    _mm256_storeu_ps(out + 8, add ? _mm256_add_ps(_mm256_loadu_ps(out + 8), high) : high);
}

void store_row(const float* acc, std::int64_t acc_stride, std::int64_t columns, std::byte* y,
               DType y_dtype, Store store) {
    const auto size = static_cast<std::int64_t>(bytes_of(y_dtype));
    for (; columns >= kPanel; columns -= kPanel, acc += acc_stride, y += kPanel * size)
        store_panel(acc, y, y_dtype, store);
    if (columns == 0) return;
    std::byte whole[kPanel * sizeof(float)] = {};
    std::memcpy(whole, y, static_cast<std::size_t>(columns * size));
    store_panel(acc, whole, y_dtype, store);
    std::memcpy(y, whole, static_cast<std::size_t>(columns * size));
}

float read_all(const std::byte* data, std::int64_t bytes) {
    __m256i sums[8];
    for (__m256i& sum : sums) sum = _mm256_setzero_si256();
    for (std::int64_t at = 0; at < bytes; at += 256) {
        ESPALIER_UNROLL
        for (int i = 0; i < 8; ++i)
            sums[i] = _mm256_add_epi32(sums[i], load_256(data + at + 32 * i));
    }
    ESPALIER_UNROLL
    for (int i = 1; i < 8; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
    return static_cast<float>(_mm256_extract_epi32(sums[0], 0));
}

constexpr int kSpinAccumulators = 12;

float spin(std::int64_t rounds) {
    __m256 acc[kSpinAccumulators];
    ESPALIER_UNROLL
    for (int i = 0; i < kSpinAccumulators; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
    const __m256 half = _mm256_set1_ps(0.5f);
    for (std::int64_t round = 0; round < rounds; ++round) {
        ESPALIER_UNROLL
        for (int i = 0; i < kSpinAccumulators; ++i) acc[i] = _mm256_fmadd_ps(acc[i], half, half);
    }
    ESPALIER_UNROLL
    for (int i = 1; i < kSpinAccumulators; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    return _mm256_cvtss_f32(acc[0]);
}

Microkernels make_table() {
    Microkernels kernels;
    kernels.of(WeightCode::f32) = kernels_for<Avx2F32>(fill_f32);
    kernels.of(WeightCode::f16) = kernels_for<Avx2F16>(fill_f32);
    kernels.of(WeightCode::bf16) = kernels_for<Avx2Bf16>(fill_widened);
    kernels.of(WeightCode::e4m3) = widening_kernels<Avx2E4m3, Avx2WidenedE4m3>(fill_widened);
    kernels.of(WeightCode::int8) = widening_kernels<Avx2Int8, Avx2Widened>(fill_widened);
    kernels.of(WeightCode::int4) =
        widening_kernels<Avx2Nibbles<WeightCode::int4>, Avx2Widened>(fill_widened);
    kernels.of(WeightCode::e2m1) =
        widening_kernels<Avx2Nibbles<WeightCode::e2m1>, Avx2Widened>(fill_widened);
    take_avx2_integers(kernels);
    kernels.store_row = store_row;
    kernels.read_all = read_all;
    kernels.spin_bf16 = spin;
    kernels.spin_f32 = spin;
    kernels.bf16_flops_per_round = 16.0 * kSpinAccumulators;
    kernels.f32_flops_per_round = 16.0 * kSpinAccumulators;
    return kernels;
}

}  // namespace
ESPALIER_ISA_END

const Microkernels& avx2_microkernels() {
    static const Microkernels table = make_table();
    return table;
}

}  // namespace espalier::linalg
#endif
