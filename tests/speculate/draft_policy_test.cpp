// SPDX-License-Identifier: Apache-2.0
// Rules of the policy, told as facts: no drafter, no engine, no clock.
#include "speculate/policy/draft_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace espalier::speculate {
namespace {

constexpr RequestSlot kRequest{0};

// One request and a drafter without passes. Asking the drafter makes a step longer by half, in
// whatever way that escapes StepTime; a draft takes as long as two steps, so none is granted.
class LosingDrafter {
  public:
    explicit LosingDrafter(std::int64_t right_of_ten) : right_of_ten_(right_of_ten) {
        policy_.take(RequestBegun{kRequest});
        StepFacts step;
        step.load = {.size = {.rows = 1, .tokens = 1}, .expected_tokens = 1, .max_drafts = 15};
        step.drafters[0].works = true;
        step.rows = {{.request = kRequest, .max_drafts = 15, .drafts = true, .read = true}};
        step_ = step;
    }

    // Returns whether the drafter is suspended.
    bool step() {
        policy_.take(step_);
        const bool suspended = policy_.pause(0, false) > 0;
        std::int64_t granted = 0;
        const bool proposes = policy_.asks() && policy_.shape(0, 0).depth > 0;
        if (policy_.asks()) {
            OfferedFacts offered{.free_seconds = 1e-6, .drafts = {0}};
            if (proposes) offered.drafts = {1}, offered.survival = {0.55};
            policy_.take(offered);
            granted = policy_.granted()[0];
        }
        const bool right = ++steps_ * right_of_ten_ % 10 < right_of_ten_;
        if (proposes) policy_.take(ComparedFacts{kRequest, {{place_of(0, 1, 0, 0.9f), 0, right}}});
        OutcomeFacts outcome{.size = {.rows = 1, .tokens = 1 + granted}};
        outcome.tokens = granted > 0 && right ? 2 : 1;
        outcome.seconds = 1e-3 + 2e-3 * static_cast<double>(granted);
        if (proposes && !suspended) outcome.seconds += 0.5e-3;
        outcome.drafting = outcome.seconds - 1e-3 - 2e-3 * static_cast<double>(granted);
        policy_.take(outcome);
        return suspended;
    }

    // Longest suspension in 3,000 steps.
    std::int64_t longest_pause() {
        std::int64_t pause = 0, longest = 0;
        for (int i = 0; i < 3000; ++i) {
            pause = step() ? pause + 1 : 0;
            longest = std::max(longest, pause);
        }
        return longest;
    }

  private:
    DraftPolicy policy_{{.drafters = 1, .max_rows = 1}};
    StepFacts step_;
    std::int64_t right_of_ten_, steps_ = 0;
};

TEST(DraftPolicy, TriesASuspendedDrafterThatIsRightMoreThanHalfOfTheTimeWithin64Steps) {
    const std::int64_t pause = LosingDrafter(6).longest_pause();
    EXPECT_GT(pause, 32);  // it is suspended
    EXPECT_LE(pause, 64);
    EXPECT_GE(LosingDrafter(3).longest_pause(), 512);
}

TEST(DraftPolicy, PrescribedDraftsAreGrantedAndSuspendNothing) {
    DraftPolicy policy({.drafters = 1, .max_rows = 1});
    policy.take(RequestBegun{kRequest, true});
    StepFacts step;
    step.load = {.size = {.rows = 1, .tokens = 1}, .expected_tokens = 1, .max_drafts = 15};
    step.drafters[0] = {.works = true, .passes = true, .looks_on = true};
    step.rows = {{.request = kRequest, .max_drafts = 15, .drafts = true, .read = true}};
    step.rows[0].prescribed = DraftShape{.depth = 2, .width = 1, .nodes = 3};
    for (int i = 0; i < 500; ++i) {
        policy.take(step);
        ASSERT_TRUE(policy.asks());
        ASSERT_EQ(policy.shape(0, 0), *step.rows[0].prescribed);
        policy.take(OfferedFacts{.model_seconds = 1e-3, .drafts = {2}, .survival = {0.1, 0.01}});
        ASSERT_EQ(policy.granted()[0], 2);
        OutcomeFacts outcome{.size = {.rows = 1, .tokens = 3}};
        outcome.tokens = 1;
        outcome.seconds = 20e-3;  // twenty times a plain step, for nothing
        policy.take(outcome);
        ASSERT_EQ(policy.pause(0, true), 0);
        ASSERT_TRUE(policy.awake(0));
    }
}

}  // namespace
}  // namespace espalier::speculate
