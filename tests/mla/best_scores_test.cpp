// SPDX-License-Identifier: Apache-2.0
// The radix search for the best scores against a stable sort, bit for bit: ties everywhere, zeros
// of both signs, infinities, NaN, and numbers that differ in their last bit.
#include "mla/cpu/best_scores.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.hpp"

namespace espalier::mla::cpu {
namespace {

std::vector<std::int32_t> sorted_best(const std::vector<float>& scores, std::int64_t wanted) {
    std::vector<std::int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
        const float x = scores[static_cast<std::size_t>(a)];
        const float y = scores[static_cast<std::size_t>(b)];
        return std::isnan(y) ? !std::isnan(x) : x > y;
    });
    order.resize(static_cast<std::size_t>(wanted));
    std::ranges::sort(order);
    return order;
}

float any_score(Random& random, int kind) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    switch (kind) {
        case 0:
            return random.normal();
        case 1:  // few different ones
            return static_cast<float>(random.between(-2, 2)) * (random.chance(0.5) ? -0.0f : 1.0f);
        case 2:  // neighbours
            return std::bit_cast<float>(0x3f800000u + static_cast<unsigned>(random.between(0, 3)));
        case 3:
            return random.one_of({0.0f, -0.0f, 1e-45f, -1e-45f, kInfinity, -kInfinity});
        default:  // any bits
            return std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
    }
}

TEST(BestScores, AreThoseOfAStableSort) {
    Random random(7);
    for (int trial = 0; trial < 4000; ++trial) {
        std::vector<float> scores(static_cast<std::size_t>(random.between(2, 300)));
        const int kind = trial % 5;
        for (float& score : scores) score = any_score(random, kind);
        const auto count = static_cast<std::int64_t>(scores.size());
        const std::int64_t wanted = random.between(1, static_cast<int>(count) - 1);
        std::vector<std::int32_t> chosen(static_cast<std::size_t>(wanted));
        const bool nan = choose_best(scores.data(), count, wanted, chosen.data());
        ASSERT_EQ(chosen, sorted_best(scores, wanted)) << "trial " << trial;
        ASSERT_EQ(nan, std::ranges::any_of(scores, [](float x) { return std::isnan(x); }));
    }
}

TEST(BestScores, OfManyKeys) {
    Random random(8);
    std::vector<float> scores(100'000);
    for (float& score : scores) score = std::max(0.0f, random.normal());
    std::vector<std::int32_t> chosen(2048);
    EXPECT_FALSE(choose_best(scores.data(), 100'000, 2048, chosen.data()));
    EXPECT_EQ(chosen, sorted_best(scores, 2048));
    chosen.resize(90'000);  // the last are zeros, of which the first are taken
    EXPECT_FALSE(choose_best(scores.data(), 100'000, 90'000, chosen.data()));
    EXPECT_EQ(chosen, sorted_best(scores, 90'000));
}

}  // namespace
}  // namespace espalier::mla::cpu
