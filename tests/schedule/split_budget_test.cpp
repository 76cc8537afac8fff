// SPDX-License-Identifier: Apache-2.0
// The budget of attention splits: what is refused, who goes on when it does not do for all.
#include <gtest/gtest.h>

#include "schedule/scheduler.hpp"
#include "schedule/steps.hpp"

namespace espalier::schedule {
namespace {

std::int64_t per_64_slots(std::int64_t q_len, std::int64_t kv_len) {
    return q_len * ((kv_len + 63) / 64);
}

// A row of max_model_len takes 100.
SchedulerOptions options_with(std::int64_t splits) {
    SchedulerOptions options = small_options();
    options.page_count = 1001;
    options.max_step_splits = splits;
    options.row_splits = per_64_slots;
    return options;
}

TEST(SplitBudget, MustDoForTheLongestStreamAndTheLongestPrompt) {
    const auto refusal = [](const SchedulerOptions& options) {
        const auto made = Scheduler::create(options);
        return made ? "accepted" : made.error().message;
    };
    EXPECT_EQ(refusal(options_with(200)), "accepted");
    EXPECT_EQ(refusal(options_with(199)),
              "scheduler: max_step_splits (two rows of max_model_len) is 199, but must be at least "
              "200");
    SchedulerOptions without = options_with(200);
    without.row_splits = {};
    EXPECT_EQ(refusal(without), "scheduler: max_step_splits is 200 without row_splits");
}

// Six streams of 41 pages each, 246 splits a step, where 200 are there and no prompt wants any:
// four go on, in order, and the others when those have ended.
TEST(SplitBudget, LeavesOutStreamsFromTheEnd) {
    const auto scheduler = Scheduler::create(options_with(200)).value();
    Stepper steps(*scheduler);
    std::vector<RequestId> ids;
    for (std::int32_t i = 0; i < 6; ++i)
        ids.push_back(scheduler->submit(prompt_of(2600, 400, 10'000 * i)).at(0));
    while (scheduler->gauges().running < 6) steps.step();
    const Plan& plan = steps.plan();
    EXPECT_EQ(plan.requests.size(), 4u);
    EXPECT_LE(plan.splits, 200);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(plan.requests[i].id, ids[i]);
    steps.advance();
    steps.run_all();
    EXPECT_EQ(scheduler->totals().finished, 6);
}

// Prompts have half: an absorbed prompt of 1,000 tokens goes on beside the streams, by as many
// tokens as fit.
TEST(SplitBudget, KeepsHalfForTheFirstPrompt) {
    SchedulerOptions options = options_with(200);
    options.prefill_segment = 0;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    for (std::int32_t i = 0; i < 3; ++i) scheduler->submit(prompt_of(2600, 1000, 10'000 * i));
    while (scheduler->gauges().running < 3) steps.step();
    const RequestId late = scheduler->submit(prompt_of(1000, 1, 50'000)).at(0);
    const Plan& plan = steps.plan();
    EXPECT_EQ(plan.requests.size(), 3u);  // two streams of 41, then the prompt
    EXPECT_EQ(tokens_for(plan, late),
              64);  // one split each; one more token would make it two each, of 118
    EXPECT_LE(plan.splits, 200);
    steps.advance();
}

// A tree at 41 pages takes 41 splits a node.
TEST(SplitBudget, CutsDraftsToWhatIsLeft) {
    const auto scheduler = Scheduler::create(options_with(200)).value();
    Stepper steps(*scheduler);
    for (std::int32_t i = 0; i < 2; ++i) scheduler->submit(prompt_of(2600, 100, 10'000 * i));
    while (scheduler->gauges().running < 2) steps.step();
    const Plan& plan = steps.plan(10);
    ASSERT_EQ(plan.requests.size(), 2u);
    EXPECT_EQ(plan.requests[0].drafts, 2);  // each was offered two, both together find two
    EXPECT_EQ(plan.requests[1].drafts, 0);
    EXPECT_EQ(plan.splits, 4 * 41);
    steps.advance();
}

}  // namespace
}  // namespace espalier::schedule
