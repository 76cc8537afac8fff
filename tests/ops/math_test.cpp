// SPDX-License-Identifier: Apache-2.0
// The building bricks: exp, log and Philox against their definitions, and kernels that must give
// the same bits in every variant and at every place of a row.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/draw.hpp"
#include "ops/kernels.hpp"
#include "ops/support.hpp"

namespace espalier::ops {
namespace {

TEST(PortableMath, ExpF32IsWithinTwoUlpOfTheTruth) {
    double worst = 0.0;
    for (float x = -87.0f; x < 88.7f; x += 0.00071f) {
        const double truth = std::exp(static_cast<double>(x));
        worst = std::max(worst, std::abs(static_cast<double>(portable_exp(x)) - truth) / truth);
    }
    EXPECT_LT(worst, 2.0 * 0x1p-23);
}

TEST(PortableMath, ExpF32AtTheEdges) {
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(portable_exp(0.0f), 1.0f);
    EXPECT_EQ(portable_exp(-infinity), 0.0f);
    EXPECT_EQ(portable_exp(-105.0f), 0.0f);
    EXPECT_EQ(portable_exp(88.8f), infinity);
    EXPECT_EQ(portable_exp(infinity), infinity);
    EXPECT_TRUE(std::isnan(portable_exp(std::numeric_limits<float>::quiet_NaN())));
    // Subnormal results are rounded to steps of 2⁻¹⁴⁹: one step of doubt.
    EXPECT_NEAR(portable_exp(-95.0f), std::exp(-95.0), 0x1p-148);
    EXPECT_EQ(portable_sigmoid(-200.0f), 0.0f);
    EXPECT_EQ(portable_sigmoid(200.0f), 1.0f);
    EXPECT_EQ(portable_silu(-200.0f), 0.0f);
    EXPECT_EQ(portable_silu(200.0f), 200.0f);
}

TEST(PortableMath, ExpF64KeepsItsBound) {
    double worst = 0.0;
    for (double x = -690.0; x < 690.0; x += 0.000913) {
        const double truth = std::exp(x);
        worst = std::max(worst, std::abs(portable_exp(x) - truth) / truth);
    }
    EXPECT_LT(worst, 0x1p-46);
    EXPECT_EQ(portable_exp(0.0), 1.0);
}

TEST(PortableMath, LogIsWithinTwoUlp) {
    std::mt19937_64 random(1);
    const auto check = [](double x) {
        const double truth = std::log(x);
        EXPECT_NEAR(portable_log(x), truth, std::abs(truth) * 2.0 * 0x1p-52) << x;
    };
    for (int i = 0; i < 200000; ++i)
        check(std::ldexp(1.0 + static_cast<double>(random() >> 12) * 0x1p-52,
                         static_cast<int>(random() % 200) - 100));
    for (int i = 1; i < 100000; ++i) {
        check(1.0 - i * 0x1p-33);
        check(1.0 + i * 0x1p-40);
    }
    EXPECT_EQ(portable_log(1.0), 0.0);
}

// The published known answers of Random123 (tests/kat_vectors, "philox4x32 10").
TEST(Philox, KnownAnswers) {
    using Word = std::array<std::uint32_t, 4>;
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), (Word{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, ~std::uint64_t{0}),
              (Word{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
              (Word{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, GumbelIsItsFormula) {
    for (std::int32_t token = 0; token < 1000; ++token) {
        const auto word =
            philox4x32({41, static_cast<std::uint32_t>(token), 3, 0}, 0x123456789abcdef0u)[0];
        const double u = (word + 0.5) * 0x1p-32;
        EXPECT_NEAR(gumbel(0x123456789abcdef0u, 41, token, 3), -std::log(-std::log(u)), 1e-14);
    }
    // The ends: the noise of a token lies in [-3.14, 22.88].
    EXPECT_NEAR(gumbel_of(0), -std::log(33.0 * std::log(2.0)), 1e-14);
    EXPECT_NEAR(gumbel_of(~0u), 33.0 * std::log(2.0), 1e-9);
}

class Kernels : public testing::TestWithParam<CpuVariant> {};
INSTANTIATE_TEST_SUITE_P(Variants, Kernels, testing::ValuesIn(variants()),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

// Elementwise kernels over [first, first + n) must give what the portable table gives one element
// at a time.
TEST_P(Kernels, BitsDoNotDependOnVariantPlaceOrRemainder) {
    const KernelTable& fast = kernels_for(GetParam());
    const KernelTable& plain = portable_kernels();
    constexpr std::int64_t kSize = 200;
    std::vector<float> x = values(1, 0, 1, kSize);
    for (float& value : x) value *= 30.0f;
    x[3] = std::numeric_limits<float>::quiet_NaN();
    x[17] = -std::numeric_limits<float>::infinity();
    x[66] = 1e-41f;
    x[120] = -std::numeric_limits<float>::infinity();
    const std::vector<float> y = values(2, 0, 1, kSize);
    const Scaling scaling = {0.7, 50.0};
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < kSize; ++i) tokens.push_back(i * 701);

    std::vector<float> f32(kSize), f32_one(kSize);
    std::vector<std::uint16_t> half(kSize), half_one(kSize);
    std::vector<std::uint64_t> u64(kSize), u64_one(kSize);
    std::vector<std::uint32_t> u32(kSize), u32_one(kSize);
    std::vector<std::int32_t> i32(kSize), i32_one(kSize);
    for (std::int64_t first = 0; first < 40; first += 3) {
        for (std::int64_t n = 1; n + first <= kSize; n += 7) {
            const float* a = x.data() + first;
            const float* b = y.data() + first;
            const auto check_f32 = [&](const char* name, auto&& whole, auto&& one) {
                whole();
                for (std::int64_t i = 0; i < n; ++i) one(i);
                EXPECT_TRUE(same_bits(f32.data(), f32_one.data(), n))
                    << name << " n " << n << " from " << first;
            };
            check_f32(
                "swiglu", [&] { fast.swiglu(a, b, n, f32.data()); },
                [&](std::int64_t i) {
                    plain.swiglu(a + i, b + i, 1, &f32_one[static_cast<std::size_t>(i)]);
                });
            check_f32(
                "scale", [&] { fast.scale(a, 0.3f, b, n, f32.data()); },
                [&](std::int64_t i) {
                    plain.scale(a + i, 0.3f, b + i, 1, &f32_one[static_cast<std::size_t>(i)]);
                });
            check_f32(
                "sigmoid", [&] { fast.sigmoid(a, n, f32.data()); },
                [&](std::int64_t i) {
                    plain.sigmoid(a + i, 1, &f32_one[static_cast<std::size_t>(i)]);
                });
            check_f32(
                "exp_below", [&] { fast.exp_below(a, 9.0f, n, f32.data()); },
                [&](std::int64_t i) {
                    plain.exp_below(a + i, 9.0f, 1, &f32_one[static_cast<std::size_t>(i)]);
                });
            check_f32(
                "add_weighted",
                [&] {
                    std::copy_n(b, n, f32.data());
                    std::copy_n(b, n, f32_one.data());
                    fast.add_weighted(0.7f, a, n, f32.data());
                },
                [&](std::int64_t i) {
                    plain.add_weighted(0.7f, a + i, 1, &f32_one[static_cast<std::size_t>(i)]);
                });
            for (const DType dtype : {DType::bf16, DType::f16}) {
                fast.store(a, n, dtype, reinterpret_cast<std::byte*>(half.data()));
                for (std::int64_t i = 0; i < n; ++i)
                    half_one[static_cast<std::size_t>(i)] =
                        dtype == DType::bf16 ? to_bf16(a[i]).bits : to_fp16(a[i]).bits;
                EXPECT_TRUE(same_bits(half.data(), half_one.data(), n)) << name_of(dtype);
                fast.load(reinterpret_cast<const std::byte*>(half.data()), n, dtype, f32.data());
                for (std::int64_t i = 0; i < n; ++i) {
                    const std::uint16_t bits = half[static_cast<std::size_t>(i)];
                    f32_one[static_cast<std::size_t>(i)] =
                        dtype == DType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
                }
                EXPECT_TRUE(same_bits(f32.data(), f32_one.data(), n)) << name_of(dtype);
            }
            fast.weights(b, scaling, n, u64.data());
            const auto ties = static_cast<std::int32_t>(n / 2);
            const float least = b[n / 2];
            fast.buckets(b, {5.0f, 64.0f}, least, ties, n, i32.data());
            fast.philox(tokens.data() + first, n, 0x9876543210u, 5, 2, u32.data());
            std::uint64_t sum = 0;
            for (std::int64_t i = 0; i < n; ++i) {
                const auto at = static_cast<std::size_t>(i);
                u64_one[at] = weight_of(scaled(b[i], scaling.inverse) - scaling.maximum);
                sum += u64_one[at];
                i32_one[at] = b[i] > least || (b[i] == least && i < ties)
                                  ? bucket_of(b[i], 5.0f, 64.0f)
                                  : kBuckets;
                u32_one[at] = philox4x32(
                    {5, static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(first + i)]), 2,
                     0},
                    0x9876543210u)[0];
            }
            EXPECT_TRUE(same_bits(u64.data(), u64_one.data(), n));
            EXPECT_EQ(fast.sum_weights(b, scaling, n), sum);
            EXPECT_TRUE(same_bits(i32.data(), i32_one.data(), n));
            EXPECT_TRUE(same_bits(u32.data(), u32_one.data(), n));
            const float squares = fast.sum_of_squares(b, n);
            const float plain_squares = plain.sum_of_squares(b, n);
            EXPECT_TRUE(same_bits(&squares, &plain_squares, 1));
        }
    }
}

TEST_P(Kernels, ScanFindsEveryBadLogit) {
    const KernelTable& kernels = kernels_for(GetParam());
    for (std::int64_t n = 1; n < 100; ++n) {
        std::vector<float> logits = values(3, n, 1, n);
        EXPECT_FALSE(kernels.scan(logits.data(), n).bad);
        EXPECT_EQ(kernels.scan(logits.data(), n).maximum,
                  *std::max_element(logits.begin(), logits.end()));
        for (std::size_t bad = 0; bad < logits.size(); ++bad) {
            const float kept = logits[bad];
            for (const float value :
                 {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                  -std::numeric_limits<float>::quiet_NaN()}) {
                logits[bad] = value;
                EXPECT_TRUE(kernels.scan(logits.data(), n).bad);
            }
            logits[bad] = -std::numeric_limits<float>::infinity();
            EXPECT_FALSE(kernels.scan(logits.data(), n).bad);
            logits[bad] = kept;
        }
    }
}

}  // namespace
}  // namespace espalier::ops
