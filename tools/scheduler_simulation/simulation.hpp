// SPDX-License-Identifier: Apache-2.0
// A day at a scheduler without a model: requests with heavy-tailed lengths arrive, a burst exceeds
// what the machine can do, steps take the time a simple cost says. Used by the long test, which
// holds what it checks, and by the program that draws docs/scheduler_simulation.svg.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/scheduler.hpp"

namespace espalier::simulation {

struct SimulationOptions {
    std::int64_t requests = 100'000;
    std::uint64_t seed = 1;
    double arrivals_per_second = 40;  // two and a half times that in the middle fifth
};

// One step, as it was planned.
struct StepSample {
    double seconds = 0;  // simulated, at its end
    schedule::Gauges gauges;
    schedule::StepTokens tokens;
    std::int64_t preemptions = 0;  // in this plan
    float plan_microseconds = 0;   // offer_nodes + next_plan + advance, on this machine
    std::int32_t planned_requests = 0;
};

struct FirstToken {
    double submitted_seconds = 0;
    float wait_seconds = 0;  // to its first token
    std::int32_t priority = 0;
};

struct SimulationResult {
    schedule::SchedulerOptions scheduler;
    schedule::Totals totals;
    std::vector<StepSample> steps;
    std::vector<FirstToken> first_tokens;
    double simulated_seconds = 0;
    std::int64_t longest_steps = 0;  // from submit to the end
    double worst_wait_to_bound = 0;  // the largest share of its bound that a request needed
};

// CHECKs in every step that the first in order goes on, that no request is admitted before an
// elder one, and that counts agree; at every end that the request took no more steps than its
// bound; at the end that no page is left.
SimulationResult simulate(const SimulationOptions& options);

}  // namespace espalier::simulation
