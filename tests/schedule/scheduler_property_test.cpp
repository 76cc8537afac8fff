// SPDX-License-Identifier: Apache-2.0
// Random workloads against the Referee: arrivals, lengths, priorities, choices, cancels, deadlines,
// pools too small for them, random drafts and accepted lengths. Each step is checked whole.
#include <gtest/gtest.h>

#include <cstdio>

#include "schedule/inspection.hpp"
#include "schedule/referee.hpp"
#include "schedule/steps.hpp"

namespace espalier::schedule {
namespace {

SchedulerOptions random_options(Random& random) {
    SchedulerOptions options;
    options.page_count = 1 + random.between(8, 40);
    options.max_model_len = random.between(200, 1500);
    options.max_rows = random.between(1, 12);
    options.prompt_quantum = random.one_of({1, 7, 64, 200, 512});
    options.max_step_tokens = options.max_rows + options.prompt_quantum + random.between(0, 600);
    options.max_step_gather = options.max_rows + random.one_of({0, 3, 100, 1000});
    options.max_waiting = random.between(4, 40);
    options.prefill_segment = random.chance(0.8) ? random.one_of({64, 64, 256}) : 0;
    if (random.chance(0.2)) options.decompressed_keys = random.one_of({32, 64, 200, 320, 2048});
    options.prefix_cache = random.chance(0.9);
    options.reserve_windows = random.chance(0.5);
    if (random.chance(0.4)) {
        // Like attention's: blocks of (token, head) pairs times splits of keys, and two for the
        // tail of each token.
        const std::int64_t keys = random.one_of({16, 64, 512});
        const std::int64_t heads = random.one_of({1, 3, 16});
        options.row_splits = [keys, heads](std::int64_t q_len, std::int64_t kv_len) {
            return (kv_len + keys - 1) / keys * ((q_len * heads + 7) / 8) + 2 * q_len;
        };
        options.max_step_splits =
            2 * options.row_splits(1, options.max_model_len) + random.one_of({0, 1, 50, 2000});
    }
    return options;
}

// Prompts begin alike, so that pages are shared and recomputed in many combinations.
Request random_request(Random& random, Time now) {
    Request request;
    const int kind = random.between(0, 3);
    const int length = random.chance(0.3) ? 64 * random.between(1, 12) + random.between(-1, 1)
                                          : random.between(1, 900);
    const int alike = random.chance(0.5) ? random.between(0, 900) : 0;
    for (int i = 0; i < length; ++i)
        request.prompt.push_back(i < alike ? kind : random.between(0, 9));
    request.max_tokens = random.chance(0.5) ? random.between(1, 400) : random.between(1, 40);
    request.choices = random.chance(0.25) ? random.between(2, 5) : 1;
    request.priority = random.chance(0.3) ? random.between(1, 2) : 0;
    if (random.chance(0.1)) request.deadline = now + random.between(0, 80);
    request.salt = random.chance(0.1) ? 1 : 0;
    request.prompt_logits = random.chance(0.15);
    request.max_drafts = random.chance(0.2) ? random.between(0, 3) : kMaxDrafts;
    return request;
}

struct Seen {
    std::int64_t requests = 0, preemptions = 0, hits = 0, resumed_hits = 0, stalls = 0, drafts = 0;
    std::int64_t expired = 0, cancelled = 0, failed = 0, refused = 0, steps = 0;
};

void run_workload(std::uint64_t seed, Seen& seen) {
    Random random(seed);
    const auto scheduler = Scheduler::create(random_options(random)).value();
    Referee referee(*scheduler, seed + 1, {random.one_of({0.0, 0.5, 1.0}), 0.01, 0.002});
    std::vector<RequestId> ids;
    Time now = 0;
    const double arrivals = random.one_of({0.05, 0.3, 1.0});
    int left = random.between(5, 40);
    const auto meanwhile = [&] {
        if (left > 0 && random.chance(arrivals)) {
            --left;
            const auto more = referee.submit(random_request(random, now));
            ids.insert(ids.end(), more.begin(), more.end());
        }
        if (!ids.empty() && random.chance(0.02)) referee.cancel(ids[random.bits() % ids.size()]);
    };
    while (left > 0 || referee.live() > 0) {
        now += random.between(0, 2);
        meanwhile();
        referee.step(now, meanwhile);  // the referee sees that the first in order goes on
    }
    ASSERT_TRUE(scheduler->idle());
    const Gauges gauges = scheduler->gauges();
    ASSERT_EQ(gauges.pages.owned, 0);
    ASSERT_EQ(gauges.waiting_tokens, 0);
    const Totals& totals = scheduler->totals();
    ASSERT_EQ(totals.submitted,
              totals.finished + totals.failed + totals.cancelled + totals.expired);
    seen.requests += totals.submitted;
    seen.preemptions += totals.preemptions;
    seen.hits += totals.hit_tokens;
    seen.resumed_hits += totals.resumed_hit_tokens;
    seen.stalls += totals.stalled_rows;
    seen.drafts += totals.tokens.drafts;
    seen.expired += totals.expired;
    seen.cancelled += totals.cancelled;
    seen.failed += totals.failed;
    seen.refused += referee.refused();
    seen.steps += totals.plans;
}

TEST(SchedulerProperty, EveryStepOfRandomWorkloadsIsRight) {
    Seen seen;
    for (std::uint64_t seed = 0; seed < ESPALIER_SCHEDULES; ++seed) {
        SCOPED_TRACE(seed);
        run_workload(seed, seen);
        if (HasFatalFailure()) return;
    }
    // The workloads must reach what they are meant to test.
    EXPECT_GT(seen.requests, ESPALIER_SCHEDULES * 10);
    EXPECT_GT(seen.preemptions, ESPALIER_SCHEDULES / 2);
    EXPECT_GT(seen.hits, 0);
    EXPECT_GT(seen.resumed_hits, 0);
    EXPECT_GT(seen.stalls, 0);
    EXPECT_GT(seen.drafts, 0);
    EXPECT_GT(seen.expired, 0);
    EXPECT_GT(seen.cancelled, 0);
    EXPECT_GT(seen.failed, 0);
    EXPECT_GT(seen.refused, 0);
    std::printf(
        "%lld requests in %lld steps: %lld preempted, %lld stalled, %lld tokens found, %lld "
        "when resumed, %lld drafts, %lld expired, %lld cancelled, %lld failed, %lld refused\n",
        static_cast<long long>(seen.requests), static_cast<long long>(seen.steps),
        static_cast<long long>(seen.preemptions), static_cast<long long>(seen.stalls),
        static_cast<long long>(seen.hits), static_cast<long long>(seen.resumed_hits),
        static_cast<long long>(seen.drafts), static_cast<long long>(seen.expired),
        static_cast<long long>(seen.cancelled), static_cast<long long>(seen.failed),
        static_cast<long long>(seen.refused));
}

// The plan of a step without drafts, as numbers.
std::vector<std::int64_t> numbers_of(const Plan& plan) {
    std::vector<std::int64_t> numbers;
    for (const PlannedRow& row : plan.rows)
        numbers.insert(numbers.end(), {row.slot.value(), row.first_position, row.q_len,
                                       static_cast<std::int64_t>(row.form), row.gather_count(),
                                       std::ssize(row.block_table)});
    return numbers;
}

// Windows are given back before the rest of a step goes to prompts: where no draft is wanted the
// plans are those of a scheduler that reserves nothing, in pools of every size. (Until the first
// preemption: reserving may evict a page that the preempted request would have found again.)
TEST(SchedulerProperty, ReservingWindowsTakesNothingFromPrompts) {
    std::int64_t compared = 0, scarce = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Random random(seed);
        SchedulerOptions options = random_options(random);
        options.prefix_cache = false;
        options.reserve_windows = false;
        const auto counting = Scheduler::create(options).value();
        options.reserve_windows = true;
        const auto reserving = Scheduler::create(options).value();
        Stepper first(*counting), second(*reserving);
        int left = random.between(5, 25);
        while ((left > 0 || !counting->idle()) && counting->totals().preemptions == 0) {
            if (left > 0 && random.chance(0.5)) {
                --left;
                Request request = random_request(random, 0);
                request.deadline = kNoDeadline;
                request.choices = 1;
                ASSERT_EQ(edge_takes(*counting, request), edge_takes(*reserving, request));
                if (edge_takes(*counting, request)) {
                    counting->submit(request);
                    reserving->submit(request);
                }
            }
            const std::vector<std::int64_t> counted = numbers_of(first.plan());
            if (counting->totals().preemptions > 0) break;
            ASSERT_EQ(counted, numbers_of(second.plan())) << "seed " << seed;
            scarce += counting->gauges().pages.available() < counting->gauges().running ? 1 : 0;
            first.advance();
            second.advance();
            counting->forget_ended();
            reserving->forget_ended();
            ++compared;
        }
        reserving->audit();
    }
    EXPECT_GT(compared, 3000);
    EXPECT_GT(scarce, 100);
}

}  // namespace
}  // namespace espalier::schedule
