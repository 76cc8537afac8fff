// SPDX-License-Identifier: Apache-2.0
// The portable variant: plain loops over the 16 outputs of a panel. A product is rounded, then
// added.
#include <cstring>
#include <utility>

#include "linalg/e4m3_table.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/product.hpp"

namespace espalier::linalg {
namespace {

struct Lanes {
    float value[kPanel];
};

inline float widened(float value) { return value; }
inline float widened(Fp16 value) { return to_float(value); }
inline float widened(Bf16 value) { return to_float(value); }
inline float widened(E4m3 value) { return kE4m3Values[value.bits]; }
inline float widened(std::int8_t value) { return static_cast<float>(value); }

struct PlainAcc {
    using Acc = Lanes;
    static constexpr int kBytesPerK = 4;
    static constexpr int kMaxRows = 4;
    static constexpr int kAccumulators = 4;

    static Acc zero() { return Acc{}; }
    static Acc broadcast(float value) {
        Acc acc;
        for (float& lane : acc.value) lane = value;
        return acc;
    }
    static Acc load(const float* from) {
        Acc acc;
        std::memcpy(acc.value, from, sizeof(acc.value));
        return acc;
    }
    static void store(float* to, const Acc& acc) { std::memcpy(to, acc.value, sizeof(acc.value)); }
    static Lanes load_scales(const std::byte* from, bool bf16) {
        Lanes scales;
        for (int lane = 0; lane < kPanel; ++lane)
            scales.value[lane] = load_element(from, bf16 ? DType::bf16 : DType::f32, lane);
        return scales;
    }
    static Acc multiply_add(const Acc& a, const Lanes& scale, Acc b) {
        for (int lane = 0; lane < kPanel; ++lane)
            b.value[lane] += a.value[lane] * scale.value[lane];
        return b;
    }
};

// One k per step: f32 and f16.
template <typename Element>
struct PlainSingle : PlainAcc {
    using Packed = Lanes;
    static constexpr int kStepK = 1;
    static constexpr int kStepBytes = static_cast<int>(kPanel * sizeof(Element));
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = 0;

    static void unpack(const std::byte* bytes, Packed (&out)[1]) {
        Element elements[kPanel];
        std::memcpy(elements, bytes, sizeof(elements));
        Packed& packed = out[0];
        for (int lane = 0; lane < kPanel; ++lane) packed.value[lane] = widened(elements[lane]);
    }
    static Acc step(Acc acc, const Packed& packed, const std::byte* x) {
        float factor;
        std::memcpy(&factor, x, sizeof(factor));
        for (int lane = 0; lane < kPanel; ++lane) acc.value[lane] += factor * packed.value[lane];
        return acc;
    }
};

// Two k per step: all that multiply bf16.
struct PlainPairs : PlainAcc {
    struct Packed {
        Lanes even, odd;
    };
    static constexpr int kStepK = 2;

    static Acc step(Acc acc, const Packed& packed, const std::byte* x) {
        float factors[2];
        std::memcpy(factors, x, sizeof(factors));
        for (int lane = 0; lane < kPanel; ++lane)
            acc.value[lane] += factors[0] * packed.even.value[lane];
        for (int lane = 0; lane < kPanel; ++lane)
            acc.value[lane] += factors[1] * packed.odd.value[lane];
        return acc;
    }
};

template <typename Element, int kSharing>
struct PlainPair : PlainPairs {
    static constexpr int kStepBytes = static_cast<int>(2 * kPanel * sizeof(Element));
    static constexpr int kGroup = 1;
    static constexpr int kLeastGroup = kSharing;

    static void unpack(const std::byte* bytes, Packed (&out)[1]) {
        Element elements[2 * kPanel];
        std::memcpy(elements, bytes, sizeof(elements));
        Packed& packed = out[0];
        for (int lane = 0; lane < kPanel; ++lane) {
            packed.even.value[lane] = widened(elements[2 * lane]);
            packed.odd.value[lane] = widened(elements[2 * lane + 1]);
        }
    }
};

// Words of eight 4-bit codes are four steps.
template <WeightCode kCode>
struct PlainNibbles : PlainPairs {
    static constexpr int kStepBytes = kPanel;
    static constexpr int kGroup = 4;
    static constexpr int kLeastGroup = kLeastScaleGroup;

    static void unpack(const std::byte* bytes, Packed (&out)[4]) {
        for (int k = 0; k < 8; ++k)
            for (int lane = 0; lane < kPanel; ++lane) {
                Lanes& to = k % 2 == 0 ? out[k / 2].even : out[k / 2].odd;
                to.value[lane] = load_weight(bytes, kCode, place_in_panel(kCode, k, lane));
            }
    }
};

#include "linalg/kernel_body.inc"

void fill_f32(const std::byte* x, std::int64_t k, std::int64_t, std::byte* tile_row) {
    std::memcpy(tile_row, x, static_cast<std::size_t>(k) * sizeof(float));
}

void fill_widened(const std::byte* x, std::int64_t k, std::int64_t padded, std::byte* tile_row) {
    const auto* from = reinterpret_cast<const Bf16*>(x);
    auto* to = reinterpret_cast<float*>(tile_row);
    for (std::int64_t i = 0; i < k; ++i) to[i] = to_float(from[i]);
    for (std::int64_t i = k; i < padded; ++i) to[i] = 0.0f;
}

template <typename Element, typename Convert>
void store_converted(const float* acc, std::int64_t acc_stride, std::int64_t columns, std::byte* y,
                     Convert convert) {
    auto* out = reinterpret_cast<Element*>(y);
    for (std::int64_t column = 0; column < columns; ++column)
        out[column] = convert(out[column], acc[column / kPanel * acc_stride + column % kPanel]);
}

void store_row(const float* acc, std::int64_t acc_stride, std::int64_t columns, std::byte* y,
               DType y_dtype, Store store) {
    if (store == Store::accumulate)
        return store_converted<float>(acc, acc_stride, columns, y,
                                      [](float old, float sum) { return old + sum; });
    if (y_dtype == DType::f32)
        return store_converted<float>(acc, acc_stride, columns, y,
                                      [](float, float sum) { return sum; });
    if (y_dtype == DType::bf16)
        return store_converted<Bf16>(acc, acc_stride, columns, y,
                                     [](Bf16, float sum) { return to_bf16(sum); });
    store_converted<Fp16>(acc, acc_stride, columns, y,
                          [](Fp16, float sum) { return to_fp16(sum); });
}

float read_all(const std::byte* data, std::int64_t bytes) {
    std::uint64_t sums[8] = {};
    for (std::int64_t at = 0; at < bytes; at += 64) {
        std::uint64_t words[8];
        std::memcpy(words, data + at, sizeof(words));
        for (int lane = 0; lane < 8; ++lane) sums[lane] += words[lane];
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : sums) sum += lane;
    return static_cast<float>(sum);
}

constexpr int kSpinAccumulators = 2;

float spin(std::int64_t rounds) {
    Lanes acc[kSpinAccumulators] = {};
    for (std::int64_t round = 0; round < rounds; ++round)
        for (Lanes& one : acc)
            for (float& lane : one.value) lane += lane * 0.5f;
    float sum = 0;
    for (const Lanes& one : acc)
        for (const float lane : one.value) sum += lane;
    return sum;
}

}  // namespace

const Microkernels& portable_microkernels() {
    static const Microkernels table = [] {
        Microkernels kernels;
        kernels.of(WeightCode::f32) = kernels_for<PlainSingle<float>>(fill_f32);
        kernels.of(WeightCode::f16) = kernels_for<PlainSingle<Fp16>>(fill_f32);
        kernels.of(WeightCode::bf16) = kernels_for<PlainPair<Bf16, 0>>(fill_widened);
        kernels.of(WeightCode::e4m3) =
            kernels_for<PlainPair<E4m3, kFp8Blocks.group_k>>(fill_widened);
        kernels.of(WeightCode::int8) =
            kernels_for<PlainPair<std::int8_t, kLeastScaleGroup>>(fill_widened);
        kernels.of(WeightCode::int4) = kernels_for<PlainNibbles<WeightCode::int4>>(fill_widened);
        kernels.of(WeightCode::e2m1) = kernels_for<PlainNibbles<WeightCode::e2m1>>(fill_widened);
        take_portable_integers(kernels);
        kernels.store_row = store_row;
        kernels.read_all = read_all;
        kernels.spin_bf16 = spin;
        kernels.spin_f32 = spin;
        kernels.bf16_flops_per_round = 2.0 * kPanel * kSpinAccumulators;
        kernels.f32_flops_per_round = 2.0 * kPanel * kSpinAccumulators;
        return kernels;
    }();
    return table;
}

}  // namespace espalier::linalg
