// SPDX-License-Identifier: Apache-2.0
// Plans, before anything is drafted, which drafters with passes of their own are asked in a step,
// and how far each is to go for each request: depth, nodes of a level, nodes in all. Pure and
// deterministic; called by Speculation (src/engine) once per step, after the drafters that cost
// nothing have proposed and before NodeBudget grants.
//
// A step's rate is (tokens expected) / (seconds predicted); seconds are the target's (StepTime),
// for all nodes that would be verified, and the drafters' (DraftTime). The plan of the best rate is
// found by pricing: at a rate r a second is worth r tokens, so a node that is verified for v
// seconds adds (survival − r·v), and each request by itself takes the width and depth that add
// most, given what a level costs all of them together. The best price is the best rate itself: two
// rounds come near enough. v is the slope of the step's time, and that depends on how many nodes
// there are (tiles, plateaus), so a few counts are tried and every plan is held to the whole curve.
//
// Drafters overlap: one that is asked beside those without passes adds only where they miss
// (AcceptanceTable::novelty). One is asked for a step: two never paid on a measured machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculate/policy/acceptance.hpp"
#include "speculate/policy/budget.hpp"
#include "speculate/policy/draft_time.hpp"
#include "speculate/policy/expected_tree.hpp"
#include "speculate/policy/step_time.hpp"

namespace espalier::speculate {

// reach[d]: the chance that a draft at depth d + 1 is accepted, where there are drafts that deep.
using Reach = std::array<float, ExpectedTree::kLevels>;

// A request that may draft.
struct PlanRow {
    const RequestBias* bias = nullptr;
    bool coupled = false;                        // how drafters would be asked
    std::array<bool, kMaxDrafters> unable = {};  // has not seen what it would draft from
    double keys = 0;                             // that a node of it sees, as in StepSize
    std::int32_t max_drafts = 0;
    // Drafts that are proposed already and would be verified.
    std::int32_t drafts = 0;
    Reach reach = {};
};

struct PlanQuestion {
    const StepTime& target;
    const AcceptanceTable& table;
    // By drafter; null: it is not there, or needs no plan.
    std::array<const DraftTime*, kMaxDrafters> times = {};
    StepLoad load = {};
    std::span<const PlanRow> rows = {};
};

class DraftPlanner {
  public:
    // The first shape that a drafter of unknown cost is asked for; more shapes follow, to tell a
    // level's cost from a token's.
    static constexpr DraftShape kFirstShape = {.depth = 3, .width = 1, .nodes = 4};
    static constexpr DraftShape kNotAsked = {.depth = 0, .width = 0, .nodes = 1};
    // A probe: one pass, whose choices are compared with the target's draw, verified or not.
    static constexpr DraftShape kProbe = {.depth = 1, .width = 1, .nodes = 1 + ExpectedTree::kKept};

    // shape(drafter, row) until the next plan. Where nothing pays, a probe now and then.
    void plan(const PlanQuestion& question);
    const DraftShape& shape(DrafterId drafter, std::size_t row) const {
        return shapes_.at(drafter)[row];
    }
    // True if the plan asks the drafter in order to learn, not because it pays.
    bool probes(DrafterId drafter) const { return probes_.at(drafter); }
    // Predicted seconds that asking the drafter saves over computing the same tokens without it; 0
    // unless it is asked because it pays.
    double saves(DrafterId drafter) const { return saves_.at(drafter); }
    // True if the plan asks any drafter in order to learn.
    bool learns() const { return learns_; }

  private:
    // The predicted step with the drafters considered so far.
    struct Outlook {
        double tokens = 0;
        std::int64_t drafts = 0;  // verified
        double keys = 0;
        double draft_seconds = 0;
        double rate = 0;
    };
    // That prediction, with each row's drafts, before another drafter is considered.
    struct Standing {
        Outlook outlook;
        std::vector<Reach> reach;
        std::vector<std::int32_t> drafts;
    };
    // Gain of one row from asking a drafter.
    struct Gain {
        double value = 0;  // tokens, less what they cost
        double tokens = 0;
        std::int32_t drafts = 0;    // verified
        std::int32_t computed = 0;  // by the drafter
        std::int8_t width = 0;      // index in ExpectedTree::kWidths
        std::int8_t depth = 0;      // 0: it is not asked
    };
    // Gain of all rows from asking one more drafter.
    struct Addition {
        Outlook outlook;
        std::vector<Gain> rows;
    };
    struct Price {
        double rate = 0;  // tokens that a second is worth
        // Cost of verifying a node:
        double token_seconds = 0;
        double key_seconds = 0;
    };
    // Expected trees are kept for a while: an observation moves an estimate by little.
    struct Cached {
        ExpectedTree tree;
        std::int64_t made = -1;  // number of the plan
    };
    static constexpr std::int64_t kTreeAge = 8;   // plans
    static constexpr std::size_t kBiasSteps = 9;  // 0, 1/4 … RequestBias::kLargest

    static void set_rate(const PlanQuestion& q, Outlook& outlook);
    const ExpectedTree& tree(const PlanQuestion& q, DrafterId drafter, const PlanRow& row);
    void start(const PlanQuestion& q);
    void weigh_row(const PlanQuestion& q, DrafterId drafter, std::size_t row,
                   const Standing& before, const Price& price);
    void add_at(const PlanQuestion& q, DrafterId drafter, const Standing& before,
                const Price& price, Addition& out);
    void add(const PlanQuestion& q, DrafterId drafter, const Standing& before, Addition& out);
    void keep(const PlanQuestion& q, DrafterId drafter, const Addition& addition);
    void ask(const PlanQuestion& q, DrafterId drafter, const DraftShape& shape);
    bool plan_first(const PlanQuestion& q, DrafterId drafter);
    void probe(const PlanQuestion& q, DrafterId drafter);

    std::array<std::array<std::array<Cached, kBiasSteps>, 2>, kMaxDrafters> trees_;
    std::int64_t plans_ = 0;
    std::array<std::size_t, kMaxDrafters> first_calls_ = {};
    std::array<ProbeSavings, kMaxDrafters> off_;
    std::array<bool, kMaxDrafters> probes_ = {};
    std::array<double, kMaxDrafters> saves_ = {};
    bool learns_ = false;
    std::array<std::vector<DraftShape>, kMaxDrafters> shapes_;
    // Reused from plan to plan.
    Standing without_;
    Addition trial_, considered_, best_;
    std::vector<Gain> gains_;  // [rows, levels]
};

}  // namespace espalier::speculate
