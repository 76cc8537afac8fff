// SPDX-License-Identifier: Apache-2.0
// Rounding to int8 and int4 against its definition, restated in double.
#include "linalg/round_weights.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/element.hpp"

namespace espalier::linalg {
namespace {

// [n, k] bf16 weights and what they were rounded to.
class Rounded {
  public:
    Rounded(std::int64_t k, const std::vector<float>& values, WeightCode code) : k_(k) {
        for (const float value : values) stored_.push_back(to_bf16(value));
        source_.data = reinterpret_cast<const std::byte*>(stored_.data());
        source_.format = {.code = WeightCode::bf16};
        source_.n = std::ssize(values) / k;
        source_.k = source_.row_stride = k;
        ThreadPool pool(2);
        made_ = RoundedWeight::round(pool, source_, code);
    }

    const Expected<RoundedWeight>& made() const { return made_; }
    std::int64_t n() const { return source_.n; }
    double number(std::int64_t n, std::int64_t k) const {
        return double{to_float(stored_[static_cast<std::size_t>(n * k_ + k)])};
    }
    std::vector<double> group(std::int64_t n, std::int64_t first) const {
        std::vector<double> numbers;
        for (std::int64_t k = first; k < std::min(k_, first + kRoundedGroup); ++k)
            numbers.push_back(number(n, k));
        return numbers;
    }
    double scale(std::int64_t n, std::int64_t first) const {
        return double{scale_of(made_->source(), n, first / kRoundedGroup)};
    }
    // Codes in two's complement, read from the bytes of a file.
    int code(std::int64_t n, std::int64_t k) const {
        const WeightSource made = made_->source();
        const std::int64_t at = n * made.row_stride + k;
        if (made.format.code == WeightCode::int8) return static_cast<std::int8_t>(made.data[at]);
        return (std::to_integer<int>(made.data[at / 2]) >> (at % 2 * 4) & 15) - 8;
    }

  private:
    std::int64_t k_;
    std::vector<Bf16> stored_;
    WeightSource source_;
    Expected<RoundedWeight> made_ = RoundedWeight();
};

double nearest(double value, double scale, double lowest) {
    return scale == 0 ? 0 : std::clamp(std::nearbyint(value / scale), lowest, -lowest - 1);
}

double squared_error(const std::vector<double>& group, double scale, double lowest) {
    double error = 0;
    for (const double value : group) {
        const double difference = value - nearest(value, scale, lowest) * scale;
        error += difference * difference;
    }
    return error;
}

double extreme_of(const std::vector<double>& group) {
    return *std::max_element(group.begin(), group.end(),
                             [](double a, double b) { return std::abs(a) < std::abs(b); });
}

double stored_scale(double scale) { return to_float(to_bf16(static_cast<float>(scale))); }

// Bound of f32's error when it sums a group's squares: a difference by two roundings of at most
// twice the extreme, each term and each addition by one, what underflows by the least subnormal.
double slack(double error, double extreme) {
    const double off = 4 * 0x1p-24 * std::abs(extreme);
    return 2 * std::sqrt(32 * error) * off + 32 * off * off + 40 * 0x1p-24 * error + 64 * 0x1p-149;
}

struct Shape {
    const char* name;
    std::function<float(std::mt19937&)> draw;
};

std::vector<Shape> shapes() {
    const auto normal = [](std::mt19937& engine) {
        return std::normal_distribution<float>()(engine);
    };
    return {
        {"normal", normal},
        {"long tails", [=](std::mt19937& e) { return std::pow(normal(e), 5.0f); }},
        {"one sign", [=](std::mt19937& e) { return std::abs(normal(e)); }},
        {"sparse", [=](std::mt19937& e) { return e() % 8 == 0 ? normal(e) : 0.0f; }},
        {"two numbers", [](std::mt19937& e) { return e() % 2 == 0 ? 0.25f : -0.125f; }},
        {"tiny", [=](std::mt19937& e) { return normal(e) * 0x1p-70f; }},
        {"vanishing", [=](std::mt19937& e) { return normal(e) * 0x1p-122f; }},
        {"huge", [=](std::mt19937& e) { return normal(e) * 0x1p120f; }},
    };
}

std::vector<float> drawn(const Shape& shape, std::int64_t count, std::uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(shape.draw(engine));
    return values;
}

// Every code is in range and the nearest for its scale. By the inverse of a scale a quotient is off
// by two roundings, so a code may miss the middle between two by that much.
TEST(RoundWeights, CodesAreTheNearest) {
    constexpr std::int64_t kK = 104;
    for (const Shape& shape : shapes())
        for (const WeightCode code : {WeightCode::int8, WeightCode::int4}) {
            const double lowest = code == WeightCode::int8 ? -128 : -8;
            const Rounded rounded(kK, drawn(shape, 40 * kK, 4), code);
            ASSERT_TRUE(rounded.made());
            for (std::int64_t n = 0; n < rounded.n(); ++n)
                for (std::int64_t k = 0; k < kK; ++k) {
                    const double scale = rounded.scale(n, k / 32 * 32);
                    const int got = rounded.code(n, k);
                    ASSERT_TRUE(got >= lowest && got <= -lowest - 1) << got;
                    if (scale == 0) {
                        ASSERT_EQ(got, 0);
                        ASSERT_LT(std::abs(rounded.number(n, k)), 0x1p-120);
                        continue;
                    }
                    const double place =
                        std::clamp(rounded.number(n, k) / scale, lowest, -lowest - 1);
                    ASSERT_LE(std::abs(place - got), 0.5 + std::abs(place) * 0x1p-22)
                        << shape.name << " " << name_of(code) << " " << n << " " << k;
                }
        }
}

TEST(RoundWeights, Int8HasTheSymmetricScale) {
    constexpr std::int64_t kK = 72;
    const Rounded rounded(kK, drawn(shapes().front(), 20 * kK, 5), WeightCode::int8);
    for (std::int64_t n = 0; n < rounded.n(); ++n)
        for (std::int64_t first = 0; first < kK; first += 32)
            EXPECT_EQ(rounded.scale(n, first),
                      stored_scale(std::abs(extreme_of(rounded.group(n, first))) / 127.5));
}

double least_squares_scale(const std::vector<double>& group, double scale) {
    double cross = 0, square = 0;
    for (const double value : group) {
        cross += value * nearest(value, scale, -8);
        square += std::pow(nearest(value, scale, -8), 2);
    }
    return stored_scale(cross / square);
}

// The most squared error that int4 may leave: that of the best scale the header names. Of scales
// which f32 cannot tell apart it may have fitted the codes of either.
double most_error(const std::vector<double>& group) {
    const double extreme = extreme_of(group);
    double least = std::numeric_limits<double>::infinity();
    std::vector<double> scales = {stored_scale(std::abs(extreme) / 7.5)};
    for (const double divisor : {-7.0, -8.0, -8.5, -9.0})
        scales.push_back(stored_scale(extreme / divisor));
    for (const double scale : scales) least = std::min(least, squared_error(group, scale, -8));
    double most = 0;
    for (const double scale : scales) {
        const double error = squared_error(group, scale, -8);
        if (error > least + slack(error, extreme) + slack(least, extreme)) continue;
        const double fitted = squared_error(group, least_squares_scale(group, scale), -8);
        most = std::max(most, std::min(error, fitted));
    }
    return most + slack(most, extreme);
}

TEST(RoundWeights, Int4HasTheLeastErrorOfItsScales) {
    constexpr std::int64_t kK = 104;
    int negative = 0, positive = 0;
    for (const Shape& shape : shapes()) {
        const Rounded rounded(kK, drawn(shape, 60 * kK, 6), WeightCode::int4);
        ASSERT_TRUE(rounded.made());
        for (std::int64_t n = 0; n < rounded.n(); ++n)
            for (std::int64_t first = 0; first < kK; first += 32) {
                const std::vector<double> group = rounded.group(n, first);
                const double extreme = extreme_of(group), scale = rounded.scale(n, first);
                if (scale == 0) continue;
                (scale < 0 ? negative : positive)++;
                double error = 0;
                for (std::size_t i = 0; i < group.size(); ++i) {
                    const int code = rounded.code(n, first + static_cast<std::int64_t>(i));
                    error += std::pow(group[i] - code * scale, 2);
                }
                const double symmetric =
                    squared_error(group, stored_scale(std::abs(extreme) / 7.5), -8);
                ASSERT_LE(error, symmetric + slack(symmetric, extreme) + slack(error, extreme))
                    << shape.name << " " << n << " " << first << ": " << scale;
                if (symmetric > 0x1p127) continue;  // f32 has no such squares: that scale stays
                ASSERT_LE(error, most_error(group) + slack(error, extreme))
                    << shape.name << " " << n << " " << first << ": " << scale;
            }
    }
    EXPECT_GT(negative, 100);
    EXPECT_GT(positive, 100);
}

// Sixteen numbers in equal steps have sixteen codes, whichever side reaches farther.
TEST(RoundWeights, Int4UsesAllSixteenCodes) {
    for (const float sign : {1.0f, -1.0f}) {
        std::vector<float> values(32);
        for (int i = 0; i < 32; ++i)
            values[static_cast<std::size_t>(i)] = sign * 0.25f * static_cast<float>(i % 16 - 8);
        const Rounded rounded(32, values, WeightCode::int4);
        EXPECT_EQ(rounded.scale(0, 0), double{sign} * 0.25);
        for (int i = 0; i < 32; ++i) EXPECT_EQ(rounded.code(0, i), i % 16 - 8);
    }
}

TEST(RoundWeights, ZerosStayZeros) {
    for (const WeightCode code : {WeightCode::int8, WeightCode::int4}) {
        std::vector<float> values(70, 0.0f);
        values[3] = -0.0f;
        values[69] = 0x1p-130f;  // too small for a scale
        const Rounded rounded(70, values, code);
        ASSERT_TRUE(rounded.made());
        for (std::int64_t k = 0; k < 70; ++k) EXPECT_EQ(rounded.code(0, k), 0);
        for (const std::int64_t first : {0, 32, 64}) EXPECT_EQ(rounded.scale(0, first), 0.0);
    }
}

TEST(RoundWeights, RefusesWhatIsNoNumber) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const WeightCode code : {WeightCode::int8, WeightCode::int4})
        for (const float bad : {infinity, -infinity, std::nanf("")})
            for (const std::size_t place : {0, 31, 32, 39, 79}) {
                std::vector<float> values(80, 1.0f);
                values[place] = bad;
                const Rounded rounded(40, values, code);
                ASSERT_FALSE(rounded.made()) << bad << " at " << place;
                EXPECT_EQ(rounded.made().error().message,
                          "weights [2, 40] with NaN or infinity among them");
            }
}

}  // namespace
}  // namespace espalier::linalg
