// SPDX-License-Identifier: Apache-2.0
// The scheduler at scale: no starvation, no page leaked (the simulation checks both in every step).
// What a plan costs is printed, not asserted: it depends on what else the machine does.
#include "simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace espalier::simulation {
namespace {

float percentile(std::vector<float> values, double share) {
    const auto rank = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + rank, values.end());
    return values[static_cast<std::size_t>(rank)];
}

TEST(SchedulerSimulation, NobodyStarvesAndNoPageLeaks) {
    SimulationOptions options;
    options.requests = ESPALIER_SIMULATED_REQUESTS;
    const SimulationResult result = simulate(options);
    const schedule::Totals& totals = result.totals;
    EXPECT_GE(totals.submitted, options.requests);
    EXPECT_EQ(totals.submitted, totals.finished + totals.cancelled + totals.expired);
    std::vector<float> full, all;
    for (const StepSample& step : result.steps) {
        all.push_back(step.plan_microseconds);
        if (step.planned_requests >= result.scheduler.max_rows - 2)
            full.push_back(step.plan_microseconds);
    }
    std::printf(
        "%lld requests in %zu steps (%.0f simulated seconds), %lld preempted, longest %lld "
        "steps, %.3f of its bound at most\n",
        static_cast<long long>(totals.submitted), result.steps.size(), result.simulated_seconds,
        static_cast<long long>(totals.preemptions), static_cast<long long>(result.longest_steps),
        result.worst_wait_to_bound);
    std::printf("plan and advance: median %.1f us, 99 %% %.1f us\n",
                static_cast<double>(percentile(all, 0.5)),
                static_cast<double>(percentile(all, 0.99)));
    ASSERT_GT(full.size(), 100u);  // the burst fills the batch
    std::printf("with 254 to 256 requests (%zu steps): median %.1f us, 99 %% %.1f us\n",
                full.size(), static_cast<double>(percentile(full, 0.5)),
                static_cast<double>(percentile(full, 0.99)));
    EXPECT_GT(totals.preemptions, 0);
    EXPECT_GT(totals.hit_tokens, 0);
}

}  // namespace
}  // namespace espalier::simulation
