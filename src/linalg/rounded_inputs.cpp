// SPDX-License-Identifier: Apache-2.0
#include "linalg/rounded_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.hpp"
#include "linalg/packed.hpp"

namespace espalier::linalg {

RoundedBlock round_block(const Bf16* x, std::int64_t count, std::int32_t half_range) {
    // Adding and taking off 1.5 · 2²³ rounds to the nearest even integer.
    constexpr float kRounder = 12582912.0f;
    std::uint32_t magnitude = 0;
    for (std::int64_t i = 0; i < count; ++i)
        magnitude = std::max<std::uint32_t>(magnitude, x[i].bits & 0x7fffu);
    const BlockScale found = block_scale(magnitude);
    RoundedBlock block = {};
    std::int32_t sums[2] = {0, 0};
    for (std::int64_t i = 0; i < count && found.inverse != 0.0f; ++i) {
        const float scaled = to_float(x[i]) * found.inverse;
        const auto code = static_cast<std::int8_t>((scaled + kRounder) - kRounder);
        block.codes[i] = code;
        sums[i / (kRoundedInputs / 2)] += code;
    }
    finish_block(block, found.scale, sums[0], sums[1], half_range);
    return block;
}

namespace {

// Numbers of one output: codes and the scale, and the zero point, of an input's group.
class Output {
  public:
    Output(const WeightView& w, std::int64_t n) : w_(w), n_(n) {}

    std::int32_t code(std::int64_t k) const {
        std::int64_t place = n_ * w_.k + k;
        if (in_panels()) {
            const PackedView panels(w_);
            place = n_ / kPanel * panels.k_padded() * kPanel +
                    place_in_panel(w_.format.code, k, n_ % kPanel);
        }
        return static_cast<std::int32_t>(load_weight(w_.data, w_.format.code, place));
    }
    float scale(std::int64_t k) const { return number(k, 0); }
    float zero(std::int64_t k) const { return number(k, 1); }

  private:
    bool in_panels() const { return w_.layout == WeightLayout::panels; }
    float number(std::int64_t k, std::int64_t which) const {
        const std::int64_t group = k / w_.format.group_k, numbers = w_.group_numbers();
        std::int64_t at = (n_ * w_.scale_groups() + group) * numbers + which;
        if (in_panels())
            at = ((n_ / kPanel * w_.scale_groups() + group) * numbers + which) * kPanel +
                 n_ % kPanel;
        return load_element(w_.scales, dtype_of(w_.format.scale), at);
    }
    const WeightView& w_;
    std::int64_t n_;
};

float multiply_add(float a, float b, float c, bool fused) {
    if (fused) return std::fma(a, b, c);
    const volatile float product = a * b;  // rounded, whatever the compiler would fuse
    return product + c;
}

}  // namespace

void reference_rounded_product(const Matrix& x, const WeightView& w, const Matrix& y, bool fused) {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows == y.rows &&
              x.dtype == DType::bf16 && y.dtype == DType::f32,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    const std::int64_t unit = std::min<std::int64_t>(kRoundedInputs, w.format.group_k);
    std::vector<RoundedBlock> blocks;
    for (std::int64_t row = 0; row < x.rows; ++row) {
        blocks.clear();
        for (std::int64_t k = 0; k < w.k; k += kRoundedInputs)
            blocks.push_back(round_block(x.row<Bf16>(row) + k,
                                         std::min<std::int64_t>(kRoundedInputs, w.k - k), 0));
        for (std::int64_t n = 0; n < w.n; ++n) {
            const Output output(w, n);
            float total = 0.0f;
            for (std::int64_t first = 0; first < w.k; first += unit) {
                const RoundedBlock& block =
                    blocks[static_cast<std::size_t>(first / kRoundedInputs)];
                std::int32_t sum = 0, sum_of_x = 0;
                for (std::int64_t k = first; k < std::min(w.k, first + unit); ++k) {
                    sum += block.codes[k % kRoundedInputs] * output.code(k);
                    sum_of_x += block.codes[k % kRoundedInputs];
                }
                if (w.format.zero_points)
                    total = multiply_add(block.scale * static_cast<float>(sum_of_x),
                                         output.zero(first), total, fused);
                total = multiply_add(static_cast<float>(sum) * block.scale, output.scale(first),
                                     total, fused);
            }
            y.row<float>(row)[n] = total;
        }
    }
}

}  // namespace espalier::linalg
