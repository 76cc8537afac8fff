// SPDX-License-Identifier: Apache-2.0
// What prompts share: the prefix index at admission and after preemption, prompt logits, choices of
// one request, pages of generated text.
#include <gtest/gtest.h>

#include "schedule/inspection.hpp"
#include "schedule/scheduler.hpp"
#include "schedule/steps.hpp"

namespace espalier::schedule {
namespace {

RequestId submit_one(Scheduler& scheduler, const Request& request) {
    return scheduler.submit(request).at(0);
}

TEST(SchedulerPrefix, ASecondPromptCostsLessThanAPageAndItsTail) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(4000, 5));
    EXPECT_EQ(steps.run_all(), 4000);
    const RequestId second = submit_one(*scheduler, prompt_of(4000, 5));
    const Plan& plan = steps.plan();
    EXPECT_EQ(tokens_for(plan, second), 4000 - 62 * 64);
    EXPECT_EQ(plan.rows[0].first_position, 62 * 64);
    EXPECT_EQ(scheduler->hit_tokens(second.slot), 62 * 64);
    EXPECT_EQ(scheduler->totals().hit_tokens, 62 * 64);
}

TEST(SchedulerPrefix, ALookupLeavesOneTokenToCompute) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(129, 1));
    steps.run_all();
    submit_one(*scheduler, prompt_of(128, 1));
    EXPECT_EQ(steps.run_all(), 64);
    submit_one(*scheduler, prompt_of(129, 1));
    EXPECT_EQ(steps.run_all(), 1);
    Request salted = prompt_of(129, 1);
    salted.salt = 5;
    submit_one(*scheduler, salted);
    EXPECT_EQ(steps.run_all(), 129);
}

TEST(SchedulerPrefix, NothingIsFoundWhenTheCacheIsOff) {
    SchedulerOptions options = small_options();
    options.prefix_cache = false;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    for (int i = 0; i < 3; ++i) {
        Request request = prompt_of(1000, 3);
        request.choices = 2;  // choices of one request still share
        scheduler->submit(request);
        EXPECT_EQ(steps.run_all(), 1000 + (1000 - 960));
    }
}

// The rule of written_len does not know how many tokens a step committed.
TEST(SchedulerPrefix, SpeculationDoesNotLowerTheHits) {
    std::vector<std::int64_t> hits;
    for (const std::int32_t drafts : {0, 3, 63}) {
        SchedulerOptions options = small_options();
        options.prefill_segment = 0;
        const auto scheduler = Scheduler::create(options).value();
        Stepper steps(*scheduler);
        submit_one(*scheduler, prompt_of(100, 400));
        steps.run_all(drafts);
        Request turn = prompt_of(100, 1);
        turn.prompt.insert(turn.prompt.end(), 400, 7);  // what the stepper draws
        turn.prompt.insert(turn.prompt.end(), 100, 9);
        submit_one(*scheduler, turn);
        steps.run_all();
        hits.push_back(scheduler->totals().hit_tokens);
    }
    EXPECT_EQ(hits, (std::vector<std::int64_t>{448, 448, 448}));  // 499 written slots: 7 pages
}

// Pages of generated text are absorbed. A prompt whose own form there is decompressed does not find
// them, so that a hit has the bits of recomputation; with reuse_generated it does.
TEST(SchedulerPrefix, GeneratedTextIsFoundInItsOwnFormUnlessReuseIsAskedFor) {
    for (const bool reuse : {false, true}) {
        SchedulerOptions options = small_options();
        options.reuse_generated = reuse;
        const auto scheduler = Scheduler::create(options).value();
        Stepper steps(*scheduler);
        submit_one(*scheduler, prompt_of(100, 400));        // F = 0; 499 slots get written
        submit_one(*scheduler, prompt_of(300, 400, 1000));  // F = 256; 699
        steps.run_all(3);
        const auto hits_of_turn = [&](std::int32_t first, std::int32_t prompt, std::size_t length) {
            Request turn = prompt_of(prompt, 1, first);
            turn.prompt.insert(turn.prompt.end(), 400, 7);
            turn.prompt.resize(length, 9);
            const RequestId id = submit_one(*scheduler, turn);
            steps.plan();
            const std::int64_t hits = scheduler->hit_tokens(id.slot);
            steps.advance();
            steps.run_all();
            return hits;
        };
        EXPECT_EQ(hits_of_turn(0, 100, 256), 192);                   // F = 0: the same form
        EXPECT_EQ(hits_of_turn(0, 100, 257), reuse ? 256 : 0);       // F = 256
        EXPECT_EQ(hits_of_turn(1000, 300, 900), reuse ? 640 : 256);  // F = 896
        scheduler->audit();
    }
}

// Prompts that begin alike share all full pages that are alike, whatever their lengths, if both
// are of more than 256 tokens.
TEST(SchedulerPrefix, PromptsOfOtherLengthsShareTheirBeginning) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(600, 1));
    steps.run_all();
    for (const std::int32_t tokens : {257, 320, 321, 383, 449, 512, 513, 575, 577, 600}) {
        const RequestId id = submit_one(*scheduler, prompt_of(tokens, 1));
        const Plan& plan = steps.plan();
        EXPECT_EQ(scheduler->hit_tokens(id.slot), (tokens - 1) / 64 * 64) << tokens;
        EXPECT_EQ(plan.tokens.prompt_decompressed, 0) << tokens;
        steps.advance();
        steps.run_all();
    }
}

// ---- prompt logits ------------------------------------------------------------------------------

TEST(SchedulerPrefix, APromptWhoseLogitsAreWantedIsNotLookedUp) {
    SchedulerOptions options = small_options();
    options.max_step_gather = 300;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(1000, 1));
    steps.run_all();
    Request request = prompt_of(1000, 1);
    request.prompt_logits = true;
    submit_one(*scheduler, request);
    std::vector<std::int64_t> gathered;
    while (!scheduler->idle()) {
        const Plan& plan = steps.step();  // chunks are cut by the rows of logits
        for (const PlannedRow& row : plan.rows) EXPECT_EQ(row.gather, Gather::prompt);
        gathered.push_back(plan.tokens.gathered);
    }
    EXPECT_EQ(gathered, (std::vector<std::int64_t>{300, 300, 300, 100}));
    EXPECT_EQ(scheduler->totals().hit_tokens, 0);
}

TEST(SchedulerPrefix, LogitsAreComputedOncePerGroupAndNotAgainAfterPreemption) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 20;
    options.max_step_tokens = 520;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    Request request = prompt_of(1000, 10);
    request.prompt_logits = true;
    request.choices = 2;
    request.priority = 1;
    const auto ids = scheduler->submit(request);
    std::int64_t prompt_gathered = 0;
    bool preempted = false;
    for (int i = 0; !scheduler->idle(); ++i) {
        const Plan& plan = steps.plan();
        for (const PlannedRow& row : plan.rows)
            if (row.gather == Gather::prompt) prompt_gathered += row.gather_count();
        steps.advance();
        if (i == 0) submit_one(*scheduler, prompt_of(900, 2, 5000));
        preempted = preempted || scheduler->totals().preemptions > 0;
        scheduler->forget_ended();
        ASSERT_LT(i, 100);
    }
    EXPECT_TRUE(preempted);
    EXPECT_EQ(prompt_gathered, 1000);
}

// ---- choices ------------------------------------------------------------------------------------

class SchedulerChoices : public testing::Test {
  protected:
    void submit(std::int64_t tokens, std::int32_t choices) {
        Request request = prompt_of(tokens, 20);
        request.choices = choices;
        ids_ = scheduler_->submit(request);
    }
    std::int64_t planned(int choice) { return tokens_for(steps_.plan(), ids_.at(choice)); }

    std::unique_ptr<Scheduler> scheduler_ = Scheduler::create(small_options()).value();
    Stepper steps_{*scheduler_};
    std::vector<RequestId> ids_;
};

TEST_F(SchedulerChoices, OneComputesThePromptAndTheOthersTheirTails) {
    submit(2000, 3);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(scheduler_->choice(ids_[i].slot), i);
    const Plan& first = steps_.step();
    EXPECT_EQ(tokens_for(first, ids_[0]), 1024);
    EXPECT_EQ(first.requests.size(), 1u);
    const Plan& second = steps_.step();
    EXPECT_EQ(tokens_for(second, ids_[0]), 976);
    EXPECT_EQ(second.requests.size(), 1u);
    const Plan& third = steps_.plan();
    EXPECT_EQ(tokens_for(third, ids_[0]), 1);
    EXPECT_EQ(tokens_for(third, ids_[1]), 2000 - 31 * 64);
    EXPECT_EQ(tokens_for(third, ids_[2]), 2000 - 31 * 64);
    EXPECT_EQ(scheduler_->gauges().pages.owned, 31 + 3);
}

// Also when the batch has room for all of them.
TEST_F(SchedulerChoices, WaitRatherThanComputeThePromptTwice) {
    submit(300, 3);
    EXPECT_EQ(steps_.step().requests.size(), 1u);
    EXPECT_EQ(steps_.plan().tokens.total(), 1 + 2 * (300 - 256));
}

TEST_F(SchedulerChoices, AnotherLeadsWhenTheFirstIsCancelled) {
    submit(2000, 3);
    steps_.step();
    scheduler_->cancel(ids_[0]);
    const Plan& plan = steps_.step();  // goes on behind the pages the first had published
    EXPECT_EQ(tokens_for(plan, ids_[1]), 2000 - 1024);
    EXPECT_EQ(tokens_for(plan, ids_[2]), 0);
    EXPECT_EQ(tokens_for(steps_.step(), ids_[2]), 2000 - 31 * 64);
    steps_.run_all();
    scheduler_->audit();
    EXPECT_EQ(scheduler_->totals().finished, 2);
}

TEST_F(SchedulerChoices, TheFirstLeadsAgainWhenItWasPreempted) {
    submit(2000, 2);
    steps_.step();
    Request urgent = prompt_of(5500, 1, 10000);
    urgent.priority = -1;
    submit_one(*scheduler_, urgent);
    const Plan& plan = steps_.step();
    EXPECT_EQ(plan.requests.size(), 1u);
    EXPECT_EQ(preemptions_of(*scheduler_, ids_[0].slot), 1);
    EXPECT_EQ(preemptions_of(*scheduler_, ids_[1].slot), 0);
    while (!scheduler_->ended().size()) steps_.step();
    const Plan& again = steps_.plan();
    EXPECT_GE(tokens_for(again, ids_[0]), 976);
    EXPECT_EQ(tokens_for(again, ids_[1]), 0);
    steps_.advance();
    steps_.run_all();
    EXPECT_EQ(scheduler_->totals().finished, 3);
}

// In the very plan that preempts the first, its sibling and those behind it do not slip past it.
TEST(SchedulerPrefix, NobodyPassesAFirstChoiceThatWasJustPreempted) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 20;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    Request pair = prompt_of(1100, 10);
    pair.choices = 2;
    const RequestId first = scheduler->submit(pair).at(0);
    const RequestId small = submit_one(*scheduler, prompt_of(10, 5, 5000));
    steps.step();
    Request urgent = prompt_of(900, 2, 7000);
    urgent.priority = -1;
    submit_one(*scheduler, urgent);
    const Plan& plan = steps.plan();
    EXPECT_EQ(preemptions_of(*scheduler, first.slot), 1);
    EXPECT_EQ(tokens_for(plan, small), 0);
    EXPECT_EQ(plan.requests.size(), 1u);
}

TEST_F(SchedulerChoices, ShortPromptsHaveNothingToWaitFor) {
    submit(64, 4);
    EXPECT_EQ(steps_.step().requests.size(), 4u);
}

// A row is kept for a choice that waits for its sibling: a younger request does not take it.
TEST_F(SchedulerChoices, KeepTheirRowsWhileTheyWait) {
    submit(1500, 8);
    const RequestId other = submit_one(*scheduler_, prompt_of(30, 5, 9000));
    steps_.step();
    EXPECT_EQ(tokens_for(steps_.step(), other), 0);
    EXPECT_EQ(steps_.step().requests.size(), 8u);
    steps_.run_all();
    EXPECT_EQ(scheduler_->totals().preemptions, 0);
}

}  // namespace
}  // namespace espalier::schedule
