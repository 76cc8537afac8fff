// SPDX-License-Identifier: Apache-2.0
// What speculation may cost in a step: how many of the nodes that were proposed each request
// verifies. Pure and deterministic; called by Speculation (src/engine) when all drafters have
// proposed. (What is drafted is planned before: planner.hpp.)
//
// The step's rate is (tokens expected) / (seconds predicted). A node's worth is its survival over
// its cost, and a request's nodes cost alike (a token, and the keys it sees), so taking the
// worthiest node next, over all requests, gives whole prefixes of each request's drafts
// (merge.hpp); where contexts are equally long it gives the best rate for every count n. While the
// time grows evenly, the best n is where a node's worth falls below the rate; real times have
// plateaus (tiles of 16 rows), so the search looks past a dip and stops only when no later n can
// win.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculate/policy/step_time.hpp"

namespace espalier::speculate {

// The step without drafts.
struct StepLoad {
    StepSize size = {};          // roots and prompt chunks
    double expected_tokens = 0;  // what it yields: one per drafting or decoding row
    // Seconds of the step that prompts take. Decoded tokens are not charged for them: a second
    // would seem to yield few tokens, and drafts with little chance would seem to pay.
    double prompt_seconds = 0;
    std::int64_t max_drafts = 0;  // room left in the batch
    double draft_seconds = 0;     // spent on drafting in this step already, whatever is granted
    double least_gain = 1.02;     // a smaller predicted gain does not count
};

// The drafts that one request could verify.
struct OfferedDrafts {
    std::span<const double> survival = {};  // not increasing (RankedTree::drafts())
    double keys = 0;                        // that each of them sees, as in StepSize
};

struct GrantedNodes {
    std::int64_t drafts = 0;     // over all requests
    double expected_tokens = 0;  // of the step
    double seconds = 0;
    bool probe = false;  // granted to learn, not because it pays
};

// Allowance of one part of speculation for probes while it is off: at most kShare of the time,
// and at most one step in kSteps.
class ProbeSavings {
  public:
    static constexpr double kShare = 0.005;
    static constexpr std::int64_t kSteps = 16;
    void wait(double step_seconds);                // a step without a probe
    bool spend(double seconds);                    // true: a probe that costs this may run now
    std::int64_t steps() const { return steps_; }  // since the last one
    void reset() { *this = {}; }

  private:
    double saved_seconds_ = 0;
    std::int64_t steps_ = 0;
};

class NodeBudget {
  public:
    // While nothing pays, a probe verifies this many nodes of one request (ProbeSavings).
    static constexpr std::int64_t kProbeDrafts = 3;
    // Drafts that are right more than half of the time and are not granted are tried every
    // kDoubtedSteps, whatever they are believed to cost: that may be what is wrong.
    static constexpr std::int64_t kDoubtedSteps = 24;
    static constexpr double kLikely = 0.5;

    // granted[i]: how many of offers[i] to verify, without the root.
    GrantedNodes grant(const StepTime& time, const StepLoad& load,
                       std::span<const OfferedDrafts> offers, std::span<std::int32_t> granted);

    // Grants that many nodes, the likeliest first, whatever they cost: no step time is known yet.
    std::int64_t grant_surest(std::int64_t drafts, std::span<const OfferedDrafts> offers,
                              std::span<std::int32_t> granted);

  private:
    struct Next {
        double worth;
        double survival;
        std::int32_t request;
    };
    static bool later(const Next& a, const Next& b);
    void begin(std::span<const OfferedDrafts> offers, std::span<std::int32_t> granted,
               double token_seconds, double key_seconds);
    Next take_best(std::span<const OfferedDrafts> offers, std::span<std::int32_t> granted);
    double surest_left() const;
    GrantedNodes best(const StepTime& time, const StepLoad& load,
                      std::span<const OfferedDrafts> offers, std::span<std::int32_t> granted);
    bool doubts(std::span<const OfferedDrafts> offers, std::span<const std::int32_t> granted);
    GrantedNodes probe(const StepTime& time, const StepLoad& load,
                       std::span<const OfferedDrafts> offers, std::span<std::int32_t> granted);

    std::vector<Next> heap_;           // each request's next draft; kept for its memory
    std::vector<std::int32_t> taken_;  // requests in the order their drafts were taken
    double token_seconds_ = 1;         // by which worth is reckoned
    double key_seconds_ = 0;
    ProbeSavings off_;
    std::int64_t doubted_steps_ = 0;  // since the last trial, that left likely drafts out
};

}  // namespace espalier::speculate
