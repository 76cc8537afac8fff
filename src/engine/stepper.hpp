// SPDX-License-Identifier: Apache-2.0
// The step, without a thread: plan → draft → build the batch → ask for draws → run → move the drawn
// paths → walk → advance → emit. Engine runs it on its own thread; tests drive it step by step.
// Time comes from the clock it is given. docs/engine.md tells the whole story.
//
// A request's output depends on the model, its prompt and its own parameters alone. So does its
// failure: bad numbers fail it only at a token that it has committed or that its walk visits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/clock.hpp"
#include "engine/live_request.hpp"
#include "engine/observer.hpp"
#include "engine/path_moves.hpp"
#include "engine/receiver.hpp"
#include "engine/request.hpp"
#include "engine/speculation.hpp"
#include "engine/status.hpp"
#include "engine/step_batch.hpp"
#include "engine/step_draws.hpp"
#include "engine/step_report.hpp"
#include "engine/target.hpp"
#include "engine/tree_script.hpp"
#include "model/taps.hpp"
#include "schedule/scheduler.hpp"
#include "text/tokenizer.hpp"

namespace espalier::engine {

struct StepperSettings {
    schedule::SchedulerOptions schedule;
    NodeGrant grant = NodeGrant::measured;
    Coupling coupling = Coupling::coupled;
    // For the grant `measured`; none: learnt from the first steps.
    std::optional<speculate::StepTime> step_time;
    speculate::Memory memory = {};  // what speculation knows at its start
    std::optional<speculate::PolicyPart> without = {};
    PolicyObserver policy_observer = {};
};

// The target and the drafters are the stepper's own; the others are borrowed and must outlive it.
struct StepperParts {
    std::unique_ptr<Target> target;
    const text::Tokenizer& tokenizer;
    std::vector<std::unique_ptr<speculate::Drafter>> drafters;
    Clock clock;
    StepObserver* observer = nullptr;  // told of every step; null: none
    TreeScript* script = nullptr;      // trees in place of the drafters'
    model::Taps taps{};                // where drafters find hidden states, if they want any
};

class Stepper {
  public:
    static Expected<std::unique_ptr<Stepper>> create(StepperParts parts,
                                                     const StepperSettings& settings);

    const RequestLimits& request_limits() const { return limits_; }
    // One id per choice. Everything the request gives, its end included, goes to the receiver. The
    // caller keeps to max_waiting (Inbox does). arrived: on the clock, when the client asked.
    std::vector<schedule::RequestId> submit(CheckedRequest request,
                                            std::shared_ptr<Receiver> receiver,
                                            schedule::Time arrived = 0);
    // Between steps. The receiver hears of the end before this returns; false: it had ended.
    bool cancel(schedule::RequestId id);
    // Receivers hear of what it brought before this returns; where the target is asynchronous, only
    // of ends: other updates go out in the next step, once that is queued on the device, or before
    // where queueing takes a while.
    StepReport step();
    bool idle() const { return scheduler_->idle(); }
    // Once a second while idle; see Target.
    Expected<void> beat() { return parts_.target->beat(); }
    // Ends every request where it stands. No other call may follow.
    void abandon(Interruption why, const std::string& message);

    const schedule::Scheduler& scheduler() const { return *scheduler_; }
    const EndCounts& ends() const { return ends_; }
    const Speculation& speculation() const { return speculation_; }

  private:
    Stepper(StepperParts parts, const StepperSettings& settings,
            std::unique_ptr<schedule::Scheduler> scheduler, ops::SamplingBatchBuilder draws);

    bool lives(const schedule::RequestId& id) const {
        return live_.has(id.slot) && live_[id.slot] && live_[id.slot]->id == id;
    }
    LiveRequest& live(const schedule::RequestId& id);
    double keys_of(const schedule::KeyPairs& pairs) const;
    speculate::StepSize step_size(const StepReport& report) const;
    const schedule::Plan& make_plan(StepReport& report, StepTimer& timer);
    void tell_lost_pages();
    void observe_trees() const;
    void run_plan(StepReport& report, StepTimer& timer);
    void start_drafting();
    void catch_up_drafters();
    Expected<void> run_model(StepTimer& timer);
    const ops::SamplingBatchBuilder& ask_draws(std::int64_t gather);
    void settle(PlanIndex index);
    void settle_prompt(PlanIndex index, LiveRequest& request, bool flagged);
    bool follow_walk(PlanIndex index, LiveRequest& request);
    void fail_grammar(PlanIndex index, LiveRequest& request);
    void fail_request(PlanIndex index, LiveRequest& request, accept::FinishReason reason);
    accept::NodeDraws node_draws(PlanIndex index) const;
    std::uint64_t flagged_tokens(const schedule::PlannedRequest& planned) const;
    void extend_drafters();
    Expected<void> move_paths();
    void fail_step(const std::string& message);
    void learn(StepReport& report);
    void emit();
    void deliver();
    void send(LiveRequest& request, std::optional<Ending> ending);
    void finish_ended();

    StepperParts parts_;
    RequestLimits limits_;
    std::unique_ptr<schedule::Scheduler> scheduler_;
    Speculation speculation_;
    IndexedVector<RequestSlot, std::unique_ptr<LiveRequest>> live_;
    EndCounts ends_;
    schedule::Time now_ = 0;  // the last that was heard of: of a step's phase, or of an arrival

    std::vector<schedule::RequestId> undelivered_;  // of the last step: what it brought them

    // State of the current step; memory is kept.
    const schedule::Plan* plan_ = nullptr;
    StepBatch batch_;
    StepDraws draws_;
    StepResult result_;
    PathMoves moves_;
    std::vector<DraftRow> draft_rows_;
    std::vector<std::int32_t> drafts_;  // by draft row
    std::vector<Speculation::Text> texts_;
    IndexedVector<PlanIndex, accept::WalkResult> walks_;
    IndexedVector<PlanIndex, schedule::Outcome> outcomes_;
    std::vector<speculate::Extension> extensions_;
    std::vector<std::int32_t> extension_tokens_, extension_taps_;
};

}  // namespace espalier::engine
