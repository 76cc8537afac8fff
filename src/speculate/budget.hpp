// SPDX-License-Identifier: Apache-2.0
// How many draft nodes each request gets in a step, and whether any. Pure and deterministic; called
// by the scheduler once per step.
//
// The step's rate is (tokens expected) / (seconds predicted). Adding the node with the largest
// survival next, over all requests, gives the best rate for every count n: a request's drafts come
// in order of survival (merge.hpp), so the n largest are always whole prefixes. While the time
// grows evenly, the best n is where a node's marginal value, survival / extra seconds, falls below
// the rate; real times have plateaus (tiles of 16 rows), so the search looks past a dip and stops
// only when no later n can win.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculate/step_time.hpp"

namespace espalier::speculate {

// The step without drafts.
struct StepLoad {
    std::int64_t rows = 0;
    std::int64_t tokens = 0;      // roots and prompt chunks
    double expected_tokens = 0;   // what it yields: one per drafting or decoding row; a caller who
                                  // wants prompts to count adds their worth
    std::int64_t max_drafts = 0;  // room left in the batch
    double draft_seconds = 0;     // still to be spent on drafting if any node is granted
};

struct Grant {
    std::int64_t drafts = 0;     // over all requests
    double expected_tokens = 0;  // of the step
    double seconds = 0;
    bool probe = false;  // granted to learn, not because it pays
};

class NodeBudget {
  public:
    // A smaller predicted gain than this is inside the prediction's own error.
    static constexpr double kLeastGain = 1.02;
    // While off, at most this share of the time goes into probes of kProbeDrafts nodes of one
    // request, and at most one step in kProbeSteps: speculation left on where it never pays costs
    // no more than this.
    static constexpr double kProbeShare = 0.005;
    static constexpr std::int64_t kProbeDrafts = 3;
    static constexpr std::int64_t kProbeSteps = 16;

    // offers[i]: survival of request i's drafts, not increasing (RankedTree::drafts()), as many as
    // it has room for. granted[i]: how many of them to verify, without the root.
    Grant grant(const StepTime& time, const StepLoad& load,
                std::span<const std::span<const double>> offers, std::span<std::int32_t> granted);

  private:
    struct Next {
        double survival;
        std::int32_t request;
    };
    static bool later(const Next& a, const Next& b);
    Next take_best(std::span<const std::span<const double>> offers,
                   std::span<std::int32_t> granted);
    Grant best(const StepTime& time, const StepLoad& load,
               std::span<const std::span<const double>> offers, std::span<std::int32_t> granted);
    Grant probe(const StepTime& time, const StepLoad& load,
                std::span<const std::span<const double>> offers, std::span<std::int32_t> granted);

    std::vector<Next> heap_;           // each request's next draft; kept for its memory
    std::vector<std::int32_t> taken_;  // requests in the order their drafts were taken
    double saved_seconds_ = 0;         // what probes may cost now
    std::int64_t steps_off_ = 0;
};

}  // namespace espalier::speculate
