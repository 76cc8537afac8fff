// SPDX-License-Identifier: Apache-2.0
// A server on a machine that is not there: a clock that steps, draft levels and looking on move by
// what a table of times says, texts that are hashes, drafters that are right as often as they are
// told to be. All else is the engine itself: scheduler, planner, grants, learning.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/stepper.hpp"

namespace espalier::engine {

// Microseconds.
struct SimulatedMachine {
    std::string name;
    // A step by its tokens; linear in between and beyond. On top of it the host's time for a row.
    std::vector<std::pair<std::int64_t, double>> step;
    double per_row = 0;
    double key = 0;  // of a key that a token sees
    // A GPU: the host goes on while a step runs, and a step takes as long as the next recorded size
    // (batch/captured_steps.hpp).
    bool beside = false, graphs = false;
    // A draft model: a call, each of its levels, each token that these compute; and for looking on
    // (the KV of committed tokens), each step and each token.
    double draft_call = 0, draft_level = 0, draft_token = 0;
    double look_on = 0, look_token = 0;
    // A row's plan, for each draft model.
    double plan_row = 0;
    // A drafter without a model: each row that it is asked for, each token that it reads, each node
    // that it proposes (it is merged and ranked).
    double free_row = 0, free_token = 0, free_node = 0;
    // Share by which a step takes longer behind a draft model's passes, whose weights have
    // displaced the target's.
    double displaced = 0;
    // Error of every time, evenly up to this share of it either way; and the chance of one that
    // is five times as long, as by an interrupt.
    double noise = 0, outliers = 0;
    // The chance that a step begins a burst, as by a neighbour who takes the machine: for this many
    // steps everything takes five times as long.
    double bursts = 0;
    std::int64_t burst_steps = 0;
    std::uint64_t seed = 1;  // of all these
    // Settings of the policy of servers on it.
    std::optional<speculate::PolicyPart> without = {};
    PolicyObserver observer = {};

    double step_time(std::int64_t tokens) const;
    double prompt_token_time() const;  // of one more token in a long step
};

struct SimulatedDrafter {
    bool passes = true;
    // The chance that its first choice is right, given that it was right so far. Texts differ from
    // it by up to `spread` either way.
    double right = 0.5, spread = 0.15;
    double right_in_chats = 0.5;  // the same in texts of chats (SimulatedServer::kChat)
    double second = 0.4;          // that the second choice is, where the first is not
    double offers = 1;            // that it has anything to offer at all
    double coupled =
        1;  // times `right`, where it draws with the target's noise (DraftCall::coupled)
};

// Moved by what happens on the machine.
class SimulatedClock {
  public:
    explicit SimulatedClock(const SimulatedMachine& machine)
        : machine_(machine), random_(machine.seed), bursts_(machine.seed + 1) {}

    schedule::Time now = 0;
    // Simulated duration of something that should take this long.
    schedule::Time taken(double microseconds);
    void pass(double microseconds) { now += taken(microseconds); }
    void begin_step();
    bool drafted = false;  // since the last step, by a draft model

  private:
    const SimulatedMachine machine_;
    Random random_, bursts_;
    std::int64_t burst_left_ = 0;
};

class SimulatedServer {
  public:
    // A prompt that begins with two of these is a chat's (SimulatedDrafter::right_in_chats).
    static constexpr std::int32_t kChat = 2;
    static constexpr std::int32_t kVocabulary = 512;

    SimulatedServer(const SimulatedMachine& machine, const std::vector<SimulatedDrafter>& drafters,
                    std::int64_t rows, std::int64_t pages, const speculate::Memory& memory = {});
    void submit(Request request, std::shared_ptr<Receiver> receiver);
    StepReport step() { return stepper_->step(); }
    bool idle() const { return stepper_->idle(); }
    schedule::Time now() const { return clock_.now; }
    // Steps of drafters that looked on, summed.
    std::int64_t looked_on() const { return looked_on_; }
    const Speculation& speculation() const { return stepper_->speculation(); }

  private:
    SimulatedMachine machine_;
    SimulatedClock clock_;
    std::int64_t looked_on_ = 0;
    std::unique_ptr<Stepper> stepper_;
};

}  // namespace espalier::engine
