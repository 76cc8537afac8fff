// SPDX-License-Identifier: Apache-2.0
// Policy of drafting: which drafters a step asks and for what, how many nodes each request
// verifies, and what the outcome teaches. Pure: no clock, no drafter, no type of the engine; so a
// simulation runs it for days, and the facts of a run replay it. Speculation (src/engine) carries
// its decisions out. docs/speculation.md tells how trees grow.
//
// A step tells its facts in this order, and reads the decisions behind each:
//   StepFacts      asks(), reads(), may_draft(), and shape() of drafters without passes
//   ProposedFacts  shape() of draft models; left out where plans() is false
//   OfferedFacts   granted(); only where asks()
//   ComparedFacts  acceptance() and bias(), by which proposals are ranked; for each request
//   OutcomeFacts   awake()
//
// Times of steps are learnt from the first steps themselves: those that could draft verify
// 0, 3, 0, 7, 1 … nodes in turn, as far as a size seems to be near what pays.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "speculate/policy/facts.hpp"
#include "speculate/policy/measured_rate.hpp"
#include "speculate/policy/memory.hpp"
#include "speculate/policy/watch.hpp"

namespace espalier::speculate {

// Parts of the policy that a simulation leaves out, one at a time, to see what they are worth
// (tests/engine/worth_test.cpp).
enum class PolicyPart : std::uint8_t {
    acceptance,    // without: guesses in place of what was seen
    request_bias,  // all requests are alike
    step_time,     // as the first steps were
    draft_time,    // as a draft model's first calls were
    shapes,        // draft models are asked for their first shape, always
    grant,         // whatever is proposed is verified
    rates,         // no way is suspended, and no simpler one tried
    watch,         // draft models are kept up to date, always
    free_drafts,   // drafters without passes are asked for all they have
    looks,         // suspended drafters without passes propose nothing
    short_pauses,  // drafters without passes that are right are suspended for as long as others
};

struct PolicySettings {
    bool measured = true;  // grants what pays; otherwise whatever is proposed and fits
    std::size_t drafters = 0;
    std::int64_t max_rows = 0;
    std::optional<PolicyPart> without = {};
};

class DraftPolicy {
  public:
    // Numbers of drafts verified in the first steps that could draft: plain steps tell what a
    // draft adds.
    static constexpr std::array<std::int64_t, 12> kFirstDrafts = {0,  3, 0, 7,  1, 0,
                                                                  15, 3, 0, 31, 7, 1};

    explicit DraftPolicy(const PolicySettings& settings);

    // In place of what the first steps would show.
    void set_step_time(const StepTime& time);
    // Before the first step: what is known of drafters of these names, and of steps. Numbers that
    // are none of an estimator's are left out.
    void remember(const Memory& memory, std::span<const std::string> names);
    Memory memory(std::span<const std::string> names) const;

    void take(const RequestBegun& fact);
    void take(const RequestEnded& fact);
    void take(const StepFacts& facts);
    void take(const ProposedFacts& facts);
    void take(const OfferedFacts& facts);
    void take(const ComparedFacts& facts);
    void take(const OutcomeFacts& facts);
    void take_any(const PolicyFact& fact);

    // Drafters without passes are shown every token.
    bool reads() const { return reads_ && settings_.drafters > 0; }
    // The draft model is kept up to date.
    bool awake(DrafterId drafter) const { return drafters_.at(drafter).watch.awake(); }
    // Some request under way prescribes its drafts.
    bool prescribes() const { return prescribing_ > 0; }
    // Any drafter may be asked in this step; otherwise roots are verified alone.
    bool asks() const { return step_.asks; }
    bool may_draft(std::size_t row) const;
    bool plans() const;
    bool plans_row(std::size_t row) const;
    // Shape that a drafter is asked for; depth 0: it is not asked.
    DraftShape shape(DrafterId drafter, std::size_t row) const;
    // Drafts to verify, by row.
    std::span<const std::int32_t> granted() const { return granted_; }
    const AcceptanceTable& acceptance() const { return table_; }
    const RequestBias& bias(RequestSlot request) const { return requests_[request].bias; }
    // The last outcome took far longer than such steps do, so that nothing was learnt from it.
    bool disturbed() const { return disturbed_; }
    // Steps for which a drafter's way is suspended.
    std::int64_t pause(DrafterId drafter, bool passes) const;

  private:
    struct DrafterState {
        DraftTime time;
        Watch watch;
        std::int64_t able = 0;  // rows of the last plan that it may be asked for
    };
    struct Request {
        bool prescribes = false;
        std::int32_t free_drafts = 0;  // that drafters without passes are asked for
        std::int32_t fewer_steps = 0;  // since when fewer would have done
        RequestBias bias;
    };
    // Decisions of the current step.
    struct Step {
        DraftingWay way = DraftingWay::passes;  // most expensive drafting allowed
        bool asks = false;
        bool asks_free = false;         // drafters without passes, beside prescribed rows
        bool looks = false;             // these are suspended, and propose to be compared alone
        bool prescribes = false;        // some row does
        std::int64_t free_rows = 0;     // rows that drafters without passes are asked for
        std::int64_t planned_rows = 0;  // rows that some draft model may be asked for
        double planning_seconds = 0;
        std::optional<DraftingWay> measured_as = {};  // way of its rate; none: it learns
    };
    static constexpr std::size_t kNoPlan = ~std::size_t{0};
    static constexpr std::size_t kFirstSamples = 32;

    std::int64_t row_count() const { return std::ssize(facts_.rows); }
    bool is_without(PolicyPart part) const { return settings_.without == part; }
    bool starting() const { return first_grants_ < kFirstDrafts.size(); }
    bool has_free() const;
    StepSize decoding_size() const;
    double prompt_seconds() const;
    bool may_look() const;
    DraftingWay next_way();
    void open_ways();
    void start_choice();
    void add_plan_rows(const ProposedFacts& facts);
    void note_plan(DrafterId drafter);
    void grant_prescribed(StepLoad& load);
    void grant_measured(const StepLoad& load);
    void grant_everything(const StepLoad& load);
    void note_granted();
    void note_way(bool learns);
    void note_free(const Shown& shown);
    void learn_calls(const DraftCallTimes& calls, bool disturbed);
    bool learn_time(const StepSample& sample);
    void learn_rate(const OutcomeFacts& facts);
    void watch(const OutcomeFacts& facts);

    PolicySettings settings_;
    AcceptanceTable table_;
    DraftPlanner planner_;
    NodeBudget budget_;
    MeasuredRate rate_;
    std::optional<StepTime> time_;
    std::vector<StepSample> first_samples_;
    std::size_t first_grants_ = 0;
    std::array<DrafterState, kMaxDrafters> drafters_;
    IndexedVector<RequestSlot, Request> requests_;
    std::int64_t prescribing_ = 0;            // requests under way
    double free_places_ = 0, free_hits_ = 0;  // of late: proposals without passes, right ones
    double free_seconds_ = 0;                 // that these take for a row
    bool reads_ = true;
    bool disturbed_ = false;
    StepFacts facts_;
    Step step_;
    // Reused from step to step.
    std::vector<OfferedDrafts> offers_;
    std::vector<PlanRow> plan_rows_;
    std::vector<std::size_t> plan_index_;   // by row: in plan_rows_, or kNoPlan
    std::vector<std::int32_t> prescribed_;  // drafts, by row
    std::vector<std::int32_t> granted_;
};

}  // namespace espalier::speculate
