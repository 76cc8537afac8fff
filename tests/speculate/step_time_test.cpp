// SPDX-License-Identifier: Apache-2.0
// The cost model against machines whose times are known.
#include "speculate/step_time.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "speculate/random.hpp"

namespace espalier::speculate {
namespace {

// A machine that reads its weights for 10 ms, then pays per token above 16, and a little per row.
double machine(std::int64_t rows, std::int64_t tokens) {
    return 0.010 + 0.0004 * static_cast<double>(std::max<std::int64_t>(tokens - 16, 0)) +
           0.00005 * static_cast<double>(rows);
}

// Three passes over a small grid, with `scatter` relative noise and every fourth step wild.
std::vector<StepSample> measure(Random& random, double scatter, bool wild) {
    std::vector<StepSample> samples;
    int count = 0;
    for (int pass = 0; pass < 3; ++pass)
        for (const std::int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512})
            for (const std::int64_t rows : {std::int64_t{1}, tokens / 4, tokens}) {
                if (rows < 1) continue;
                double seconds = machine(rows, tokens) * (1 + scatter * (2 * random.unit() - 1));
                if (wild && ++count % 4 == 0) seconds *= 2.5;
                samples.push_back({rows, tokens, seconds});
            }
    return samples;
}

TEST(StepTime, FindsTheMachineBehindNoiseAndWildSteps) {
    for (const bool wild : {false, true}) {
        Random random(4);
        const auto time = StepTime::fit(measure(random, 0.02, wild));
        ASSERT_TRUE(time);
        for (const std::int64_t tokens : {1, 3, 8, 16, 24, 40, 64, 200, 512})
            for (const std::int64_t rows : {1, 4, 16}) {
                if (rows > tokens) continue;
                // Noise of 2 % per sample, 6 to 9 samples a knot. Plain least squares would be
                // (0.75 + 0.25 / 2.5) / (0.75 + 0.25 / 2.5²) = 1.076 under wild steps.
                EXPECT_NEAR(time->seconds(rows, tokens) / machine(rows, tokens), 1, 0.05)
                    << rows << " rows, " << tokens << " tokens, wild " << wild;
            }
        // Beyond what was measured the slope continues.
        EXPECT_NEAR(time->seconds(8, 2048) / machine(8, 2048), 1, 0.2);
    }
}

TEST(StepTime, NeverDecreasesAndStaysPositiveWhateverItIsFed) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Random random(seed);
        std::vector<StepSample> samples;
        for (std::int32_t i = random.between(1, 30); i > 0; --i) {
            const std::int32_t rows = random.between(1, 64);
            samples.push_back(
                {rows, random.between(rows, 3000), std::exp(10 * random.unit() - 10)});
        }
        auto time = StepTime::fit(samples);
        ASSERT_TRUE(time);
        for (int i = 0; i < 200; ++i) {
            const std::int32_t rows = random.between(1, 64);
            time->observe({rows, random.between(rows, 20000), std::exp(10 * random.unit() - 10)});
        }
        double before = 0;
        for (std::int64_t tokens = 1; tokens < 20000; tokens += 1 + tokens / 7) {
            const double now = time->seconds(1, tokens);
            ASSERT_TRUE(std::isfinite(now));
            ASSERT_GT(now, 0);
            ASSERT_GE(now, before * (1 - 1e-12));
            ASSERT_GE(time->seconds(9, tokens), now);
            before = now;
        }
    }
}

TEST(StepTime, OneWildStepMovesLittleALastingChangeIsFollowed) {
    Random random(2);
    auto time = StepTime::fit(measure(random, 0.02, false));
    ASSERT_TRUE(time);
    const double before = time->seconds(4, 16);
    time->observe({4, 16, 100 * before});
    // 4 times a scatter of about 1 %, at a rate of 0.15.
    EXPECT_NEAR(time->seconds(4, 16) / before, 1, 0.02);

    // The machine becomes half as fast, seen at one place only.
    for (int i = 0; i < 100; ++i) time->observe({4, 16, 2 * machine(4, 16)});
    EXPECT_NEAR(time->seconds(4, 16) / machine(4, 16), 2, 0.1);
    // The rest follows in part by the common scale: more tokens never look free.
    EXPECT_GT(time->seconds(4, 64) - time->seconds(4, 16), 0.8 * (machine(4, 64) - machine(4, 16)));
    EXPECT_GT(time->seconds(4, 64), 1.2 * machine(4, 64));
}

TEST(StepTime, APlaceThatWasWrongIsCorrectedThere) {
    Random random(2);
    auto time = StepTime::fit(measure(random, 0.0, false));
    ASSERT_TRUE(time);
    // 32 tokens cost 50 % more than start-up said; 4 tokens are as they were.
    for (int i = 0; i < 400; ++i) {
        time->observe({4, 32, 1.5 * machine(4, 32)});
        time->observe({4, 4, machine(4, 4)});
    }
    EXPECT_NEAR(time->seconds(4, 32) / machine(4, 32), 1.5, 0.08);
    EXPECT_NEAR(time->seconds(4, 4) / machine(4, 4), 1.0, 0.08);
}

TEST(StepTime, IgnoresAndRefusesWhatIsNoMeasurement) {
    const StepSample zero[] = {{1, 1, 0.0}};
    const StepSample fewer[] = {{4, 2, 1.0}};
    EXPECT_FALSE(StepTime::fit({}));
    EXPECT_EQ(StepTime::fit(zero).error().message,
              "step time: a sample of 1 rows, 1 tokens and 0 seconds");
    EXPECT_FALSE(StepTime::fit(fewer));
    const StepSample one[] = {{1, 4, 0.25}};
    auto time = StepTime::fit(one);
    ASSERT_TRUE(time);
    const double before = time->seconds(1, 4);
    EXPECT_NEAR(before, 0.25, 0.001);
    for (const double seconds : {0.0, -1.0, std::nan(""), HUGE_VAL}) time->observe({1, 4, seconds});
    EXPECT_EQ(time->seconds(1, 4), before);
}

}  // namespace
}  // namespace espalier::speculate
