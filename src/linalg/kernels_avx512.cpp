// SPDX-License-Identifier: Apache-2.0
// The AVX-512 variant: a panel is one register, x is widened to f32 in the tile and broadcast as an
// operand of the fused multiply-add, one per k.
#include "base/isa.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/product.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

namespace espalier::linalg {

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512)
namespace {

#include "base/simd_avx512.inc"

inline __m256i load_256(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

struct Avx512Acc {
    using Acc = __m512;
    static constexpr int kBytesPerK = 4;
    static constexpr int kMaxRows = kMaxTileRows;
    static constexpr int kAccumulators = 24;

    static Acc zero() { return _mm512_setzero_ps(); }
    static Acc broadcast(float value) { return _mm512_set1_ps(value); }
    static Acc load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, Acc acc) { _mm512_storeu_ps(to, acc); }
    static Acc load_scales(const std::byte* from, bool bf16) {
        return bf16 ? f32_of_bf16(load_256(from)) : _mm512_loadu_ps(from);
    }
    static Acc multiply_add(Acc a, Acc scale, Acc b) { return _mm512_fmadd_ps(a, scale, b); }
    static Acc add_product(Acc acc, __m512 w, const std::byte* x) {
        return _mm512_fmadd_ps(_mm512_set1_ps(*reinterpret_cast<const float*>(x)), w, acc);
    }
};

struct Avx512F32 : Avx512Acc {
    using Packed = __m512;
    static constexpr int kStepK = 1, kStepBytes = 64;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        packed[0] = _mm512_loadu_ps(bytes);
    }
    static Acc step(Acc acc, Packed w, const std::byte* x) { return add_product(acc, w, x); }
};

struct Avx512F16 : Avx512Acc {
    using Packed = __m512;
    static constexpr int kStepK = 1, kStepBytes = 32;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        packed[0] = _mm512_cvtph_ps(load_256(bytes));
    }
    static Acc step(Acc acc, Packed w, const std::byte* x) { return add_product(acc, w, x); }
};

struct Avx512Pair : Avx512Acc {
    struct Packed {
        __m512 even, odd;
    };
    static constexpr int kStepK = 2;
    static Acc step(Acc acc, const Packed& w, const std::byte* x) {
        return add_product(add_product(acc, w.even, x), w.odd, x + 4);
    }
};

struct Avx512Bf16 : Avx512Pair {
    static constexpr int kStepBytes = 64;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        const __m512i pairs = _mm512_loadu_si512(bytes);
        const __m512i odd =
            _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
        packed[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), _mm512_castsi512_ps(odd)};
    }
};

struct Avx512E4m3 : Avx512Pair {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = kFp8Blocks.group_k;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        const __m256i codes = load_256(bytes);
        packed[0] = {f32_of_e4m3(_mm256_slli_epi16(codes, 8)),
                     f32_of_e4m3(_mm256_andnot_si256(_mm256_set1_epi16(0x00ff), codes))};
    }
};

struct Avx512Int8 : Avx512Pair {
    static constexpr int kStepBytes = 32;
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = kLeastScaleGroup;
    static void unpack(const std::byte* bytes, Packed (&packed)[1]) {
        const __m512i pairs = _mm512_cvtepi16_epi32(load_256(bytes));
        packed[0] = {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24)),
                     _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8))};
    }
};

struct NibbleTable {
    alignas(64) float value[16];
};
template <WeightCode kCode>
constexpr NibbleTable make_nibble_table() {
    NibbleTable table{};
    for (int code = 0; code < 16; ++code) {
        const bool negative = code >= 8;
        if (kCode == WeightCode::int4)
            table.value[code] = static_cast<float>(negative ? code - 16 : code);
        else
            table.value[code] = negative ? -kE2m1[static_cast<std::size_t>(code - 8)]
                                         : kE2m1[static_cast<std::size_t>(code)];
    }
    return table;
}
template <WeightCode kCode>
inline constexpr NibbleTable kNibbles = make_nibble_table<kCode>();

// Words of eight 4-bit codes are four steps; a permute looks at the lowest four bits of its index.
template <WeightCode kCode>
struct Avx512Nibbles : Avx512Pair {
    static constexpr int kStepBytes = 16;
    static constexpr int kGroup = 4;
    static constexpr int kLeastGroup = kLeastScaleGroup;
    static void unpack(const std::byte* bytes, Packed (&packed)[4]) {
        const __m512 table = _mm512_load_ps(kNibbles<kCode>.value);
        const __m512i words = _mm512_loadu_si512(bytes);
        const auto code_at = [&](unsigned bit) {
            return _mm512_permutexvar_ps(_mm512_srli_epi32(words, bit), table);
        };
        packed[0] = {_mm512_permutexvar_ps(words, table), code_at(16)};
        packed[1] = {code_at(4), code_at(20)};
        packed[2] = {code_at(8), code_at(24)};
        packed[3] = {code_at(12), code_at(28)};
    }
};

#include "linalg/kernel_body.inc"

void fill_f32(const std::byte* x, std::int64_t k, std::int64_t, std::byte* tile_row) {
    std::memcpy(tile_row, x, static_cast<std::size_t>(k) * sizeof(float));
}

void fill_widened(const std::byte* x, std::int64_t k, std::int64_t padded, std::byte* tile_row) {
    auto* to = reinterpret_cast<float*>(tile_row);
    std::int64_t i = 0;
    for (; i + 16 <= k; i += 16) _mm512_storeu_ps(to + i, f32_of_bf16(load_256(x + 2 * i)));
    const auto* from = reinterpret_cast<const Bf16*>(x);
    for (; i < k; ++i) to[i] = to_float(from[i]);
    for (; i < padded; ++i) to[i] = 0.0f;
}

inline void store_panel(const float* acc, std::byte* y, __mmask16 lanes, DType dtype, Store store) {
    const __m512 value = _mm512_loadu_ps(acc);
    if (dtype == DType::f32) {
        const bool add = store == Store::accumulate;
        _mm512_mask_storeu_ps(y, lanes,
                              add ? _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, y), value) : value);
    } else {
        const __m256i narrow = dtype == DType::bf16
                                   ? bf16_of_f32(value)
                                   : _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(y, lanes, narrow);
    }
}

void store_row(const float* acc, std::int64_t acc_stride, std::int64_t columns, std::byte* y,
               DType y_dtype, Store store) {
    const auto panel_bytes = kPanel * static_cast<std::int64_t>(bytes_of(y_dtype));
    for (; columns > 0; columns -= kPanel, acc += acc_stride, y += panel_bytes) {
        const auto lanes = static_cast<__mmask16>(columns >= kPanel ? 0xffff : (1 << columns) - 1);
        store_panel(acc, y, lanes, y_dtype, store);
    }
}

float read_all(const std::byte* data, std::int64_t bytes) {
    __m512i sums[8];
    ESPALIER_UNROLL
    for (int i = 0; i < 8; ++i) sums[i] = _mm512_setzero_si512();
    for (std::int64_t at = 0; at < bytes; at += 512) {
        ESPALIER_UNROLL
        for (int i = 0; i < 8; ++i)
            sums[i] = _mm512_add_epi32(sums[i], _mm512_loadu_si512(data + at + 64 * i));
    }
    ESPALIER_UNROLL
    for (int i = 1; i < 8; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
    // Or, not add: a scalar sum of arbitrary data would overflow an int.
    return static_cast<float>(_mm512_reduce_or_epi32(sums[0]));
}

constexpr int kSpinAccumulators = 24;

float spin(std::int64_t rounds) {
    __m512 acc[kSpinAccumulators];
    ESPALIER_UNROLL
    for (int i = 0; i < kSpinAccumulators; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
    const __m512 half = _mm512_set1_ps(0.5f);
    for (std::int64_t round = 0; round < rounds; ++round) {
        ESPALIER_UNROLL
        for (int i = 0; i < kSpinAccumulators; ++i) acc[i] = _mm512_fmadd_ps(acc[i], half, half);
    }
    ESPALIER_UNROLL
    for (int i = 1; i < kSpinAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    return _mm512_cvtss_f32(acc[0]);
}

Microkernels make_table() {
    Microkernels kernels;
    kernels.of(WeightCode::f32) = kernels_for<Avx512F32>(fill_f32);
    kernels.of(WeightCode::f16) = kernels_for<Avx512F16>(fill_f32);
    kernels.of(WeightCode::bf16) = kernels_for<Avx512Bf16>(fill_widened);
    kernels.of(WeightCode::e4m3) = kernels_for<Avx512E4m3>(fill_widened);
    kernels.of(WeightCode::int8) = kernels_for<Avx512Int8>(fill_widened);
    kernels.of(WeightCode::int4) = kernels_for<Avx512Nibbles<WeightCode::int4>>(fill_widened);
    kernels.of(WeightCode::e2m1) = kernels_for<Avx512Nibbles<WeightCode::e2m1>>(fill_widened);
    has_avx512_vnni() ? take_avx512_integers(kernels) : take_avx2_integers(kernels);
    kernels.store_row = store_row;
    kernels.read_all = read_all;
    kernels.spin_bf16 = spin;
    kernels.spin_f32 = spin;
    kernels.bf16_flops_per_round = 32.0 * kSpinAccumulators;
    kernels.f32_flops_per_round = 32.0 * kSpinAccumulators;
    return kernels;
}

}  // namespace
ESPALIER_ISA_END

const Microkernels& avx512_microkernels() {
    static const Microkernels table = make_table();
    return table;
}

}  // namespace espalier::linalg
#endif
