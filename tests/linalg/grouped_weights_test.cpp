// SPDX-License-Identifier: Apache-2.0
// Integer and 4-bit weights with scales by groups: packing, products against the double oracle, row
// invariance, every code.
#include "linalg/grouped_weights.hpp"

#include <limits>

#include "linalg/product.hpp"
#include "linalg/random_weights.hpp"
#include "linalg/round_weights.hpp"
#include "linalg/rows.hpp"
#include "linalg/weight_at.hpp"

namespace espalier::linalg {
namespace {

struct Case {
    CpuVariant variant;
    GroupedKind kind;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const CpuVariant variant : variants_here())
        for (const GroupedKind& kind : cpu_kinds()) all.push_back({variant, kind});
    return all;
}

class Grouped : public testing::TestWithParam<Case> {
  protected:
    // A weight as a product with a single 1 has it: the portable variant rounds code · scale, the
    // others the sum with the zero point alone.
    float number(const GroupedTensor& w, std::int64_t n, std::int64_t k) const {
        const float code = w.code(n, k), scale = w.scale(n, k), zero = w.zero(n, k);
        if (!kind_.format.zero_points) return code * scale;
        return GetParam().variant == CpuVariant::portable ? code * scale + zero
                                                          : std::fma(code, scale, zero);
    }
    GroupedKind kind_ = GetParam().kind;
    Products products_{GetParam().variant};
    CpuDevice one_{1}, two_{2}, three_{3};
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
    return std::string(name_of(info.param.variant)) + "_" + info.param.kind.name;
}
INSTANTIATE_TEST_SUITE_P(All, Grouped, testing::ValuesIn(cases()), case_name);

TEST_P(Grouped, IsWithinTheDerivedBoundOfTheOracle) {
    const struct {
        std::int64_t rows, n, k;
    } kShapes[] = {{1, 1, 2},     {1, 17, 32},    {2, 16, 128},   {5, 33, 130},  {7, 130, 256},
                   {24, 48, 512}, {25, 47, 1000}, {200, 19, 300}, {3, 300, 6500}};
    for (const auto& [rows, n, k] : kShapes) {
        SCOPED_TRACE(fmt::format("{} × {} × {}", rows, n, k));
        const GroupedTensor w(kind_, n, k, 11);
        const Weight packed = pack_or_die(two_, w.view());
        Activations x = Activations::random(DType::bf16, rows, k, k + 1, 12);
        Activations y(DType::f32, rows, n, n);
        products_.product(two_.pool(), x.matrix(), packed.view(), y.matrix());
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t out = 0; out < n; ++out) {
                double want = 0, size = 0;
                for (std::int64_t i = 0; i < k; ++i) {
                    const double term =
                        double{x.value(row, i)} * w.code(out, i) * double{w.scale(out, i)};
                    const double shift = double{x.value(row, i)} * double{w.zero(out, i)};
                    want += term + shift;
                    size += std::abs(term) + std::abs(shift);
                }
                // Two roundings for each k and each group (of 16 at least; with zero points, which
                // have two more, of 32 at least), one of the store.
                const double roundings = 2.0 * static_cast<double>(k + (k + 15) / 16) + 2;
                ASSERT_LE(std::abs(want - y.value(row, out)), 1.01 * roundings * 0x1p-24 * size)
                    << "row " << row << " output " << out;
            }
    }
}

TEST_P(Grouped, RowsDoNotSeeEachOther) {
    constexpr std::int64_t kMostRows = 130, kN = 53, kK = 562;
    const GroupedTensor w(kind_, kN, kK, 1);
    const Weight packed = pack_or_die(one_, w.view());
    Activations x = Activations::random(DType::bf16, kMostRows, kK, kK + 3, 2);
    Activations alone(DType::f32, kMostRows, kN, kN);
    for (std::int64_t row = 0; row < kMostRows; ++row)
        products_.product(one_.pool(), x.matrix().slice(row, 1), packed.view(),
                          alone.matrix().slice(row, 1));
    ThreadPool* pools[] = {&one_.pool(), &two_.pool(), &three_.pool()};
    for (std::int64_t rows = 1; rows <= kMostRows; ++rows) {
        const std::int64_t first = rows * 7 % (kMostRows - rows + 1);
        Activations y(DType::f32, rows, kN, kN + 2);
        products_.product(*pools[rows % 3], x.matrix().slice(first, rows), packed.view(),
                          y.matrix());
        for (std::int64_t row = 0; row < rows; ++row)
            ASSERT_TRUE(same_row(y, row, alone, first + row, kN)) << row << " of " << rows;
    }
}

// The largest chunk of a prompt, and the rows before and behind each height of a tile.
TEST_P(Grouped, RowsOfALongPromptDoNotSeeEachOther) {
    constexpr std::int64_t kMostRows = 16384, kN = 18, kK = 136;
    const GroupedTensor w(kind_, kN, kK, 1);
    const Weight packed = pack_or_die(one_, w.view());
    Activations x = Activations::random(DType::bf16, kMostRows, kK, kK, 2);
    Activations all(DType::f32, kMostRows, kN, kN);
    products_.product(three_.pool(), x.matrix(), packed.view(), all.matrix());
    for (std::int64_t row = 0; row < kMostRows; row += 1 + row % 97) {
        Activations alone(DType::f32, 1, kN, kN);
        products_.product(one_.pool(), x.matrix().slice(row, 1), packed.view(), alone.matrix());
        ASSERT_TRUE(same_row(all, row, alone, 0, kN)) << row;
    }
}

// Experts: joined matrices that keep each its own scales, groups of rows.
TEST_P(Grouped, GroupedIsProductPerRow) {
    constexpr std::int64_t kExperts = 5, kN = 21, kK = 160;
    const GroupedTensor gates(kind_, kExperts * kN, kK, 5), ups(kind_, kExperts * kN, kK, 6);
    std::vector<std::vector<WeightSource>> lists;
    for (std::int64_t expert = 0; expert < kExperts; ++expert)
        lists.push_back({gates.rows(expert * kN, kN), ups.rows(expert * kN, kN)});
    const std::vector<std::span<const WeightSource>> stack(lists.begin(), lists.end());
    const auto packed = pack_panels(two_, stack);
    ASSERT_TRUE(packed) << packed.error().message;
    const std::int32_t indptr[] = {0, 2, 2, 31, 32, 40};
    Activations x = Activations::random(DType::bf16, 40, kK, kK, 7);
    Activations y(DType::f32, 40, 2 * kN, 2 * kN);
    products_.grouped(three_.pool(), x.matrix(), nullptr, indptr, packed->view(), y.matrix());
    for (std::int64_t expert = 0, row = 0; expert < kExperts; ++expert)
        for (; row < indptr[expert + 1]; ++row)
            for (const bool up : {false, true}) {
                const Weight alone = pack_or_die(one_, (up ? ups : gates).rows(expert * kN, kN));
                Activations one(DType::f32, 1, kN, kN);
                products_.product(one_.pool(), x.matrix().slice(row, 1), alone.view(),
                                  one.matrix());
                ASSERT_TRUE(same_row(y, row, one, 0, kN, up ? kN : 0)) << expert << " " << row;
            }
}

// Rows of x with one 1 against outputs that hold every code, at each place of a word, through
// kernels of few rows and of many.
TEST_P(Grouped, WidensEveryCodeExactly) {
    const bool four = facts_of(kind_.format.code).bits == 4;
    const std::int64_t codes = four ? 16 : 256, k = 16;
    GroupedTensor w(kind_, codes, k, 1);
    for (std::int64_t n = 0; n < codes; ++n)
        for (std::int64_t i = 0; i < k; ++i)
            w.set(n, i, static_cast<int>((n + 5 * i) % codes - codes / 2));
    const Weight packed = pack_or_die(one_, w.view());
    for (const std::int64_t rows : {std::int64_t{1}, k, 3 * k}) {
        Activations x(DType::bf16, rows, k, k), y(DType::f32, rows, codes, codes);
        for (std::int64_t row = 0; row < rows; ++row)
            write_element(x.at(row, row % k), DType::bf16, 1.0f);
        products_.product(one_.pool(), x.matrix(), packed.view(), y.matrix());
        for (std::int64_t n = 0; n < codes; ++n)
            for (std::int64_t row = 0; row < rows; ++row)
                ASSERT_EQ(y.value(row, n), number(w, n, row % k))
                    << "output " << n << " row " << row;
    }
}

TEST(GroupedPacking, BothLayoutsHoldTheSameNumbersAndPaddingIsZero) {
    CpuDevice device(2);
    for (const GroupedKind& kind : cpu_kinds())
        for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 2},
                                   {16, 8},
                                   {17, 30},
                                   {33, 128},
                                   {20, 388}}) {
            SCOPED_TRACE(fmt::format("{} [{}, {}]", kind.name, n, k));
            const GroupedTensor w(kind, n, k, 3);
            const WeightSource source = w.view();
            const std::span<const WeightSource> one(&source, 1);
            const Weight panels = pack_or_die(device, source);
            const auto rows = pack_rows(device, WeightStack(&one, 1));
            ASSERT_TRUE(rows) << rows.error().message;
            std::vector<float> widened(static_cast<std::size_t>(k));
            for (std::int64_t out = 0; out < n; ++out) {
                widen_output(source, out, widened.data());
                for (std::int64_t i = 0; i < k; ++i) {
                    const double want =
                        double{w.code(out, i)} * double{w.scale(out, i)} + double{w.zero(out, i)};
                    ASSERT_EQ(weight_at(panels.view(), 0, out, i), want) << out << " " << i;
                    ASSERT_EQ(weight_at(rows->view(), 0, out, i), want) << out << " " << i;
                    ASSERT_EQ(widened[static_cast<std::size_t>(i)],
                              kind.format.zero_points
                                  ? w.code(out, i) * w.scale(out, i) + w.zero(out, i)
                                  : w.code(out, i) * w.scale(out, i));
                }
            }
            const PackedView view(panels.view());
            for (std::int64_t out = 0; out < view.panels() * kPanel; ++out)
                for (std::int64_t i = 0; i < view.k_padded(); ++i)
                    if (out >= n || i >= k) {
                        ASSERT_EQ(
                            load_weight(view.data, kind.format.code,
                                        out / kPanel * view.k_padded() * kPanel +
                                            place_in_panel(kind.format.code, i, out % kPanel)),
                            0.0f)
                            << out << " " << i;
                    }
        }
}

std::string error_of(const WeightSource& source) {
    CpuDevice device(1);
    const std::span<const WeightSource> one(&source, 1);
    const auto packed = pack_panels(device, WeightStack(&one, 1));
    return packed ? "" : packed.error().message;
}

TEST(GroupedPacking, RefusesWhatItCannotHold) {
    const GroupedKind int4 = kGroupedKinds[4];
    GroupedTensor w(int4, 20, 64, 1);
    EXPECT_EQ(error_of(w.view()), "");
    WeightSource bad = w.view();
    bad.k = 63;
    EXPECT_EQ(error_of(bad), "int4 weights whose rows do not begin with whole bytes");
    bad = w.view();
    std::swap(bad.n, bad.k);
    bad.transposed = true;
    EXPECT_EQ(error_of(bad), "int4 weights stored by inputs");
    bad = w.view();
    bad.format.zero_points = true;
    EXPECT_EQ(error_of(bad),
              "int4 weights [20, 64] without zero points, or with scales that are not f32");
    bad = w.view();
    bad.format.group_k = 200;
    EXPECT_EQ(error_of(bad),
              "int4 weights with a scale for 200 inputs: more than 128 and no multiple of it");
    bad = w.view();
    bad.scale_stride = 1;
    EXPECT_EQ(error_of(bad),
              "int4 weights end at column 64 but a row of scales has 1 blocks of 32");
    for (const float scale : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
        GroupedTensor broken(int4, 20, 64, 1);
        store_element(broken.scale_bytes().data(), DType::bf16, 39, scale);
        EXPECT_EQ(error_of(broken.view()),
                  "int4 weights [20, 64] with a scale that is no finite number");
    }
    EXPECT_TRUE(Products(CpuVariant::portable).check_format(int4.format));
    EXPECT_FALSE(Products(CpuVariant::portable)
                     .check_format(grouped(WeightCode::int4, 48, ScaleType::bf16)));
    EXPECT_FALSE(Products(CpuVariant::portable).check_format({.code = WeightCode::int8}));
    EXPECT_FALSE(Products(CpuVariant::portable).check_format(with_zero_points(kNvfp4)));
    GroupedTensor zeros(kZeroPointKinds[0], 20, 64, 1);
    const WeightSource source = zeros.view();
    const std::span<const WeightSource> one(&source, 1);
    EXPECT_EQ(error_of(source), "");
    const auto elsewhere = common_shape(WeightStack(&one, 1));  // a layout without a place for them
    ASSERT_FALSE(elsewhere);
    EXPECT_EQ(elsewhere.error().message, "int8 weights with zero points");
    zeros.zeros()[39] = std::nanf("");
    EXPECT_EQ(error_of(zeros.view()),
              "int8 weights [20, 64] with a scale that is no finite number");
}

}  // namespace
}  // namespace espalier::linalg
