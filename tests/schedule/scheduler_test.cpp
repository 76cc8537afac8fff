// SPDX-License-Identifier: Apache-2.0
// Single rules of the scheduler: what it checks, the order of grants, preemption, limits of
// drafts, ends at any moment, slots, allocation.
#include "schedule/scheduler.hpp"

#include <gtest/gtest.h>

#include "base/check.hpp"
#include "schedule/inspection.hpp"
#include "schedule/steps.hpp"
#include "support/allocation_counter.hpp"

namespace espalier::schedule {
namespace {

bool taken(Scheduler& scheduler, const Request& request) {
    try {
        scheduler.submit(request);
        return true;
    } catch (const CheckFailure&) {
        return false;
    }
}

RequestId submit_one(Scheduler& scheduler, const Request& request) {
    return scheduler.submit(request).at(0);
}

Request with_priority(Request request, std::int32_t priority) {
    request.priority = priority;
    return request;
}

// The edge refuses these; what comes through all the same is an error of the program, and changes
// nothing.
TEST(Scheduler, ChecksWhatTheEdgeLetsThrough) {
    const auto scheduler = Scheduler::create(small_options()).value();
    EXPECT_FALSE(taken(*scheduler, prompt_of(0)));
    EXPECT_FALSE(taken(*scheduler, prompt_of(10, -1)));
    EXPECT_FALSE(taken(*scheduler, prompt_of(6000, 401)));  // of 6400
    SchedulerOptions tiny = small_options();
    tiny.page_count = 11;
    const auto small = Scheduler::create(tiny).value();
    EXPECT_FALSE(taken(*small, prompt_of(600, 42)));
    EXPECT_TRUE(taken(*small, prompt_of(600, 41)));  // the last token's KV is not kept
    EXPECT_TRUE(taken(*small, prompt_of(640, 0)));   // a prompt's is
    EXPECT_FALSE(taken(*small, prompt_of(641, 0)));
    Request request = prompt_of(10);
    request.choices = 0;
    EXPECT_FALSE(taken(*scheduler, request));
    request.choices = scheduler->slot_count() + 1;
    EXPECT_FALSE(taken(*scheduler, request));
    request.choices = 1;
    request.max_drafts = 64;
    EXPECT_FALSE(taken(*scheduler, request));
    EXPECT_EQ(scheduler->totals().submitted, 0);
    EXPECT_TRUE(scheduler->idle());
}

// A prompt that only its logits are wanted of ends with the step that completes it.
TEST(Scheduler, APromptMayBeAllThatIsWanted) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Request request = prompt_of(700, 0);
    request.prompt_logits = true;
    request.choices = 2;
    const std::vector<RequestId> ids = scheduler->submit(request);
    Time now = 0;
    for (int step = 0; step < 20 && !scheduler->idle(); ++step) {
        const Plan& plan = scheduler->next_plan(++now);
        std::vector<Outcome> outcomes(plan.requests.size());
        for (std::size_t i = 0; i < outcomes.size(); ++i)
            if (plan.requests[i].draws()) outcomes[i].end = Outcome::End::finished;
        scheduler->advance(outcomes, now);
    }
    EXPECT_TRUE(scheduler->idle());
    EXPECT_EQ(scheduler->totals().finished, 2);
    EXPECT_EQ(scheduler->totals().committed, 0);
    EXPECT_EQ(scheduler->ended().size(), ids.size());
}

TEST(Scheduler, RefusesContradictingOptions) {
    SchedulerOptions options = small_options();
    options.max_step_tokens = 519;
    EXPECT_EQ(Scheduler::create(options).error().message,
              "scheduler: max_step_tokens (max_rows + prompt_quantum) is 519, but must be at least "
              "520");
    options = small_options();
    options.prefill_segment = 128;
    EXPECT_EQ(Scheduler::create(options).error().message,
              "scheduler: prefill_segment is 128, but only 64, 256 (traces of older versions) and "
              "0 (everything absorbed) are defined");
}

// Roots, then a quantum, then drafts, then the rest to prompts.
TEST(Scheduler, GrantsInOrder) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    const RequestId a = submit_one(*scheduler, prompt_of(20));
    const RequestId b = submit_one(*scheduler, prompt_of(30, 100, 1000));
    steps.step();
    const RequestId c = submit_one(*scheduler, prompt_of(3000, 100, 2000));
    const RequestId d = submit_one(*scheduler, prompt_of(40, 100, 6000));
    const NodeOffers& offers = scheduler->offer_nodes(0);
    ASSERT_EQ(offers.rows.size(), 2u);
    EXPECT_EQ(offers.rows[0].slot, a.slot);
    EXPECT_EQ(offers.rows[0].max_drafts, 63);
    EXPECT_EQ(offers.granted_tokens, 2 + 512);
    EXPECT_EQ(offers.granted_rows, 3);
    EXPECT_EQ(offers.max_drafts, 1024 - 514);
    const std::vector<std::int32_t> drafts = {63, 5};
    const Plan& plan = scheduler->next_plan(drafts);
    EXPECT_EQ(tokens_for(plan, a), 64);
    EXPECT_EQ(tokens_for(plan, b), 6);
    EXPECT_EQ(tokens_for(plan, c), 1024 - 70);  // the quantum and all that is left
    EXPECT_EQ(tokens_for(plan, d), 0);
    EXPECT_EQ(plan.tokens.total(), 1024);
    ASSERT_EQ(plan.rows.size(), 3u);
    EXPECT_EQ(plan.rows[0].gather_count(), 64);
    EXPECT_EQ(plan.rows[2].gather_count(), 0);
    EXPECT_EQ(plan.rows[2].form, cache::Form::decompressed);
}

TEST(Scheduler, AChunkIsAQuantumOrTheRest) {
    SchedulerOptions options = small_options();
    options.max_step_tokens = 1000;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    const RequestId a = submit_one(*scheduler, prompt_of(600));
    const RequestId b = submit_one(*scheduler, prompt_of(600, 100, 1000));
    const RequestId c = submit_one(*scheduler, prompt_of(300, 100, 2000));
    const Plan& plan = steps.plan();
    EXPECT_EQ(tokens_for(plan, a), 600);
    EXPECT_EQ(tokens_for(plan, b), 0);  // 400 tokens are left, and it would get more than 512 next
    EXPECT_EQ(tokens_for(plan, c), 0);  // comes after b
    steps.advance();
    EXPECT_EQ(tokens_for(steps.step(), b), 600);
}

// A chunk across F is two adjacent rows; what is generated stays absorbed after a preemption.
TEST(Scheduler, FormGoesByPlaceAlsoAfterPreemption) {
    SchedulerOptions options = small_options();
    options.page_count = 11;
    options.prefix_cache = false;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    const RequestId young = submit_one(*scheduler, with_priority(prompt_of(257, 300), 1));
    const Plan& first = steps.step();
    ASSERT_EQ(first.rows.size(), 2u);
    EXPECT_EQ(first.rows[0].form, cache::Form::decompressed);
    EXPECT_EQ(first.rows[0].q_len, 256);
    EXPECT_EQ(first.rows[0].gather, Gather::none);
    EXPECT_EQ(first.rows[1].form, cache::Form::absorbed);
    EXPECT_EQ(first.rows[1].first_position, 256);
    EXPECT_EQ(first.rows[1].gather, Gather::last);
    for (int i = 0; i < 8; ++i) steps.step(31);  // 1 + 8 · 32 tokens of output
    EXPECT_EQ(scheduler->tokens(young.slot).size(), 257u + 257u);
    const RequestId urgent = submit_one(*scheduler, prompt_of(400, 2, 5000));
    EXPECT_EQ(tokens_for(steps.step(), urgent), 400);
    EXPECT_TRUE(std::holds_alternative<Waiting>(state_of(*scheduler, young.slot)));
    EXPECT_EQ(preemptions_of(*scheduler, young.slot), 1);
    EXPECT_EQ(scheduler->tokens(young.slot).size(), 257u + 257u);  // kept
    steps.step();
    // Now 514 tokens long; F is still 256.
    const Plan& again = steps.plan();
    ASSERT_EQ(again.rows.size(), 2u);
    EXPECT_EQ(again.rows[0].form, cache::Form::decompressed);
    EXPECT_EQ(again.rows[1].form, cache::Form::absorbed);
    EXPECT_EQ(again.rows[1].first_position, 256);
}

// At most a page is absorbed, of a prompt of more than 256 tokens; by the older rule, for its
// traces, up to 256 tokens.
TEST(Scheduler, TheSegmentSaysHowMuchOfAPromptIsAbsorbed) {
    struct Case {
        std::int64_t segment, prompt, absorbed;
    };
    for (const Case& one : {Case{64, 256, 256},
                            {64, 257, 1},
                            {64, 320, 64},
                            {64, 321, 1},
                            {64, 512, 64},
                            {256, 256, 256},
                            {256, 321, 65},
                            {256, 512, 256}}) {
        SchedulerOptions options = small_options();
        options.prefill_segment = one.segment;
        const auto scheduler = Scheduler::create(options).value();
        Stepper steps(*scheduler);
        submit_one(*scheduler, prompt_of(static_cast<std::int32_t>(one.prompt)));
        const Plan& plan = steps.step();
        EXPECT_EQ(plan.tokens.prompt_absorbed, one.absorbed) << one.segment << ", " << one.prompt;
        EXPECT_EQ(plan.tokens.total(), one.prompt);
    }
}

TEST(Scheduler, EverythingIsAbsorbedWithoutASegment) {
    SchedulerOptions options = small_options();
    options.prefill_segment = 0;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(1000));
    const Plan& plan = steps.step();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].form, cache::Form::absorbed);
    EXPECT_EQ(plan.rows[0].q_len, 1000);
}

// The least urgent of three running requests makes way, then the youngest. Before that, the last in
// order only stands still: it keeps its pages until one before it needs them.
TEST(Scheduler, PreemptsTheLowestPriorityThenTheYoungest) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 9;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    Request request = prompt_of(100, 400, 3000);
    request.priority = 5;
    const RequestId low = submit_one(*scheduler, request);
    const RequestId old = submit_one(*scheduler, prompt_of(100, 400));
    const RequestId young = submit_one(*scheduler, prompt_of(100, 400, 1000));
    const auto length = [&](RequestId id) { return scheduler->tokens(id.slot).size(); };
    steps.step();
    ASSERT_EQ(scheduler->gauges().running, 3);
    while (length(old) < 193) steps.step();
    EXPECT_EQ(scheduler->totals().preemptions, 0);  // three pages each
    steps.step();
    EXPECT_EQ(preemptions_of(*scheduler, low.slot), 1);
    while (length(old) < 321) steps.step();  // five pages; four are left for the other
    EXPECT_EQ(preemptions_of(*scheduler, young.slot), 0);
    EXPECT_EQ(length(young), 257u);
    EXPECT_GT(scheduler->totals().stalled_rows, 0);
    steps.step();
    EXPECT_EQ(preemptions_of(*scheduler, young.slot), 1);
    EXPECT_EQ(length(young), 257u);
    EXPECT_EQ(preemptions_of(*scheduler, old.slot), 0);
    EXPECT_EQ(tokens_for(steps.plan(), old), 1);
}

// Two requests that each need the whole pool: the first runs to its end, step by step, and then the
// second does. Nobody preempts an elder, so nothing goes back and forth.
TEST(Scheduler, TheFirstInOrderProgressesInEveryStep) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 8;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    const RequestId first = submit_one(*scheduler, prompt_of(200, 313));
    const RequestId second = submit_one(*scheduler, prompt_of(200, 313, 1000));
    for (int i = 0; i < 313; ++i) ASSERT_GE(tokens_for(steps.step(), first), 1) << i;
    ASSERT_EQ(scheduler->ended().size(), 1u);
    EXPECT_LE(preemptions_of(*scheduler, second.slot), 1);
    for (int i = 0; scheduler->ended().size() < 2; ++i) {
        ASSERT_GE(tokens_for(steps.step(), second), 1);
        ASSERT_LT(i, 314);
    }
}

TEST(Scheduler, AMoreUrgentPromptTakesRowAndPagesOfOthers) {
    SchedulerOptions options = small_options();
    options.max_rows = 2;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    const RequestId a = submit_one(*scheduler, with_priority(prompt_of(20), 1));
    const RequestId b = submit_one(*scheduler, with_priority(prompt_of(20, 100, 100), 1));
    steps.step();
    const RequestId urgent = submit_one(*scheduler, prompt_of(20, 100, 200));
    // b makes way and loses the root that it had been granted in this very plan.
    const NodeOffers& offers = scheduler->offer_nodes(0);
    EXPECT_EQ(offers.granted_tokens, 1 + 20);
    EXPECT_EQ(offers.max_drafts, 1024 - 21);
    ASSERT_EQ(offers.rows.size(), 1u);
    const std::vector<std::int32_t> none = {0};
    const Plan& plan = scheduler->next_plan(none);
    EXPECT_EQ(tokens_for(plan, urgent), 20);
    EXPECT_EQ(tokens_for(plan, a), 1);
    EXPECT_EQ(tokens_for(plan, b), 0);
    EXPECT_EQ(plan.tokens.total(), 21);
}

// ---- drafts -------------------------------------------------------------------------------------

TEST(Scheduler, OffersNoMoreNodesThanTokensLeft) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(10, 4));
    Request few = prompt_of(10, 100, 50);
    few.max_drafts = 2;
    submit_one(*scheduler, few);
    steps.step();
    const NodeOffers& offers = scheduler->offer_nodes(0);
    EXPECT_EQ(offers.rows[0].max_drafts, 2);  // 3 tokens left: the root yields one of them
    EXPECT_EQ(offers.rows[1].max_drafts, 2);
    const std::vector<std::int32_t> too_many = {3, 0};
    EXPECT_THROW(scheduler->next_plan(too_many), CheckFailure);
}

// Two windows reach into a new page each, and one page is left: the second tree is cut, nobody is
// preempted for a draft.
TEST(Scheduler, CutsTreesToThePagesThereAre) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 3;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    const RequestId a = submit_one(*scheduler, prompt_of(50, 100));
    const RequestId b = submit_one(*scheduler, prompt_of(50, 100, 100));
    steps.step();
    if (scheduler->gauges().running < 2) steps.step();
    ASSERT_EQ(scheduler->gauges().running, 2);
    const Plan& plan = steps.plan(40);
    EXPECT_EQ(planned_of(plan, a)->drafts, 40);
    const auto length = static_cast<std::int32_t>(scheduler->tokens(b.slot).size());
    EXPECT_EQ(planned_of(plan, b)->drafts, 64 - length);
    EXPECT_EQ(scheduler->totals().preemptions, 0);
}

// The same two requests where drafters write while they draft: the first window has the page, the
// second offer ends with its own, and next_plan gives back what is not used.
TEST(Scheduler, ReservesWindowsInOrderAndGivesBackTheRest) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 3;
    options.reserve_windows = true;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    const RequestId a = submit_one(*scheduler, prompt_of(50, 100));
    const RequestId b = submit_one(*scheduler, prompt_of(50, 100, 100));
    while (scheduler->gauges().running < 2) steps.step();
    const NodeOffers& offers = scheduler->offer_nodes(0);
    ASSERT_EQ(offers.rows.size(), 2u);
    EXPECT_EQ(offers.rows[0].slot, a.slot);
    EXPECT_EQ(offers.rows[0].max_drafts, 63);
    EXPECT_EQ(offers.rows[0].block_table.size(), 2u);
    EXPECT_EQ(offers.rows[1].block_table.size(), 1u);
    EXPECT_EQ(offers.rows[1].max_drafts, 64 - std::ssize(scheduler->tokens(b.slot)));
    EXPECT_EQ(scheduler->gauges().pages.owned, 3);
    const std::vector<std::int32_t> few = {2, 1};
    scheduler->next_plan(few);
    EXPECT_EQ(scheduler->gauges().pages.owned, 2);
    EXPECT_EQ(scheduler->totals().preemptions, 0);
    scheduler->audit();
}

// An offer of the same size takes nothing if none is written, and cached pages stay.
TEST(Scheduler, EvictsNoCachedPageForAWindowThatNobodyWrites) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 3;
    options.reserve_windows = true;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(130, 1));
    steps.run_all();
    ASSERT_EQ(scheduler->gauges().pages.cached, 2);
    submit_one(*scheduler, prompt_of(50, 100, 1000));
    steps.step();
    const NodeOffers& offers = scheduler->offer_nodes(0, Windows::counted);
    ASSERT_EQ(offers.rows.size(), 1u);
    EXPECT_EQ(offers.rows[0].max_drafts, 63);
    EXPECT_EQ(offers.rows[0].block_table.size(), 1u);
    EXPECT_EQ(scheduler->gauges().pages.cached, 2);
    const std::vector<std::int32_t> few = {2};
    scheduler->next_plan(few);
    EXPECT_EQ(scheduler->gauges().pages.cached, 2);
    scheduler->audit();
}

TEST(Scheduler, ReservesNothingForARequestThatDoesNotDraft) {
    SchedulerOptions options = small_options();
    options.reserve_windows = true;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    Request plain = prompt_of(50, 100);
    plain.max_drafts = 0;
    submit_one(*scheduler, plain);
    steps.step();
    EXPECT_EQ(scheduler->offer_nodes(0).rows[0].max_drafts, 0);
    EXPECT_EQ(scheduler->gauges().pages.owned, 1);
}

TEST(Scheduler, GivesBackThePageThatOnlyRejectedDraftsReached) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    submit_one(*scheduler, prompt_of(50, 100));
    steps.step();
    steps.accept_drafts = false;
    steps.plan(63);
    EXPECT_EQ(scheduler->gauges().pages.owned, 2);
    steps.advance();
    EXPECT_EQ(scheduler->gauges().pages.owned, 1);
}

// ---- ends ---------------------------------------------------------------------------------------

TEST(Scheduler, CancelsAtAnyMoment) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    const RequestId waiting = submit_one(*scheduler, prompt_of(100));
    EXPECT_TRUE(scheduler->cancel(waiting));
    EXPECT_FALSE(scheduler->cancel(waiting));
    ASSERT_EQ(scheduler->ended().size(), 1u);
    EXPECT_EQ(scheduler->ended()[0].id, waiting);
    scheduler->forget_ended();

    const RequestId prefilling = submit_one(*scheduler, prompt_of(3000));
    const RequestId other = submit_one(*scheduler, prompt_of(100, 100, 5000));
    steps.plan();
    EXPECT_TRUE(scheduler->cancel(prefilling));
    EXPECT_FALSE(scheduler->cancel(prefilling));
    EXPECT_TRUE(scheduler->ended().empty());         // its step still runs
    EXPECT_EQ(scheduler->gauges().pages.owned, 16);  // and may write its pages
    steps.advance();
    EXPECT_EQ(scheduler->ended().size(), 1u);
    EXPECT_EQ(scheduler->gauges().pages.owned, 0);
    scheduler->forget_ended();

    steps.step();
    scheduler->offer_nodes(0);  // between the halves of a plan
    EXPECT_TRUE(scheduler->cancel(other));
    const std::vector<std::int32_t> drafts = {3};
    EXPECT_TRUE(scheduler->next_plan(drafts).empty());
    EXPECT_TRUE(scheduler->idle());
    EXPECT_FALSE(scheduler->cancel({other.slot, 1000}));
    EXPECT_FALSE(scheduler->cancel({RequestSlot(), 0}));
    scheduler->audit();
}

TEST(Scheduler, DropsTheOutcomeOfACancelledRow) {
    const auto scheduler = Scheduler::create(small_options()).value();
    Stepper steps(*scheduler);
    const RequestId id = submit_one(*scheduler, prompt_of(100));
    steps.step();
    steps.plan(63);
    scheduler->cancel(id);
    steps.advance();
    EXPECT_EQ(scheduler->totals().committed, 1);  // the prompt's, none of the tree's
    EXPECT_EQ(scheduler->ended()[0].reason, EndReason::cancelled);
    scheduler->audit();
}

TEST(Scheduler, EndsWhatIsExpiredWhetherItWaitsOrRuns) {
    SchedulerOptions options = small_options();
    options.max_rows = 1;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    Request request = prompt_of(100);
    request.deadline = 50;
    const RequestId runs = submit_one(*scheduler, request);
    request.deadline = 30;
    const RequestId waits = submit_one(*scheduler, request);
    steps.now = 29;
    steps.step();
    EXPECT_TRUE(scheduler->ended().empty());
    steps.now = 30;
    steps.plan();
    ASSERT_EQ(scheduler->ended().size(), 1u);
    EXPECT_EQ(scheduler->ended()[0].id, waits);
    EXPECT_EQ(scheduler->ended()[0].reason, EndReason::expired);
    steps.now = 50;  // while the step runs: its token is committed, then it ends
    steps.advance();
    ASSERT_EQ(scheduler->ended().size(), 2u);
    EXPECT_EQ(scheduler->ended()[1].id, runs);
    EXPECT_EQ(scheduler->totals().committed, 2);
    EXPECT_EQ(scheduler->gauges().pages.owned, 0);
}

TEST(Scheduler, SlotsAreSmallAndUsedAgainOnceForgotten) {
    SchedulerOptions options = small_options();
    options.max_rows = 1;
    options.max_waiting = 2;
    const auto scheduler = Scheduler::create(options).value();
    EXPECT_EQ(scheduler->slot_count(), 3);
    const RequestId a = submit_one(*scheduler, prompt_of(10));
    const RequestId b = submit_one(*scheduler, prompt_of(10));
    EXPECT_EQ(a.slot.value(), 0);
    EXPECT_EQ(b.slot.value(), 1);
    scheduler->cancel(a);
    EXPECT_EQ(submit_one(*scheduler, prompt_of(10)).slot.value(), 2);
    scheduler->forget_ended();
    scheduler->cancel(b);
    const RequestId next = submit_one(*scheduler, prompt_of(10));
    EXPECT_EQ(next.slot.value(), 0);
    EXPECT_NE(next.serial, a.serial);
    EXPECT_FALSE(scheduler->cancel(a));  // an old name does not reach the slot's new request
}

TEST(Scheduler, HoldsTheEngineToThePlan) {
    const auto scheduler = Scheduler::create(small_options()).value();
    submit_one(*scheduler, prompt_of(10, 1));
    EXPECT_THROW(scheduler->advance({}, 0), CheckFailure);
    scheduler->next_plan(Time{0});
    EXPECT_THROW(scheduler->next_plan(Time{0}), CheckFailure);
    EXPECT_THROW(scheduler->advance({}, 0), CheckFailure);
    const std::vector<std::int32_t> token = {1}, tokens = {1, 2};
    std::vector<Outcome> outcome(1);
    EXPECT_THROW(scheduler->advance(outcome, 0), CheckFailure);  // draws nothing and goes on
    outcome[0].committed = tokens;
    EXPECT_THROW(scheduler->advance(outcome, 0), CheckFailure);  // one node, two tokens
    outcome[0].committed = token;
    EXPECT_THROW(scheduler->advance(outcome, 0), CheckFailure);  // max_tokens is 1
    outcome[0].end = Outcome::End::finished;
    scheduler->advance(outcome, 0);
    EXPECT_TRUE(scheduler->idle());
}

// Plans and advances use the memory that the scheduler and submit took, also through admissions,
// preemptions and ends.
TEST(Scheduler, AllocatesNothingInItsSteps) {
    SchedulerOptions options = small_options();
    options.page_count = 1 + 20;
    const auto scheduler = Scheduler::create(options).value();
    Stepper steps(*scheduler);
    std::int64_t allocated = 0;
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 6; ++i) {
            Request request = prompt_of(100 + 90 * i, 150, 1000 * i);
            request.choices = 1 + i % 2;
            scheduler->submit(request);
        }
        const std::int64_t before = allocations_so_far();
        while (!scheduler->idle()) {
            steps.step(round % 2 == 0 ? 5 : 0);
            scheduler->forget_ended();
        }
        if (round > 0) allocated += allocations_so_far() - before;  // the first warms the test up
    }
    EXPECT_GT(scheduler->totals().preemptions, 0);
    EXPECT_EQ(allocated, 0);
}

}  // namespace
}  // namespace espalier::schedule
