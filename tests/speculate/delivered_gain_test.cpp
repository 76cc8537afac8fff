// SPDX-License-Identifier: Apache-2.0
// The part of a predicted gain that is delivered, from steps whose tokens and times are known.
#include "speculate/delivered_gain.hpp"

#include <gtest/gtest.h>

namespace espalier::speculate {
namespace {

constexpr StepPromise kPlain = {.tokens = 1, .seconds = 1, .drafts = false};
constexpr StepPromise kDrafts = {.tokens = 2, .seconds = 1.5, .drafts = true};

// One plain step in eight.
void observe(DeliveredGain& gain, int steps, double tokens, double seconds, double plain_seconds) {
    for (int i = 0; i < steps; ++i)
        if (i % 8 == 0)
            gain.observe(1, kPlain, 1, plain_seconds);
        else
            gain.observe(1, kDrafts, tokens, seconds);
}

TEST(DeliveredGain, IsAllOfItWherePromisesAreKept) {
    DeliveredGain gain;
    EXPECT_EQ(gain.factor(1), 1);
    observe(gain, 300, 2, 1.5, 1);
    EXPECT_NEAR(gain.factor(1), 1, 1e-9);
    observe(gain, 300, 2.5, 1.5, 1);  // more than was promised
    EXPECT_EQ(gain.factor(1), 1);
}

TEST(DeliveredGain, CountsTokensThatDoNotComeAndTimeThatWasNotForeseen) {
    DeliveredGain tokens, seconds;
    observe(tokens, 400, 1.8, 1.5, 1);
    EXPECT_NEAR(tokens.factor(1), 0.9, 0.02);
    observe(seconds, 400, 2, 1.65, 1);
    EXPECT_NEAR(seconds.factor(1), 1.5 / 1.65, 0.02);
}

TEST(DeliveredGain, AMachineThatIsSlowerAsAWholeChangesNothing) {
    DeliveredGain gain;
    observe(gain, 400, 2, 1.5 * 1.3, 1.3);
    EXPECT_NEAR(gain.factor(1), 1, 0.03);
}

TEST(DeliveredGain, IsForgottenWhileNothingIsDraftedAndLearntAgainSoon) {
    DeliveredGain gain;
    observe(gain, 400, 1.6, 1.5, 1);
    int steps = 0;
    while (gain.factor(1) < 0.95) {
        gain.observe(1, kPlain, 1, 1);
        ASSERT_LT(++steps, 2000);
    }
    EXPECT_GT(steps, 100);
    for (int i = 0; i < 16; ++i) gain.observe(1, kDrafts, 1.6, 1.5);
    EXPECT_LT(gain.factor(1), 0.92);
}

TEST(DeliveredGain, OneWildStepTellsLittleAndOtherBatchesNothing) {
    DeliveredGain gain;
    observe(gain, 400, 2, 1.5, 1);
    gain.observe(1, kDrafts, 2, 1000);
    EXPECT_GT(gain.factor(1), 0.97);
    observe(gain, 400, 1, 3, 1);
    EXPECT_EQ(gain.factor(1), 0.85);
    EXPECT_EQ(gain.factor(2), 1);
    EXPECT_EQ(gain.factor(1 << 20), 1);
    // What was promised nothing, or took no time that a clock shows, tells nothing.
    gain.observe(8, {}, 0, 1);
    gain.observe(8, kDrafts, 0, 0);
    EXPECT_EQ(gain.factor(8), 1);
}

}  // namespace
}  // namespace espalier::speculate
