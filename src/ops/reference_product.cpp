// SPDX-License-Identifier: Apache-2.0
#include "ops/reference_product.hpp"

#include <algorithm>
#include <vector>

#include "base/check.hpp"

namespace espalier::ops {
namespace {

std::vector<float> widened(const Matrix& x, std::int64_t row) {
    std::vector<float> values(static_cast<std::size_t>(x.cols));
    for (std::int64_t k = 0; k < x.cols; ++k)
        values[static_cast<std::size_t>(k)] = load_element(x.data, x.dtype, row * x.stride + k);
    return values;
}

// Output n of one row of x.
float chain(const std::vector<float>& x, const std::vector<float>& weights, const WeightView& w,
            std::int64_t n) {
    const std::int64_t group = w.format.scaled() ? w.format.group_k : w.k;
    float total = 0.0f;
    for (std::int64_t first = 0; first < w.k; first += group) {
        float sum = 0.0f, sum_of_x = 0.0f;
        for (std::int64_t k = first; k < std::min(w.k, first + group); ++k) {
            sum += x[static_cast<std::size_t>(k)] * weights[static_cast<std::size_t>(k)];
            sum_of_x += x[static_cast<std::size_t>(k)];
        }
        if (!w.format.scaled()) return sum;
        const std::int64_t at = (n * w.scale_groups() + first / group) * w.group_numbers();
        const DType type = dtype_of(w.format.scale);
        if (w.format.zero_points) total += sum_of_x * load_element(w.scales, type, at + 1);
        total += sum * load_element(w.scales, type, at);
    }
    return total;
}

}  // namespace

void reference_product(const Matrix& x, const WeightView& w, const Matrix& y, Store store) {
    CHECK(w.layout == linalg::WeightLayout::rows, "weights laid out as {}, wanted are {}",
          name_of(w.layout), name_of(linalg::WeightLayout::rows));
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows <= y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    CHECK(x.dtype == w.format.input(), "{} weights take x in {}, not {}", name_of(w.format.code),
          name_of(w.format.input()), name_of(x.dtype));
    CHECK(store == Store::assign || y.dtype == DType::f32, "sums accumulate in f32, not {}",
          name_of(y.dtype));
    std::vector<std::vector<float>> inputs;
    for (std::int64_t row = 0; row < x.rows; ++row) inputs.push_back(widened(x, row));
    std::vector<float> weights(static_cast<std::size_t>(w.k));
    for (std::int64_t n = 0; n < w.n; ++n) {
        for (std::int64_t k = 0; k < w.k; ++k)
            weights[static_cast<std::size_t>(k)] = load_weight(w.data, w.format.code, n * w.k + k);
        for (std::int64_t row = 0; row < x.rows; ++row) {
            const float sum = chain(inputs[static_cast<std::size_t>(row)], weights, w, n);
            const float before = store == Store::accumulate ? y.row<float>(row)[n] : 0.0f;
            store_element(y.data, y.dtype, row * y.stride + n,
                          store == Store::accumulate ? before + sum : sum);
        }
    }
}

}  // namespace espalier::ops
