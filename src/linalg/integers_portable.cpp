// SPDX-License-Identifier: Apache-2.0
// Integer products in plain loops over the 16 outputs of a panel. A product of f32 is rounded, then
// added.
#include <cstring>
#include <utility>

#include "linalg/microkernels.hpp"
#include "linalg/rounded_inputs.hpp"

namespace espalier::linalg {
namespace {

struct PlainSums {
    struct Ints {
        std::int32_t value[kPanel];
    };
    struct Floats {
        float value[kPanel];
    };
    static constexpr int kMaxRows = 4;
    static constexpr int kSums = 4;
    static constexpr bool kKeepTotals = false;

    static Ints start(std::int32_t) { return {}; }
    static Floats zero() { return {}; }
    static Floats load_total(const float* from) {
        Floats total;
        std::memcpy(total.value, from, sizeof(total.value));
        return total;
    }
    static void store_total(float* to, const Floats& total) {
        std::memcpy(to, total.value, sizeof(total.value));
    }
    static Floats load_scales(const std::byte* from, bool bf16) {
        Floats scales;
        for (int lane = 0; lane < kPanel; ++lane)
            scales.value[lane] = load_element(from, bf16 ? DType::bf16 : DType::f32, lane);
        return scales;
    }
    static Floats shifted(float sum, const Floats& zero_point, Floats total) {
        for (int lane = 0; lane < kPanel; ++lane) total.value[lane] += sum * zero_point.value[lane];
        return total;
    }
    static Floats finish(const Ints& acc, std::int32_t, float scale, const Floats& weight_scale,
                         Floats total) {
        for (int lane = 0; lane < kPanel; ++lane) {
            const float sum = static_cast<float>(acc.value[lane]) * scale;
            total.value[lane] += sum * weight_scale.value[lane];
        }
        return total;
    }
};

// A pair of inputs per step: weights lie so.
struct PlainInt8 : PlainSums {
    struct Packed {
        std::int8_t codes[2 * kPanel];
    };
    static constexpr int kStepK = 2, kStepBytes = 2 * kPanel;

    static Packed load(const std::byte* w) {
        Packed packed;
        std::memcpy(packed.codes, w, sizeof(packed.codes));
        return packed;
    }
    static Ints step(Ints acc, const Packed& w, const std::byte* x) {
        const auto first = static_cast<std::int8_t>(x[0]), second = static_cast<std::int8_t>(x[1]);
        for (int lane = 0; lane < kPanel; ++lane)
            acc.value[lane] += w.codes[2 * lane] * first + w.codes[2 * lane + 1] * second;
        return acc;
    }
    static void round(const std::byte* x, RoundedBlock& block) {
        Bf16 numbers[kRoundedInputs];
        std::memcpy(numbers, x, sizeof(numbers));
        block = round_block(numbers, kRoundedInputs, 0);
    }
};

// Words of eight codes.
struct PlainInt4 : PlainSums {
    struct Packed {
        std::int8_t codes[8][kPanel];  // by k
    };
    static constexpr int kStepK = 8, kStepBytes = 4 * kPanel;

    static Packed load(const std::byte* w) {
        Packed packed;
        for (int k = 0; k < 8; ++k)
            for (int lane = 0; lane < kPanel; ++lane)
                packed.codes[k][lane] = static_cast<std::int8_t>(
                    load_weight(w, WeightCode::int4, place_in_panel(WeightCode::int4, k, lane)));
        return packed;
    }
    static Ints step(Ints acc, const Packed& w, const std::byte* x) {
        for (int k = 0; k < 8; ++k)
            for (int lane = 0; lane < kPanel; ++lane)
                acc.value[lane] += w.codes[k][lane] * static_cast<std::int8_t>(x[k]);
        return acc;
    }
    static void round(const std::byte* x, RoundedBlock& block) { PlainInt8::round(x, block); }
};

#include "linalg/integer_body.inc"

}  // namespace

void take_portable_integers(Microkernels& kernels) {
    kernels.integers_of(WeightCode::int8) = integer_kernels<PlainInt8>();
    kernels.integers_of(WeightCode::int4) = integer_kernels<PlainInt4>();
}

}  // namespace espalier::linalg
