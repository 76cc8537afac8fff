// SPDX-License-Identifier: Apache-2.0
// Estimators that start from numbers: as good as those they were saved from, soon corrected, and
// closed to numbers that are none of theirs.
#include "speculate/policy/memory.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "base/random.hpp"
#include "speculate/policy/acceptance.hpp"
#include "speculate/policy/draft_time.hpp"
#include "speculate/policy/measured_rate.hpp"
#include "speculate/policy/step_time.hpp"

namespace espalier::speculate {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

TEST(Memory, AcceptanceIsAsItWasAndIsSoonCorrected) {
    AcceptanceTable table, warm, other;
    const Place place = place_of(1, 1, 0, 0.9f);
    for (int i = 0; i < 500; ++i) table.observe(place, i % 10 != 0);
    ASSERT_TRUE(warm.restore(1, table.save(1)));
    EXPECT_NEAR(warm.estimate(place), table.estimate(place), 0.05);
    EXPECT_EQ(warm.estimate(place_of(0, 1, 0, 0.9f)), other.estimate(place_of(0, 1, 0, 0.9f)));
    for (int i = 0; i < 60; ++i) warm.observe(place, false);
    EXPECT_LT(warm.estimate(place), 0.3);
}

TEST(Memory, TimesAreAsTheyWereAndTheFirstStepsCorrectThem) {
    const std::vector<StepSample> samples = {
        {{1, 1, 0}, 1e-3}, {{1, 4, 0}, 2e-3}, {{1, 8, 0}, 3e-3}};
    const auto time = StepTime::fit(samples);
    ASSERT_TRUE(time);
    auto warm = StepTime::restore(time->save());
    ASSERT_TRUE(warm);
    for (const std::int64_t tokens : {1, 2, 4, 6, 8})
        EXPECT_NEAR(warm->seconds({1, tokens, 0}) / time->seconds({1, tokens, 0}), 1, 0.05);
    // A machine that takes three times as long.
    for (int i = 0; i < 12; ++i)
        for (const StepSample& one : samples) warm->observe({one.size, 3 * one.seconds});
    EXPECT_NEAR(warm->seconds({1, 4, 0}), 6e-3, 1e-3);

    DraftTime levels, remembered;
    levels.observe(2, 4, 1e-3);
    levels.observe(4, 20, 3e-3);
    ASSERT_TRUE(remembered.restore(levels.save()));
    EXPECT_EQ(remembered.seconds(3, 9), levels.seconds(3, 9));
}

// Eight steps of a way that loses condemn nothing; with what was remembered the first one does.
TEST(Memory, RatesAreAsTheyWereWithoutTheirPauses) {
    MeasuredRate rate, warm;
    const auto plain = [](MeasuredRate& one) {
        one.observe(1, {.way = DraftingWay::none, .tokens = 1, .seconds = 1});
    };
    const auto loses = [](MeasuredRate& one) {
        one.observe(1, {.way = DraftingWay::passes, .tokens = 0.5, .seconds = 1});
        return one.suspended(1, DraftingWay::passes);
    };
    for (int i = 0; i < 20; ++i) plain(rate);
    for (int i = 0; i < 8; ++i) EXPECT_FALSE(loses(rate));
    ASSERT_TRUE(warm.restore(rate.save()));
    EXPECT_TRUE(loses(rate));
    EXPECT_FALSE(warm.suspended(1, DraftingWay::passes));
    EXPECT_TRUE(loses(warm));
}

// Numbers of the right count, but of no estimator.
TEST(Memory, NumbersThatNoEstimatorHasAreRefused) {
    AcceptanceTable table;
    DraftTime calls;
    MeasuredRate rate;
    const auto time = StepTime::fit(std::vector<StepSample>{{{1, 1, 0}, 1e-3}, {{1, 4, 0}, 2e-3}});
    ASSERT_TRUE(time);
    EXPECT_FALSE(table.restore(0, {}));
    EXPECT_FALSE(rate.restore({}));
    EXPECT_FALSE(StepTime::restore({}));
    EXPECT_FALSE(calls.restore(Numbers{1, 2}));
    EXPECT_FALSE(calls.restore(Numbers{0, 2, 1}));
    for (const double bad : {kNoNumber, -1.0, 1e300, std::numeric_limits<double>::infinity()}) {
        const auto with = [&](Numbers numbers) {
            numbers[0] = bad;
            return numbers;
        };
        EXPECT_FALSE(table.restore(0, with(table.save(0)))) << bad;
        EXPECT_FALSE(rate.restore(with(rate.save()))) << bad;
        EXPECT_FALSE(StepTime::restore(with(time->save()))) << bad;
        EXPECT_FALSE(calls.restore(with({1, 2, 1e-3}))) << bad;
    }
    Numbers more_right_than_tried = table.save(0);
    more_right_than_tried[1] = 1;
    EXPECT_FALSE(table.restore(0, more_right_than_tried));
}

// Whatever is restored, what follows from it is a number.
TEST(Memory, HostileNumbersLeaveEstimatesThatAreNumbers) {
    Random random(5);
    const auto time = StepTime::fit(std::vector<StepSample>{{{1, 1, 0}, 1e-3}, {{1, 4, 0}, 2e-3}});
    ASSERT_TRUE(time);
    int restored = 0;
    for (int i = 0; i < 2000; ++i) {
        Numbers numbers = time->save();
        for (double& number : numbers)
            number = random.chance(0.2) ? 0 : std::pow(10.0, -9 + 14 * random.unit());
        auto warm = StepTime::restore(numbers);
        if (!warm) continue;
        ++restored;
        for (int step = 0; step < 20; ++step) {
            const StepSize size{1, 1 + random.between(0, 9), 3};
            warm->observe({size, 1e-3});
            const double seconds = warm->seconds(size);
            ASSERT_TRUE(std::isfinite(seconds) && seconds > 0) << i;
        }
    }
    EXPECT_GT(restored, 100);
}

}  // namespace
}  // namespace espalier::speculate
