// SPDX-License-Identifier: Apache-2.0
// Ways of decoding on machines whose rates are known: the best one is taken, what a slower one
// costs is bounded, and a change is noticed.
#include "speculate/policy/measured_rate.hpp"

#include <gtest/gtest.h>

#include <array>

#include "base/random.hpp"

namespace espalier::speculate {
namespace {

// A machine on which a step of each way takes a second and commits so many tokens per row.
struct TestMachine {
    std::array<double, 3> tokens = {1, 1, 1};  // none, free, passes
    double scatter = 0;
};

struct Count {
    std::array<int, 3> steps = {};
    double tokens = 0;
};

Count run(MeasuredRate& rate, const TestMachine& machine, int steps, std::int64_t rows = 4,
          MeasuredRate::Question question = {.free = true, .passes = true, .plain_seconds = 1}) {
    Random random(7);
    Count count;
    for (int i = 0; i < steps; ++i) {
        const DraftingWay way = rate.next(rows, question);
        const auto index = static_cast<std::size_t>(way);
        const double tokens = machine.tokens[index] * static_cast<double>(rows);
        ++count.steps[index];
        count.tokens += tokens;
        rate.observe(rows, {.way = way,
                            .tokens = tokens,
                            .seconds = 1 + machine.scatter * (2 * random.unit() - 1)});
    }
    count.tokens /= static_cast<double>(rows * steps);
    return count;
}

TEST(MeasuredRate, TakesTheWayThatPaysAndMeasuresTheSimplerOnes) {
    MeasuredRate rate;
    const Count count = run(rate, {.tokens = {1, 1.3, 1.8}, .scatter = 0.2}, 3200);
    EXPECT_NEAR(count.steps[0], 100, 10);
    EXPECT_NEAR(count.steps[1], 100, 10);
}

TEST(MeasuredRate, ASlowerWayCostsLessAndLess) {
    MeasuredRate rate;
    const TestMachine machine{.tokens = {1, 0.9, 0.5}};
    EXPECT_GT(run(rate, machine, 1000).tokens, 0.9);
    const Count later = run(rate, machine, 20000);
    EXPECT_GT(later.tokens, 0.985);
    EXPECT_GT(later.steps[2], 50);  // tried again now and then
}

// Texts whose steps commit 1 to 7 tokens: a run of bad luck suspends nothing that pays.
TEST(MeasuredRate, WaitsWithAVerdictUntilItIsSure) {
    MeasuredRate rate;
    Random random(3);
    std::int64_t suspended = 0;
    for (int i = 0; i < 4000; ++i) {
        const DraftingWay way = rate.next(1, {.free = false, .passes = true});
        const bool drafts = way == DraftingWay::passes;
        suspended += drafts ? 0 : 1;
        // 4 tokens on average: a gain of 1.18
        rate.observe(1, {.way = way,
                         .tokens = drafts ? static_cast<double>(1 + random.between(0, 6)) : 1.0,
                         .seconds = drafts ? 3.4 : 1.0});
    }
    EXPECT_LT(suspended, 4000 / 32 + 300);
}

TEST(MeasuredRate, KeepsTheFreeDraftersWhereOnlyPassesLose) {
    MeasuredRate rate;
    const TestMachine machine{.tokens = {1, 1.4, 1.2}, .scatter = 0.1};
    run(rate, machine, 1000);
    EXPECT_GT(run(rate, machine, 10000).tokens, 1.37);
}

TEST(MeasuredRate, NoticesWhenAWayBeginsToPayOrEnds) {
    MeasuredRate rate;
    run(rate, {.tokens = {1, 1, 0.5}}, 5000);
    const TestMachine better{.tokens = {1, 1, 2}};
    run(rate, better, 4200);  // the longest pause
    EXPECT_GT(run(rate, better, 1000).tokens, 1.9);
    const TestMachine worse{.tokens = {1, 1, 0.5}};
    run(rate, worse, 200);
    EXPECT_GT(run(rate, worse, 1000).tokens, 0.93);
}

TEST(MeasuredRate, OtherBatchesAreTheirOwnMatter) {
    MeasuredRate rate;
    run(rate, {.tokens = {1, 1, 0.5}}, 500, 64);
    EXPECT_EQ(rate.next(64, {.free = true, .passes = true}), DraftingWay::free);
    EXPECT_GT(run(rate, {.tokens = {1, 1, 2}}, 100, 1).steps[2], 80);
}

// Knowledge of 128 rows holds with one of them in its prompt, and of half as many it does not.
TEST(MeasuredRate, ClientsOfAPowerOfTwoAreInOneClassWithFewerOfThem) {
    MeasuredRate rate;
    run(rate, {.tokens = {1, 1, 0.5}}, 100, 128);
    EXPECT_TRUE(rate.suspended(128, DraftingWay::passes));
    EXPECT_TRUE(rate.suspended(100, DraftingWay::passes));
    EXPECT_FALSE(rate.suspended(64, DraftingWay::passes));
}

// A way that loses half of the time goes on until a simpler one was tried.
TEST(MeasuredRate, OneStepInThirtyTwoTellsWhatASimplerWayComesTo) {
    MeasuredRate rate;
    const Count count = run(rate, {.tokens = {1, 1, 0.5}}, 40, 128);
    EXPECT_EQ(count.steps[2], 32);
}

TEST(MeasuredRate, NothingIsTriedInStepsThatDoNotCount) {
    MeasuredRate rate;
    for (int i = 0; i < 100; ++i)
        EXPECT_EQ(rate.next(4, {.free = true, .passes = true, .counts = false}),
                  DraftingWay::passes);
}

TEST(MeasuredRate, OffersNoWayWithoutItsDrafters) {
    MeasuredRate rate;
    EXPECT_EQ(rate.next(1, {}), DraftingWay::none);
    const Count free = run(rate, {.tokens = {1, 2, 9}}, 320, 1, {.free = true});
    EXPECT_EQ(free.steps[2], 0);
    EXPECT_NEAR(free.steps[1], 310, 5);
    const Count count = run(rate, {.tokens = {1, 9, 2}}, 3200, 4, {.free = false, .passes = true});
    EXPECT_EQ(count.steps[1], 0);
    EXPECT_NEAR(count.steps[0], 100, 10);
}

TEST(MeasuredRate, OneWildStepTellsLittleAndAClockThatStandsStillNothing) {
    MeasuredRate rate;
    const TestMachine machine{.tokens = {1, 1, 1.5}};
    run(rate, machine, 200);
    rate.observe(4, {.way = DraftingWay::passes, .tokens = 4, .seconds = 1000.0});
    rate.observe(4, {.way = DraftingWay::passes, .tokens = 4, .seconds = 0.0});
    EXPECT_GT(run(rate, machine, 100).steps[2], 90);
}

}  // namespace
}  // namespace espalier::speculate
