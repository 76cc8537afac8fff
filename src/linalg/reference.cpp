// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of a product in double, straight from the packed layout.
#include <cstring>

#include "base/check.hpp"
#include "linalg/product.hpp"

namespace espalier::linalg {
namespace {

template <typename T>
T read(const std::byte* data, std::int64_t index) {
    T value;
    std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
}

// W[n, k], scale included.
double weight_at(const PackedView& w, std::int64_t n, std::int64_t k) {
    const std::byte* panel = w.data + n / kPanel * w.panel_bytes();
    const std::int64_t lane = n % kPanel;
    const std::int64_t single = k * kPanel + lane, paired = (k / 2 * kPanel + lane) * 2 + k % 2;
    switch (w.dtype) {
        case DType::f32:
            return to_float(read<float>(panel, single));
        case DType::f16:
            return to_float(read<Fp16>(panel, single));
        case DType::bf16:
            return to_float(read<Bf16>(panel, paired));
        case DType::e4m3: {
            const std::int64_t block = n / kPanel * w.scale_blocks() + k / kScaleBlock;
            return double{to_float(read<E4m3>(panel, paired))} *
                   double{w.scales[block * kPanel + lane]};
        }
    }
    return 0;
}

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

void reference_product(const Matrix& x, const PackedView& w, const Matrix& y, Store how) {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    for (std::int64_t row = 0; row < x.rows; ++row) {
        for (std::int64_t n = 0; n < w.n; ++n) {
            double sum = 0;
            for (std::int64_t k = 0; k < w.k; ++k)
                sum += activation_at(x, row, k) * weight_at(w, n, k);
            store(y, row, n, sum, how);
        }
    }
}

}  // namespace espalier::linalg
