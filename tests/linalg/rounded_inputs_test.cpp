// SPDX-License-Identifier: Apache-2.0
// Products whose inputs are rounded to 8 bits: every variant has the bits of the definition in
// plain loops, for any number of rows, on hostile numbers too, and lies within the rounding's own
// bound.
#include "linalg/rounded_inputs.hpp"

#include <cmath>
#include <limits>

#include "linalg/grouped_weights.hpp"
#include "linalg/product.hpp"
#include "linalg/random_weights.hpp"
#include "linalg/rows.hpp"

namespace espalier::linalg {
namespace {

struct RoundedCase {
    CpuVariant variant;
    GroupedKind kind;
};

constexpr GroupedKind kSixteens[] = {
    {"int8_16", grouped(WeightCode::int8, 16, ScaleType::f32), false},
    {"int8_zero_16", with_zero_points(grouped(WeightCode::int8, 16, ScaleType::f32)), false},
    {"int4_16", grouped(WeightCode::int4, 16, ScaleType::bf16), true},
};

std::vector<GroupedKind> rounding_kinds() {
    std::vector<GroupedKind> all(std::begin(kSixteens), std::end(kSixteens));
    for (const GroupedKind& kind : cpu_kinds())
        if (takes_number_mode(kind.format.code)) all.push_back(kind);
    return all;
}

std::vector<RoundedCase> rounded_cases() {
    std::vector<RoundedCase> all;
    for (const CpuVariant variant : variants_here())
        for (const GroupedKind& kind : rounding_kinds()) all.push_back({variant, kind});
    return all;
}

Weight pack_rounding(CpuDevice& device, const WeightSource& source) {
    Weight packed = pack_or_die(device, source);
    packed.read_inputs_as(NumberMode::int8);
    return packed;
}

class RoundedInputs : public testing::TestWithParam<RoundedCase> {
  protected:
    void expect_definition(Activations& x, const Weight& packed, Activations& y) {
        const WeightView& w = packed.view();
        Activations want(DType::f32, x.matrix().rows, w.n, w.n);
        reference_rounded_product(x.matrix(), w, want.matrix(),
                                  GetParam().variant != CpuVariant::portable);
        for (std::int64_t row = 0; row < x.matrix().rows; ++row)
            ASSERT_TRUE(same_row(y, row, want, row, w.n)) << "row " << row;
    }
    GroupedKind kind_ = GetParam().kind;
    Products products_{GetParam().variant};
    CpuDevice one_{1}, two_{2}, three_{3};
};

std::string rounded_name(const testing::TestParamInfo<RoundedCase>& info) {
    return std::string(name_of(info.param.variant)) + "_" + info.param.kind.name;
}
INSTANTIATE_TEST_SUITE_P(All, RoundedInputs, testing::ValuesIn(rounded_cases()), rounded_name);

// Depths that end within a block, a step and a pair.
TEST_P(RoundedInputs, HasTheBitsOfTheDefinition) {
    const struct {
        std::int64_t rows, n, k;
    } kShapes[] = {{1, 1, 2},     {1, 17, 32},    {2, 16, 128},   {5, 33, 130},  {7, 130, 256},
                   {13, 40, 486}, {25, 47, 1000}, {40, 19, 1222}, {3, 300, 2600}};
    for (const auto& [rows, n, k] : kShapes) {
        SCOPED_TRACE(fmt::format("{} × {} × {}", rows, n, k));
        const GroupedTensor w(kind_, n, k, 11);
        const Weight packed = pack_rounding(two_, w.view());
        Activations x = Activations::random(DType::bf16, rows, k, k, 12);
        Activations y(DType::f32, rows, n, n);
        products_.product(two_.pool(), x.matrix(), packed.view(), y.matrix());
        expect_definition(x, packed, y);
    }
}

// Half a step of a block's 127ths for each x, beside the roundings of the sums.
TEST_P(RoundedInputs, IsWithinTheDerivedBoundOfTheOracle) {
    constexpr std::int64_t kRows = 9, kN = 35, kK = 390;
    const GroupedTensor w(kind_, kN, kK, 11);
    const Weight packed = pack_rounding(two_, w.view());
    Activations x = Activations::random(DType::bf16, kRows, kK, kK, 12);
    Activations y(DType::f32, kRows, kN, kN);
    products_.product(two_.pool(), x.matrix(), packed.view(), y.matrix());
    for (std::int64_t row = 0; row < kRows; ++row)
        for (std::int64_t out = 0; out < kN; ++out) {
            double want = 0, bound = 0, size = 0;
            for (std::int64_t first = 0; first < kK; first += kRoundedInputs) {
                const std::int64_t end = std::min(kK, first + kRoundedInputs);
                double largest = 0;
                for (std::int64_t i = first; i < end; ++i)
                    largest = std::max(largest, std::abs(double{x.value(row, i)}));
                for (std::int64_t i = first; i < end; ++i) {
                    const double term = w.code(out, i) * double{w.scale(out, i)};
                    const double zero = w.zero(out, i);
                    want += x.value(row, i) * (term + zero);
                    bound += largest / 254 * std::abs(term + zero);
                    size += largest * (std::abs(term) + std::abs(zero));
                }
            }
            const double roundings = 6.0 * (kK / 16.0 + 1);
            ASSERT_LE(std::abs(want - y.value(row, out)),
                      1.001 * bound + roundings * 0x1p-24 * size)
                << "row " << row << " output " << out;
        }
}

TEST_P(RoundedInputs, RowsDoNotSeeEachOther) {
    constexpr std::int64_t kMostRows = 130, kN = 53, kK = 562;
    const GroupedTensor w(kind_, kN, kK, 1);
    const Weight packed = pack_rounding(one_, w.view());
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

TEST_P(RoundedInputs, RowsOfALongPromptDoNotSeeEachOther) {
    constexpr std::int64_t kMostRows = 16384, kN = 18, kK = 136;
    const GroupedTensor w(kind_, kN, kK, 1);
    const Weight packed = pack_rounding(one_, w.view());
    Activations x = Activations::random(DType::bf16, kMostRows, kK, kK, 2);
    Activations all(DType::f32, kMostRows, kN, kN);
    products_.product(three_.pool(), x.matrix(), packed.view(), all.matrix());
    for (std::int64_t row = 0; row < kMostRows; row += 1 + row % 97) {
        Activations alone(DType::f32, 1, kN, kN);
        products_.product(one_.pool(), x.matrix().slice(row, 1), packed.view(), alone.matrix());
        ASSERT_TRUE(same_row(all, row, alone, 0, kN)) << row;
    }
}

// Experts of one row and of many, by way of source rows.
TEST_P(RoundedInputs, GroupedIsProductPerRow) {
    constexpr std::int64_t kExperts = 5, kN = 37, kK = 160, kRows = 40;
    const GroupedTensor tensor(kind_, kExperts * kN, kK, 5);
    std::vector<std::vector<WeightSource>> lists;
    for (std::int64_t expert = 0; expert < kExperts; ++expert)
        lists.push_back({tensor.rows(expert * kN, kN)});
    const std::vector<std::span<const WeightSource>> stack(lists.begin(), lists.end());
    auto packed = pack_panels(two_, stack);
    ASSERT_TRUE(packed) << packed.error().message;
    packed->read_inputs_as(NumberMode::int8);
    const std::int32_t indptr[] = {0, 1, 1, 31, 32, kRows};
    std::vector<std::int32_t> source(kRows);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int>(i * 7 % kRows);
    Activations x = Activations::random(DType::bf16, kRows, kK, kK, 7);
    Activations y(DType::f32, kRows, kN, kN);
    products_.grouped(three_.pool(), x.matrix(), source.data(), indptr, packed->view(), y.matrix());
    for (std::int64_t expert = 0, row = 0; expert < kExperts; ++expert)
        for (; row < indptr[expert + 1]; ++row) {
            const Weight alone = pack_rounding(one_, tensor.rows(expert * kN, kN));
            Activations one(DType::f32, 1, kN, kN);
            products_.product(one_.pool(),
                              x.matrix().slice(source[static_cast<std::size_t>(row)], 1),
                              alone.view(), one.matrix());
            ASSERT_TRUE(same_row(y, row, one, 0, kN)) << expert << " " << row;
        }
}

// Segments of inputs: each is a sum of its own, as if its inputs were all.
TEST_P(RoundedInputs, SegmentsAreSumsOfTheirOwn) {
    constexpr std::int64_t kN = 35, kK = 390, kEach = 128, kRows = 7;
    const GroupedTensor w(kind_, kN, kK, 11);
    Weight packed = pack_rounding(two_, w.view());
    packed.cut({4, 0, 4, kEach});
    Activations x = Activations::random(DType::bf16, kRows, kK, kK, 12);
    Activations total(DType::f32, kRows, kN, kN), apart(DType::f32, 4 * kRows, kN, kN);
    products_.product(two_.pool(), x.matrix(), packed.view(), total.matrix());
    products_.segment_sums(one_.pool(), x.matrix(), packed.view(), apart.matrix());
    for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t segment = 0; segment < 4; ++segment) {
            // The other segments' inputs are 0, which adds nothing to a sum.
            Activations alone(DType::bf16, 1, kK, kK), want(DType::f32, 1, kN, kN);
            for (std::int64_t i = segment * kEach; i < std::min(kK, (segment + 1) * kEach); ++i)
                write_element(alone.at(0, i), DType::bf16, x.value(row, i));
            const Weight whole = pack_rounding(one_, w.view());
            products_.product(one_.pool(), alone.matrix(), whole.view(), want.matrix());
            ASSERT_TRUE(same_row(apart, segment * kRows + row, want, 0, kN)) << row << segment;
        }
        for (std::int64_t n = 0; n < kN; ++n) {
            float sum = apart.value(row, n);
            for (std::int64_t segment = 1; segment < 4; ++segment)
                sum += apart.value(segment * kRows + row, n);
            ASSERT_EQ(sum, total.value(row, n)) << row << " " << n;
        }
    }
}

// Codes at both ends of their range against numbers at both ends of theirs: sums of 16 bits that
// overflow would show.
TEST_P(RoundedInputs, SurvivesHostileNumbers) {
    const int half = facts_of(kind_.format.code).bits == 4 ? 8 : 128;
    constexpr std::int64_t kN = 24, kK = 224;
    constexpr float kMost = 3.3895e38f, kTiny = 1e-40f;
    const auto number = [&](std::int64_t row, std::int64_t i) -> float {
        const float sign = (row + i) % 2 == 0 ? 1.0f : -1.0f;
        switch (row) {
            case 0:
                return 0.0f;
            case 1:
                return i < 96 ? 0.0f : sign;  // whole blocks of nothing
            case 2:
                return kTiny * sign;
            case 3:
                return i == 33 ? 1e30f : 1.0f;  // one number that drowns its block
            case 4:
            case 5:
                return 1.0f;
            case 6:
                return -1.0f;
            case 7:
                return sign * 0x1p-100f;
            case 8:
                return sign * 0x1p-101f;
            case 9:
                return -0.0f;
            case 10:
                return i % 3 == 0 ? 2.5f : 127.0f;  // halves between two codes
            default:
                return sign * std::ldexp(1.0f, static_cast<int>(i % 40) - 20);
        }
    };
    GroupedTensor w(kind_, kN, kK, 3);
    for (std::int64_t n = 0; n < kN; ++n)
        for (std::int64_t i = 0; i < kK; ++i)
            if (n < 16)
                w.set(n, i, n % 4 == 0 ? -half : n % 4 == 1 ? half - 1 : i % 2 == 0 ? 0 : -half);
    const Weight packed = pack_rounding(one_, w.view());
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{12}, std::int64_t{30}}) {
        Activations x(DType::bf16, rows, kK, kK), y(DType::f32, rows, kN, kN);
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t i = 0; i < kK; ++i)
                write_element(x.at(row, i), DType::bf16, number((row + rows) % 12, i));
        products_.product(one_.pool(), x.matrix(), packed.view(), y.matrix());
        expect_definition(x, packed, y);
    }
    // The largest numbers: infinite sums, and never a number that looks right.
    Activations x(DType::bf16, 4, kK, kK), y(DType::f32, 4, kN, kN);
    for (std::int64_t i = 0; i < kK; ++i) {
        write_element(x.at(0, i), DType::bf16, kMost);
        write_element(x.at(1, i), DType::bf16, i == 50 ? std::nanf("") : 1.0f);
        write_element(x.at(2, i), DType::bf16,
                      i == 50 ? -std::numeric_limits<float>::infinity() : 1.0f);
        write_element(x.at(3, i), DType::bf16, 1.0f);
    }
    products_.product(one_.pool(), x.matrix(), packed.view(), y.matrix());
    for (std::int64_t n = 0; n < kN; ++n) {
        ASSERT_TRUE(std::isnan(y.value(1, n)) && std::isnan(y.value(2, n))) << n;
        ASSERT_TRUE(std::isfinite(y.value(3, n))) << n;
    }
}

TEST(RoundedBlocks, FollowTheRule) {
    Bf16 x[kRoundedInputs] = {};
    const auto set = [&](int i, float value) { x[i] = to_bf16(value); };
    RoundedBlock block = round_block(x, kRoundedInputs, 8);
    EXPECT_EQ(block.scale, 0.0f);
    EXPECT_EQ(block.sums[0], 0.0f);
    set(0, 127.0f);
    set(1, 2.5f);   // to 2
    set(2, 3.5f);   // to 4
    set(3, -2.5f);  // to −2
    set(20, 64.0f);
    block = round_block(x, kRoundedInputs, 8);
    EXPECT_EQ(block.scale, 1.0f);
    EXPECT_EQ(block.codes[0], 127);
    EXPECT_EQ(block.codes[1], 2);
    EXPECT_EQ(block.codes[2], 4);
    EXPECT_EQ(block.codes[3], -2);
    EXPECT_EQ(block.sums[1], 131.0f);
    EXPECT_EQ(block.sums[2], 64.0f);
    EXPECT_EQ(block.offsets[0], -8 * 195);
    block = round_block(x, 4, 8);  // what is behind counts nothing
    EXPECT_EQ(block.sums[0], 131.0f);
    set(5, std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(round_block(x, kRoundedInputs, 8).scale));
    EXPECT_EQ(block_scale((127u - 100u) << 7).scale, 0x1p-100f / 127.0f);
    EXPECT_EQ(block_scale(((127u - 100u) << 7) - 1).scale, 0.0f);
}

// A format that takes no mode keeps its own.
TEST(RoundedBlocks, ActOnIntegerCodesAlone) {
    CpuDevice device(1);
    const GroupedTensor nvfp4({"nvfp4", kNvfp4, false}, 16, 32, 1);
    Weight packed = pack_or_die(device, nvfp4.view());
    packed.read_inputs_as(NumberMode::int8);
    EXPECT_EQ(packed.view().inputs, NumberMode::own);
}

}  // namespace
}  // namespace espalier::linalg
