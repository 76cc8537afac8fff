// SPDX-License-Identifier: Apache-2.0
// Products against the double oracle, with bounds derived from the number of roundings.
#include "linalg/product.hpp"

#include <cmath>

#include "linalg/random_weights.hpp"

namespace espalier::linalg {
namespace {

struct Shape {
    std::int64_t rows, n, k, x_extra, y_extra;
};

constexpr Shape kShapes[] = {
    {1, 1, 1, 0, 0},      {1, 17, 3, 1, 0},     {2, 16, 128, 0, 5},   {5, 33, 129, 3, 1},
    {7, 130, 257, 0, 2},  {24, 48, 512, 1, 0},  {25, 47, 1000, 0, 3}, {61, 20, 1023, 5, 0},
    {200, 19, 300, 0, 0}, {3, 300, 6500, 0, 1},
};

// Σ |x·w| over k: what the bound is relative to.
double magnitude(Activations& x, std::int64_t row, const StoredTensor& w, std::int64_t n,
                 DType dtype) {
    double sum = 0;
    for (std::int64_t k = 0; k < x.matrix().cols; ++k) {
        const double scale = dtype == DType::e4m3 ? w.scale(n, k) : 1.0;
        sum += std::abs(double{x.value(row, k)} * w.code(n, k) * scale);
    }
    return sum;
}

// A chain of k steps rounds at most twice per step (product, sum), each by 2⁻²⁴ of a partial sum ≤
// magnitude; e4m3 adds two per block. (1 + 2⁻²⁴)^(2k + …) - 1 < 1.01 · (2k + 2·blocks + 2) · 2⁻²⁴
// for k below 10⁵; the final 2 cover accumulate and the oracle's own rounding.
double chain_bound(std::int64_t k, double size) {
    const double roundings =
        2.0 * static_cast<double>(k) + 2.0 * static_cast<double>((k + 127) / 128) + 2.0;
    return 1.01 * roundings * 0x1p-24 * size;
}

// Both sides round to y: half a step each, of the larger of the two values (f16 also has a smallest
// step of 2⁻²⁴).
double store_bound(DType y, double value) {
    if (y == DType::bf16) return 0x1p-8 * std::abs(value);
    if (y == DType::f16) return 0x1p-11 * std::abs(value) + 0x1p-24;
    return 0x1p-24 * std::abs(value);
}

void expect_product(CpuVariant variant, DType dtype, const Shape& shape, DType y_dtype,
                    Store store) {
    SCOPED_TRACE(title(variant, dtype) + " " + std::to_string(shape.rows) + "×" +
                 std::to_string(shape.n) + "×" + std::to_string(shape.k) + " to " +
                 std::string(name_of(y_dtype)));
    CpuDevice device(2);
    const StoredTensor w(dtype, shape.n, shape.k, 11);
    const Weight packed = pack_or_die(device, w.view());
    Activations x = Activations::random(format_of(dtype).input(), shape.rows, shape.k,
                                        shape.k + shape.x_extra, 12);
    Activations y = Activations::random(y_dtype, shape.rows, shape.n, shape.n + shape.y_extra, 13);
    Activations expected =
        Activations::random(y_dtype, shape.rows, shape.n, shape.n + shape.y_extra, 13);
    Activations before =
        Activations::random(y_dtype, shape.rows, shape.n, shape.n + shape.y_extra, 13);
    Products(variant).product(device.pool(), x.matrix(), packed.view(), y.matrix(), store);
    reference_product(x.matrix(), packed.view(), expected.matrix(), store);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
        for (std::int64_t n = 0; n < shape.n; ++n) {
            const double want = expected.value(row, n), got = y.value(row, n);
            double size = magnitude(x, row, w, n, dtype);
            if (store == Store::accumulate) size += std::abs(before.value(row, n));
            const double bound = chain_bound(shape.k, size) +
                                 store_bound(y_dtype, std::max(std::abs(want), std::abs(got)));
            ASSERT_LE(std::abs(want - got), bound) << "row " << row << " output " << n;
        }
        // Bytes between the rows belong to no row: still the bytes put there.
        ASSERT_TRUE(same_row(y, row, before, row, shape.y_extra, shape.n, shape.n));
    }
}

TEST(Product, IsWithinTheDerivedBoundOfTheOracle) {
    for (const CpuVariant variant : variants_here())
        for (const DType dtype : kWeightTypes)
            for (const Shape& shape : kShapes)
                expect_product(variant, dtype, shape, DType::f32, Store::assign);
}

TEST(Product, RoundsOnceIntoEveryOutputType) {
    for (const CpuVariant variant : variants_here()) {
        for (const DType dtype : kWeightTypes) {
            expect_product(variant, dtype, kShapes[4], DType::f32, Store::accumulate);
            expect_product(variant, dtype, kShapes[4], DType::bf16, Store::assign);
            expect_product(variant, dtype, kShapes[4], DType::f16, Store::assign);
        }
    }
}

// Narrow outputs are the f32 outputs, rounded: not a second way of computing.
TEST(Product, NarrowOutputsAreTheRoundedF32Outputs) {
    CpuDevice device(2);
    const StoredTensor w(DType::bf16, 45, 77, 1);
    const Weight packed = pack_or_die(device, w.view());
    Activations x = Activations::random(DType::bf16, 9, 77, 77, 2);
    // Rows of extreme size, NaN and infinity: rounding must keep NaN, reach infinity and f16's
    // subnormals.
    const float extremes[] = {1e-6f, 3e4f, 1e30f, std::nanf(""), HUGE_VALF};
    for (std::int64_t row = 0; row < 5; ++row)
        for (std::int64_t k = 0; k < 77; ++k)
            write_element(x.at(row, k), DType::bf16, x.value(row, k) * extremes[row]);
    for (const CpuVariant variant : variants_here()) {
        const Products products(variant);
        Activations exact(DType::f32, 9, 45, 45), brain(DType::bf16, 9, 45, 45),
            half(DType::f16, 9, 45, 45);
        products.product(device.pool(), x.matrix(), packed.view(), exact.matrix());
        products.product(device.pool(), x.matrix(), packed.view(), brain.matrix());
        products.product(device.pool(), x.matrix(), packed.view(), half.matrix());
        for (std::int64_t row = 0; row < 9; ++row) {
            for (std::int64_t n = 0; n < 45; ++n) {
                const float value = exact.value(row, n);
                const float as_brain = to_float(to_bf16(value)), as_half = to_float(to_fp16(value));
                if (std::isnan(value)) {
                    ASSERT_TRUE(std::isnan(brain.value(row, n)) && std::isnan(half.value(row, n)));
                } else {
                    ASSERT_EQ(brain.value(row, n), as_brain) << name_of(variant) << " " << value;
                    ASSERT_EQ(half.value(row, n), as_half) << name_of(variant) << " " << value;
                }
            }
        }
    }
}

// Every code of e4m3 that is a number, through every kernel of few rows and of many: rows of x with
// one 1 against outputs that hold one code and its opposite.
TEST(Product, WidensEveryE4m3CodeExactly) {
    CpuDevice device(1);
    StoredTensor w(DType::e4m3, 254, 2, 1);
    std::vector<std::uint8_t> codes;
    for (int code = 0; code < 256; ++code)
        if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<std::uint8_t>(code));
    for (std::size_t i = 0; i < codes.size(); ++i) {
        w.bytes()[1 + 2 * i] = static_cast<std::byte>(codes[i]);
        w.bytes()[2 + 2 * i] = static_cast<std::byte>(codes[codes.size() - 1 - i]);
    }
    const Weight packed = pack_or_die(device, w.view());
    for (const CpuVariant variant : variants_here()) {
        for (const std::int64_t rows : {2, 30}) {
            Activations x(DType::bf16, rows, 2, 2), y(DType::f32, rows, 254, 254);
            for (std::int64_t row = 0; row < rows; ++row)
                write_element(x.at(row, row % 2), DType::bf16, 1.0f);
            Products(variant).product(device.pool(), x.matrix(), packed.view(), y.matrix());
            for (std::int64_t n = 0; n < 254; ++n)
                for (std::int64_t row = 0; row < rows; ++row)
                    ASSERT_EQ(y.value(row, n), w.code(n, row % 2) * w.scale(n, 0))
                        << name_of(variant) << " output " << n << " row " << row;
        }
    }
}

TEST(Product, NoRowsIsNothing) {
    CpuDevice device(2);
    const StoredTensor w(DType::bf16, 20, 30, 1);
    const Weight packed = pack_or_die(device, w.view());
    for (const CpuVariant variant : variants_here()) {
        const Products products(variant);
        products.product(device.pool(), Matrix{nullptr, DType::bf16, 0, 30, 30}, packed.view(),
                         Matrix{nullptr, DType::f32, 0, 20, 20});
        products.stacked(device.pool(), Matrix{nullptr, DType::bf16, 0, 30, 30}, 30, packed.view(),
                         Matrix{nullptr, DType::f32, 0, 20, 20}, 20);
        const std::int32_t indptr[] = {0, 0};
        products.grouped(device.pool(), Matrix{nullptr, DType::bf16, 0, 30, 30}, nullptr, indptr,
                         packed.view(), Matrix{nullptr, DType::f32, 0, 20, 20});
    }
}

TEST(Product, RefusesShapesThatDoNotFit) {
    CpuDevice device(1);
    const StoredTensor w(DType::bf16, 20, 30, 1);
    const Weight packed = pack_or_die(device, w.view());
    const Products products(CpuVariant::portable);
    Activations x(DType::bf16, 2, 30, 30), wide(DType::bf16, 2, 31, 31), f32(DType::f32, 2, 30, 30);
    Activations y(DType::f32, 2, 20, 20), narrow(DType::bf16, 2, 20, 20);
    EXPECT_THROW(products.product(device.pool(), wide.matrix(), packed.view(), y.matrix()),
                 CheckFailure);
    EXPECT_THROW(products.product(device.pool(), f32.matrix(), packed.view(), y.matrix()),
                 CheckFailure);
    EXPECT_THROW(products.product(device.pool(), x.matrix(), packed.view(), narrow.matrix(),
                                  Store::accumulate),
                 CheckFailure);
    EXPECT_THROW(products.product(device.pool(), x.matrix().slice(0, 1), packed.view(), y.matrix()),
                 CheckFailure);
    const std::int32_t indptr[] = {0, 3};
    EXPECT_THROW(
        products.grouped(device.pool(), x.matrix(), nullptr, indptr, packed.view(), y.matrix()),
        CheckFailure);
}

}  // namespace
}  // namespace espalier::linalg
