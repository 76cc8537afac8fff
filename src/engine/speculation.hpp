// SPDX-License-Identifier: Apache-2.0
// Drafting for all running requests of a step: keeps the drafters informed, plans what they are
// asked for, merges what they propose, decides how many nodes each request verifies, and learns
// from what was drawn and what it took. Holds no thread; called by Stepper. Nothing in here can
// change a text. docs/speculation.md tells how trees grow.
//
// A drafter that returns an error is destroyed: requests go on without it.
//
// How long a step takes is learnt from the first steps themselves: those that could draft verify
// 0, 3, 0, 7, 1 … nodes in turn, as far as a size seems to be near what pays.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accept/constraint.hpp"
#include "accept/request_progress.hpp"
#include "accept/sampling_parameters.hpp"
#include "engine/clock.hpp"
#include "engine/step_report.hpp"
#include "engine/tree_script.hpp"
#include "speculate/budget.hpp"
#include "speculate/drafter.hpp"
#include "speculate/measured_rate.hpp"
#include "speculate/memory.hpp"
#include "speculate/merge.hpp"
#include "speculate/planner.hpp"
#include "speculate/step_time.hpp"
#include "speculate/watch.hpp"

namespace espalier::engine {

enum class NodeGrant : std::uint8_t {
    measured,    // as many nodes as the cost model says will pay
    everything,  // whatever is proposed and fits: for tests, and to measure acceptance
};

// Way of drawing drafts of a request with a temperature (DraftCall::coupled).
enum class Coupling : std::uint8_t {
    coupled,  // with the noise that the target draws with: right more often, or as often
    plain,    // without, to measure it
};

// Parts of the policy that a simulation leaves out, one at a time, to see what they are worth
// (tests/engine/worth_test.cpp).
enum class PolicyPart : std::uint8_t {
    acceptance,    // without: guesses in place of what was seen
    request_bias,  // all requests are alike
    step_time,     // as the first steps were
    shapes,        // draft models are asked for their first shape, always
    grant,         // whatever is proposed is verified
    rates,         // no way is suspended, and no simpler one tried
    watch,         // draft models are kept up to date, always
    free_drafts,   // drafters without passes are asked for all they have
    draft_time,    // as a draft model's first calls were
    looks,         // suspended drafters without passes propose nothing
    short_pauses,  // drafters without passes that are right are suspended for as long as others
};

struct SpeculationSettings {
    NodeGrant grant = NodeGrant::measured;
    Coupling coupling = Coupling::coupled;
    std::int64_t max_rows = 0;  // running requests in a step
    std::int64_t vocabulary = 0;
    double key_cost = 0;           // of a key that a draft sees, as in speculate::StepSize
    TreeScript* script = nullptr;  // says what to verify; drafters only look on
    Clock clock = {};              // measures what drafting takes; none: nothing is known of it
    std::optional<PolicyPart> without = {};
};

// A running request as the scheduler's first stage left it.
struct DraftRow {
    RequestSlot request;
    std::span<const std::int32_t> tokens = {};  // all committed ones; the last is the root
    std::int32_t max_drafts = 0;
    std::span<const std::int32_t> block_table = {};
    const accept::SamplingParameters* sampling = nullptr;
    const accept::RequestProgress* progress = nullptr;
    accept::Constraint* constraint = nullptr;  // what may be drawn; null: anything
    std::int32_t choice = 0;
    // Shape that the request prescribes: drafted and verified whatever it costs. None: what pays.
    const speculate::DraftShape* prescribed = nullptr;
};

class Speculation {
  public:
    // A drafter reads at most this many tokens of a prompt at once (a suffix automaton takes 2 ms
    // for them), the rest step by step; until it has read all, it is not asked.
    static constexpr std::int64_t kReadTokens = 4096;

    // Numbers of drafts verified in the first steps that could draft: plain steps tell what a
    // draft adds.
    static constexpr std::array<std::int64_t, 12> kFirstDrafts = {0,  3, 0, 7,  1, 0,
                                                                  15, 3, 0, 31, 7, 1};

    // A drafter's id is its place in the list; at most kMaxDrafters.
    Speculation(const SpeculationSettings& settings,
                std::vector<std::unique_ptr<speculate::Drafter>> drafters);

    // In place of what the first steps would show.
    void set_step_time(const speculate::StepTime& time);

    // Before the first step: what is known of drafters of these names, and of steps. Numbers that
    // are none of an estimator's are left out.
    void remember(const speculate::Memory& memory);
    speculate::Memory memory() const;

    // Every request begins and ends. One that does not draft is shown only to drafters that keep
    // KV for each page of the cache. For one that prescribes its drafts these are kept up to date.
    enum class Drafts : std::uint8_t { none, what_pays, prescribed };
    // expected_output: see Request.
    void begin(RequestSlot request, std::span<const std::int32_t> prompt, std::int64_t max_tokens,
               Drafts drafts, std::span<const std::int32_t> expected_output = {});
    void end(RequestSlot request);
    // Before drafters are asked the next time. The request has begun.
    void preempted(RequestSlot request);

    // Lets the drafters without passes read what a step has committed; where they are not asked
    // for now, later: texts that end before then are never read.
    struct Text {
        RequestSlot request;
        std::span<const std::int32_t> tokens = {};
    };
    bool reads() const { return reads_ && !sources_.empty(); }  // anything now
    void read(std::span<const Text> texts);
    // The rest of long prompts, and texts of before these drafters were asked again: as many tokens
    // as this. To be called where no reader waits for it.
    void catch_up(std::span<const Text> texts, std::int64_t tokens);

    // True if the next choice may ask a drafter that writes KV while it drafts: where all of them
    // are left behind, none does.
    bool may_write_kv() const;
    // Asks the drafters, and sets how many drafts each row verifies. load: the step without any.
    void choose(std::span<const DraftRow> rows, speculate::StepLoad load,
                std::span<std::int32_t> drafts);
    // The root and the drafts that were ranked for the request, of which it verifies the first.
    // Good until the next choice or request, as is the next.
    const speculate::Tree& tree(RequestSlot request) const { return slot(request).ranked.tree; }
    // First proposer of each of them: [1 + drafts], the root's first.
    std::span<const DraftOrigin> origins(RequestSlot request, std::int32_t drafts) const;
    // Levels that drafters with passes ran for the last choice.
    std::int64_t draft_levels() const { return draft_levels_; }

    // After the target's pass: hidden states that drafters may take (drafter.hpp).
    bool wants_hidden_states() const;
    void extend(std::span<const speculate::Extension> extensions);
    // Tokens that the target drew below the root that choose() was last called with.
    void learn(RequestSlot request, std::span<const std::int32_t> drawn);
    // Outcome of a step, all costs counted.
    struct Step {
        speculate::StepSize size = {};
        std::int64_t prompts = 0;  // tokens of them
        double tokens = 0;         // that its decoding rows committed
        double seconds = 0;
        double drafting = 0;  // of these
    };
    // Returns whether it took far longer than such steps do, so that nothing was learnt from it.
    bool learn(const Step& step);

    // In the order of their ids: what they are called, and why they were given up; empty: works.
    std::vector<std::string> names() const;
    std::vector<std::string> failures() const;
    // For the report of a step.
    void describe(StepReport& report) const;

  private:
    struct Source {
        std::unique_ptr<speculate::Drafter> drafter;  // null: it failed
        std::string name, failure;
        speculate::DraftTime time;
        speculate::Watch watch;
        double look_on = 0;  // seconds, in the last step
        // The call of the last choice, until its step shows that it was not disturbed.
        struct Call {
            std::int32_t levels = 0;
            std::int64_t tokens = 0;
            double seconds = 0;
        };
        std::optional<Call> call;
        std::int64_t able = 0;  // rows of the last plan that it may be asked for
        bool works() const { return drafter != nullptr; }
        bool passes() const { return works() && drafter->needs().passes; }
        bool looks_on() const { return works() && drafter->needs().hidden_states; }
    };
    struct Slot {
        bool open = false;
        bool drafts = false;
        bool needs_watch = false;  // it prescribes its drafts, from its beginning to its end
        bool proposed = false;
        bool prescribed = false;  // the row prescribes its drafts
        std::int64_t read = 0;
        std::int32_t free_drafts = 0;  // that drafters without passes are asked for
        std::int32_t fewer_steps = 0;  // since when fewer would have done
        speculate::Candidates candidates;
        speculate::RequestBias bias;
        speculate::RankedTree ranked{0};
        bool coupled = false;  // drafts share the target's noise, if it has any
    };
    static constexpr std::size_t kNoPlan = ~std::size_t{0};

    std::int64_t read_on(const Text& text, std::int64_t most);
    Slot& slot(RequestSlot request);
    const Slot& slot(RequestSlot request) const;
    void give_up(Source& source, const Error& error);
    static bool shown_to(const Slot& state, const Source& source);
    void follow_script(std::span<const DraftRow> rows, const speculate::StepLoad& load,
                       std::span<std::int32_t> drafts);
    bool may_draft(const DraftRow& row) const;
    bool has_free() const;
    speculate::StepSize decoding_size(std::span<const DraftRow> rows) const;
    double prompt_seconds(std::span<const DraftRow> rows, const speculate::StepSize& size) const;
    bool has_read(const DraftRow& row) const;
    bool can_ask(const Source& source, const DraftRow& row) const;
    speculate::DraftingWay way_of(std::span<const DraftRow> rows);
    void watch(double seconds);
    void open_ways(std::span<const DraftRow> rows);
    void choose_roots(std::span<const DraftRow> rows, const speculate::StepLoad& load);
    void start_choice(std::span<const DraftRow> rows);
    bool learn_time(const speculate::StepSample& sample);
    void learn_calls(bool disturbed);
    void learn_rate(const Step& step);
    bool may_look(std::span<const DraftRow> rows) const;
    void note_free(const speculate::Candidates::Shown& shown);
    void note_way(bool learns);
    void note_granted(std::span<const DraftRow> rows, std::span<const std::int32_t> drafts);
    void plan_drafting(std::span<const DraftRow> rows, speculate::StepLoad load);
    speculate::PlanRow plan_row(const DraftRow& row) const;
    speculate::DraftShape shape_for(speculate::DrafterId id, std::span<const DraftRow> rows,
                                    std::size_t row) const;
    double propose(speculate::DrafterId id, std::span<const DraftRow> rows);
    double merge(Source& source, double seconds);
    void offer(std::span<const DraftRow> rows);
    void grant_measured(const speculate::StepLoad& load, std::span<std::int32_t> drafts);
    void grant_everything(const speculate::StepLoad& load, std::span<std::int32_t> drafts);
    void grant_prescribed(std::span<const DraftRow> rows, speculate::StepLoad& load,
                          std::span<std::int32_t> drafts);
    bool starting() const { return first_grants_ < kFirstDrafts.size(); }

    SpeculationSettings settings_;
    std::vector<Source> sources_;
    IndexedVector<RequestSlot, Slot> slots_;
    speculate::AcceptanceTable table_;
    speculate::DraftPlanner planner_;
    speculate::NodeBudget budget_;
    speculate::MeasuredRate rate_;
    speculate::DraftingWay way_ = speculate::DraftingWay::passes;  // the most that this step may do
    bool reads_ = true;                           // drafters without passes are shown every token
    bool free_open_ = true;                       // these are not suspended
    bool looks_ = false;                          // these are, and are asked to be compared alone
    double free_places_ = 0, free_hits_ = 0;      // of late: where these proposed, and were right
    double free_seconds_ = 0;                     // that they take for one row of a step
    bool prescribes_ = false;                     // some row of the last choice
    bool asks_free_ = true;                       // in this step, and where no row prescribes it
    std::optional<speculate::DraftingWay> went_;  // what it is measured as; none: it learns
    std::int64_t decoding_rows_ = 0;              // of the last choice
    std::int64_t free_rows_ = 0;                  // of these, drafters without passes are asked for
    std::int64_t planned_rows_ = 0;               // of these, some draft model may
    speculate::MeasuredRate::Upkeep upkeep_;      // of the last step; looking on: planning alone
    std::int64_t prescribing_ = 0;                // requests under way
    std::optional<speculate::StepTime> time_;
    std::vector<speculate::StepSample> first_samples_;
    std::size_t first_grants_ = 0;
    // Reused from step to step.
    std::vector<speculate::Proposal> proposals_;
    std::vector<speculate::DraftCall> calls_;
    std::vector<speculate::OfferedDrafts> offers_;
    std::vector<speculate::PlanRow> plan_rows_;
    std::vector<std::size_t> plan_index_;   // by row: in plan_rows_, or kNoPlan
    std::vector<std::int32_t> prescribed_;  // drafts, by row
    std::int64_t draft_levels_ = 0;
};

}  // namespace espalier::engine
