// SPDX-License-Identifier: Apache-2.0
// The bits of an output row depend on that row and the weights alone: not on the rows beside it, on
// threads, or on whether it was computed by product, stacked or grouped.
#include <map>

#include "linalg/product.hpp"
#include "linalg/random_weights.hpp"

namespace espalier::linalg {
namespace {

constexpr std::int64_t kMostRows = 130;

struct Case {
    CpuVariant variant;
    DType dtype;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const CpuVariant variant : variants_here())
        for (const DType dtype : kWeightTypes) all.push_back({variant, dtype});
    return all;
}

class Invariance : public testing::TestWithParam<Case> {
  protected:
    // Every row of x alone, on one thread.
    Activations rows_alone(const Activations& x, const WeightView& w) {
        Activations y(DType::f32, x.matrix().rows, w.n, w.n);
        for (std::int64_t row = 0; row < x.matrix().rows; ++row)
            products_.product(one_.pool(), x.matrix().slice(row, 1), w, y.matrix().slice(row, 1));
        return y;
    }

    Products products_{GetParam().variant};
    DType dtype_ = GetParam().dtype;
    CpuDevice one_{1}, two_{2}, three_{3};
};

// n of 3 panels and a bit, k of 4 scale blocks and an odd bit; 130 rows are several tiles of every
// variant.
TEST_P(Invariance, RowsDoNotSeeEachOther) {
    const std::int64_t n = 53, k = 563;
    const StoredTensor w(dtype_, n, k, 1);
    const Weight packed = pack_or_die(one_, w.view());
    Activations x = Activations::random(format_of(dtype_).input(), kMostRows, k, k + 3, 2);
    Activations alone = rows_alone(x, packed.view());
    ThreadPool* pools[] = {&one_.pool(), &two_.pool(), &three_.pool()};
    for (std::int64_t rows = 1; rows <= kMostRows; ++rows) {
        const std::int64_t first = rows * 7 % (kMostRows - rows + 1);
        Activations y(DType::f32, rows, n, n + 2);
        // Each count on one pool, small ones on all: 130 rows × 3 pools × 4 variants would be slow
        // for nothing.
        for (std::int64_t p = 0; p < 3; ++p) {
            if (rows > 30 && rows % 3 != p) continue;
            y.fill(std::byte{0xff});
            products_.product(*pools[p], x.matrix().slice(first, rows), packed.view(), y.matrix());
            for (std::int64_t row = 0; row < rows; ++row)
                ASSERT_TRUE(same_row(y, row, alone, first + row, n))
                    << row << " of " << rows << ", pool " << p + 1;
        }
    }
}

// More rows than a block, more k than any tile holds, more panels than a chunk.
TEST_P(Invariance, LargeProductsAreTheSame) {
    const std::int64_t n = 330, k = 1410, rows = 401;
    const StoredTensor w(dtype_, n, k, 1);
    const Weight packed = pack_or_die(one_, w.view());
    Activations x = Activations::random(format_of(dtype_).input(), rows, k, k, 2);
    Activations y(DType::f32, rows, n, n);
    products_.product(three_.pool(), x.matrix(), packed.view(), y.matrix());
    for (const std::int64_t row : {0, 1, 100, 200, 201, 399, 400}) {
        Activations one(DType::f32, 1, n, n);
        products_.product(two_.pool(), x.matrix().slice(row, 1), packed.view(), one.matrix());
        ASSERT_TRUE(same_row(y, row, one, 0, n)) << row;
    }
}

TEST_P(Invariance, StackedIsProductPerMatrix) {
    const std::int64_t count = 5, n = 37, k = 131;
    const StoredTensor tensor(dtype_, count * 256, k, 3);
    std::vector<WeightSource> sources;
    for (std::int64_t s = 0; s < count; ++s) sources.push_back(tensor.view(s * 256, 0, n, k));
    std::vector<std::span<const WeightSource>> stack;
    for (const WeightSource& source : sources) stack.emplace_back(&source, 1);
    const auto packed = pack_panels(two_, stack);
    ASSERT_TRUE(packed) << packed.error().message;
    for (const std::int64_t rows : {1, 3, 50}) {
        const std::int64_t x_step = k + 4, y_step = n + 1;
        Activations x = Activations::random(format_of(dtype_).input(), rows, count * x_step,
                                            count * x_step + 1, 4);
        Activations y(DType::f32, rows, count * y_step, count * y_step);
        products_.stacked(three_.pool(), x.matrix(), x_step, packed->view(), y.matrix(), y_step);
        for (std::int64_t s = 0; s < count; ++s) {
            Activations one(DType::f32, rows, n, n);
            products_.product(one_.pool(), x.matrix().columns(s * x_step, k), packed->view().at(s),
                              one.matrix());
            for (std::int64_t row = 0; row < rows; ++row)
                ASSERT_TRUE(same_row(y, row, one, row, n, s * y_step))
                    << "matrix " << s << " row " << row;
        }
    }
}

// Groups of 0, 1, 2, 26 and 40 rows among many empty ones; more groups than one run of the pool
// takes at once.
TEST_P(Invariance, GroupedIsProductPerRow) {
    const std::int64_t count = 300, n = 21, k = 133;
    const StoredTensor tensor(dtype_, count * n, k, 5);
    std::vector<WeightSource> sources;
    for (std::int64_t g = 0; g < count; ++g) sources.push_back(tensor.view(g * n, 0, n, k));
    std::vector<std::span<const WeightSource>> stack;
    for (const WeightSource& source : sources) stack.emplace_back(&source, 1);
    const auto packed = pack_panels(two_, stack);
    ASSERT_TRUE(packed) << packed.error().message;
    for (const bool sparse : {true, false}) {
        const std::map<std::int64_t, std::int32_t> sizes = {
            {0, 2}, {3, 1}, {77, 26}, {150, 1}, {299, 40}};
        std::vector<std::int32_t> indptr = {0};
        for (std::int64_t g = 0; g < count; ++g) {
            const auto found = sizes.find(g);
            indptr.push_back(indptr.back() + (found != sizes.end() ? found->second
                                              : sparse             ? 0
                                                                   : 1));
        }
        const std::int64_t rows = indptr.back(), tokens = 13;
        std::vector<std::int32_t> source_row;
        for (std::int64_t row = 0; row < rows; ++row)
            source_row.push_back(static_cast<std::int32_t>(row * 5 % tokens));
        for (const bool gathered : {true, false}) {
            Activations x =
                Activations::random(format_of(dtype_).input(), gathered ? tokens : rows, k, k, 6);
            Activations y(DType::f32, rows + 1, n, n);
            y.fill(std::byte{0xff});
            products_.grouped(three_.pool(), x.matrix(), gathered ? source_row.data() : nullptr,
                              indptr.data(), packed->view(), y.matrix());
            std::int64_t group = 0;
            for (std::int64_t row = 0; row < rows; ++row) {
                while (indptr[static_cast<std::size_t>(group) + 1] <= row) ++group;
                const std::int64_t from =
                    gathered ? source_row[static_cast<std::size_t>(row)] : row;
                Activations one(DType::f32, 1, n, n);
                products_.product(one_.pool(), x.matrix().slice(from, 1), packed->view().at(group),
                                  one.matrix());
                ASSERT_TRUE(same_row(y, row, one, 0, n)) << "group " << group << " row " << row;
            }
            ASSERT_TRUE(std::isnan(y.value(rows, 0)));  // rows past the last group stay untouched
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, Invariance, testing::ValuesIn(cases()), [](const auto& param) {
    return std::string(name_of(param.param.variant)) + "_" +
           std::string(name_of(param.param.dtype));
});

}  // namespace
}  // namespace espalier::linalg
