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

// Output n of one row of x, over the inputs of one segment.
float chain(const std::vector<float>& x, const std::vector<float>& weights, const WeightView& w,
            std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t group = w.format.scaled() ? w.format.group_k : end - begin;
    float total = 0.0f;
    for (std::int64_t first = begin; first < end; first += group) {
        float sum = 0.0f, sum_of_x = 0.0f;
        for (std::int64_t k = first; k < std::min(end, first + group); ++k) {
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

// Calls store(row, n, segment, sum) for every output, segments ascending.
template <typename StoreSum>
void for_sums(const Matrix& x, const WeightView& w, StoreSum&& store) {
    CHECK(w.layout == linalg::WeightLayout::rows, "weights laid out as {}, wanted are {}",
          name_of(w.layout), name_of(linalg::WeightLayout::rows));
    CHECK(w.inputs == NumberMode::own, "inputs in {}", name_of(w.inputs));
    CHECK(x.dtype == w.format.input(), "{} weights take x in {}, not {}", name_of(w.format.code),
          name_of(w.format.input()), name_of(x.dtype));
    std::vector<std::vector<float>> inputs;
    for (std::int64_t row = 0; row < x.rows; ++row) inputs.push_back(widened(x, row));
    std::vector<float> weights(static_cast<std::size_t>(w.k));
    const std::int64_t each = w.segments.count == 1 ? w.k : w.segments.inputs;
    for (std::int64_t n = 0; n < w.n; ++n) {
        for (std::int64_t k = 0; k < w.k; ++k)
            weights[static_cast<std::size_t>(k)] = load_weight(w.data, w.format.code, n * w.k + k);
        for (std::int64_t row = 0; row < x.rows; ++row)
            for (std::int32_t s = 0; s < w.segments.count; ++s)
                store(row, n, s,
                      chain(inputs[static_cast<std::size_t>(row)], weights, w, n, s * each,
                            std::min(w.k, (s + 1) * each)));
    }
}

}  // namespace

void reference_product(const Matrix& x, const WeightView& w, const Matrix& y, Store store) {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows <= y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    CHECK(store == Store::assign || y.dtype == DType::f32, "sums accumulate in f32, not {}",
          name_of(y.dtype));
    float total = 0.0f;
    for_sums(x, w, [&](std::int64_t row, std::int64_t n, std::int32_t segment, float sum) {
        total = segment == 0 ? sum : total + sum;
        if (segment + 1 < w.segments.count) return;
        const float before = store == Store::accumulate ? y.row<float>(row)[n] : 0.0f;
        store_element(y.data, y.dtype, row * y.stride + n,
                      store == Store::accumulate ? before + total : total);
    });
}

void reference_segment_sums(const Matrix& x, const WeightView& w, const Matrix& sums) {
    CHECK(w.count == 1 && x.cols == w.k && sums.cols == w.n &&
              sums.rows == w.segments.count * x.rows && sums.dtype == DType::f32,
          "x [{}, {}], W {} × [{}, {}] in {} segments, sums [{}, {}] {}", x.rows, x.cols, w.count,
          w.n, w.k, w.segments.count, sums.rows, sums.cols, name_of(sums.dtype));
    for_sums(x, w, [&](std::int64_t row, std::int64_t n, std::int32_t segment, float sum) {
        sums.row<float>(segment * x.rows + row)[n] = sum;
    });
}

}  // namespace espalier::ops
