// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of a product in double, from any layout.
#include "base/check.hpp"
#include "linalg/product.hpp"
#include "linalg/weight_at.hpp"

namespace espalier::linalg {
namespace {

double activation_at(const Matrix& x, std::int64_t row, std::int64_t column) {
    if (x.dtype == DType::bf16) return to_float(x.row<Bf16>(row)[column]);
    return x.row<float>(row)[column];
}

void store(const Matrix& y, std::int64_t row, std::int64_t column, double sum, Store how) {
    if (how == Store::accumulate) {
        float& out = y.row<float>(row)[column];
        out = static_cast<float>(out + sum);
    } else if (y.dtype == DType::f32) {
        y.row<float>(row)[column] = static_cast<float>(sum);
    } else if (y.dtype == DType::bf16) {
        y.row<Bf16>(row)[column] = to_bf16(static_cast<float>(sum));
    } else {
        y.row<Fp16>(row)[column] = to_fp16(static_cast<float>(sum));
    }
}

}  // namespace

void reference_product(const Matrix& x, const WeightView& w, const Matrix& y, Store how) {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    for (std::int64_t row = 0; row < x.rows; ++row) {
        for (std::int64_t n = 0; n < w.n; ++n) {
            double sum = 0;
            for (std::int64_t k = 0; k < w.k; ++k)
                sum += activation_at(x, row, k) * weight_at(w, 0, n, k);
            store(y, row, n, sum, how);
        }
    }
}

}  // namespace espalier::linalg
