// SPDX-License-Identifier: Apache-2.0
// When a draft model is left behind, and when it comes back.
#include "speculate/policy/watch.hpp"

#include <gtest/gtest.h>

namespace espalier::speculate {
namespace {

// Steps of a second, of which looking on takes 0.05. Returns how many of them looked on.
struct TestSteps {
    std::int64_t rows = 8;
    double gain = 0;  // where it may be asked
    bool may_draft = true, able = true;
};

int run(Watch& watch, const TestSteps& steps, int count) {
    int looked_on = 0;
    for (int i = 0; i < count; ++i) {
        const bool awake = watch.awake();
        looked_on += awake ? 1 : 0;
        watch.observe({.rows = steps.rows,
                       .seconds = 1,
                       .look_on = awake ? 0.05 : 0,
                       .gain = awake && steps.able ? steps.gain : 0,
                       .pause = steps.may_draft ? 0 : 4096,
                       .able = awake && steps.able});
    }
    return looked_on;
}

TEST(Watch, AModelThatGainsMoreThanItCostsStays) {
    Watch watch;
    EXPECT_EQ(run(watch, {.gain = 0.06}, 10000), 10000);
}

TEST(Watch, OneThatDoesNotIsLeftBehindAndTriedNowAndThen) {
    Watch watch;
    EXPECT_LT(run(watch, {.gain = 0.03}, 1000), 40);
    const int later = run(watch, {.gain = 0.03}, 200000);
    EXPECT_GT(later, 50);
    EXPECT_LT(0.05 * later, 0.005 * 200000);
    EXPECT_GT(run(watch, {.gain = 0.2}, 100000), 60000);  // and it stays when it has become good
}

TEST(Watch, ATrialInWhichNoTextIsItsOwnEnds) {
    Watch watch;
    EXPECT_LT(run(watch, {.gain = 1, .able = false}, 2000), 170);  // eight steps' time
}

TEST(Watch, IsLeftBehindWhereDraftModelsMayNotBeAsked) {
    Watch watch;
    run(watch, {.gain = 0.2}, 100);
    EXPECT_LT(run(watch, {.gain = 0.2, .may_draft = false}, 20000), 20);
    EXPECT_FALSE(watch.awake());  // nor tried
    EXPECT_GT(run(watch, {.gain = 0.2}, 100), 95);
}

TEST(Watch, AClockThatStandsStillSaysNothing) {
    Watch watch;
    for (int i = 0; i < 1000; ++i) watch.observe({.seconds = 0});
    EXPECT_TRUE(watch.awake());
}

// The way was judged, not the model: it is back when the way is open again.
TEST(Watch, OneThatIsLeftBecauseItMayNotDraftComesBackWithItsWay) {
    Watch watch;
    for (std::int64_t pause = 128; pause > 0; --pause)
        watch.observe(
            {.rows = 8, .seconds = 1, .look_on = watch.awake() ? 0.05 : 0, .pause = pause});
    EXPECT_FALSE(watch.awake());
    watch.observe({.rows = 8, .seconds = 1});
    EXPECT_TRUE(watch.awake());
}

}  // namespace
}  // namespace espalier::speculate
