// SPDX-License-Identifier: Apache-2.0
// Drafting for all running requests of a step: keeps the drafters informed, asks them for what
// speculate::DraftPolicy decides, merges and ranks what they propose, and tells the policy what was
// drawn and what it took. Holds no thread; called by Stepper. Nothing in here can change a text.
// docs/speculation.md tells how trees grow.
//
// A drafter that returns an error is destroyed: requests go on without it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
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
#include "speculate/drafter.hpp"
#include "speculate/merge.hpp"
#include "speculate/policy/draft_policy.hpp"

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

// Sees every fact that the policy was told, and what it decided then.
using PolicyObserver =
    std::function<void(const speculate::PolicyFact& fact, const speculate::DraftPolicy& after)>;

struct SpeculationSettings {
    NodeGrant grant = NodeGrant::measured;
    Coupling coupling = Coupling::coupled;
    std::int64_t max_rows = 0;  // running requests in a step
    std::int64_t vocabulary = 0;
    double key_cost = 0;           // of a key that a draft sees, as in speculate::StepSize
    TreeScript* script = nullptr;  // says what to verify; drafters only look on
    Clock clock = {};              // measures what drafting takes; none: nothing is known of it
    std::optional<speculate::PolicyPart> without = {};
    PolicyObserver policy_observer = {};  // for tests; none: facts are not copied
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

    // A drafter's id is its place in the list; at most kMaxDrafters.
    Speculation(const SpeculationSettings& settings,
                std::vector<std::unique_ptr<speculate::Drafter>> drafters);

    // In place of what the first steps would show.
    void set_step_time(const speculate::StepTime& time) { policy_.set_step_time(time); }
    // Before the first step.
    void remember(const speculate::Memory& memory) { policy_.remember(memory, names()); }
    speculate::Memory memory() const { return policy_.memory(names()); }

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
    bool reads() const { return policy_.reads(); }  // anything now
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
        bool works() const { return drafter != nullptr; }
        bool passes() const { return works() && drafter->needs().passes; }
        bool looks_on() const { return works() && drafter->needs().hidden_states; }
    };
    struct Slot {
        bool open = false;
        bool drafts = false;
        bool proposed = false;
        std::int64_t read = 0;
        speculate::Candidates candidates;
        speculate::RankedTree ranked{0};
    };

    std::int64_t read_on(const Text& text, std::int64_t most);
    Slot& slot(RequestSlot request);
    const Slot& slot(RequestSlot request) const;
    void give_up(Source& source, const Error& error);
    static bool shown_to(const Slot& state, const Source& source);
    template <typename Fact>
    void tell(const Fact& fact);
    double seconds_since(schedule::Time begin) const;
    schedule::Time now() const { return settings_.clock ? settings_.clock() : 0; }
    bool is_awake(std::size_t source) const;
    bool can_ask(std::size_t source, const DraftRow& row) const;
    void follow_script(std::span<const DraftRow> rows, const speculate::StepLoad& load,
                       std::span<std::int32_t> drafts);
    void open_step(std::span<const DraftRow> rows, const speculate::StepLoad& load);
    void reset_slots(std::span<const DraftRow> rows);
    void plan(std::span<const DraftRow> rows, double free_seconds);
    void add_plan_row(std::span<const DraftRow> rows, std::size_t row);
    double ask_all(std::span<const DraftRow> rows, bool passes);
    double propose(speculate::DrafterId id, std::span<const DraftRow> rows);
    double merge(Source& source, std::span<const DraftRow> rows, double seconds);
    void offer(std::span<const DraftRow> rows);

    SpeculationSettings settings_;
    std::vector<Source> sources_;
    IndexedVector<RequestSlot, Slot> slots_;
    speculate::DraftPolicy policy_;
    // Facts, reused from step to step.
    speculate::StepFacts step_;
    speculate::ProposedFacts proposed_;
    speculate::OfferedFacts offered_;
    speculate::ComparedFacts compared_;
    speculate::OutcomeFacts outcome_;
    std::vector<speculate::Proposal> proposals_;
    std::vector<speculate::DraftCall> calls_;
    std::vector<std::size_t> call_rows_;
    std::int64_t draft_levels_ = 0;
};

}  // namespace espalier::engine
