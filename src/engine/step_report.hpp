// SPDX-License-Identifier: Apache-2.0
// What a step did, and where its time went. Plain data, returned by Stepper::step().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/draft_origin.hpp"
#include "base/limits.hpp"
#include "engine/clock.hpp"
#include "schedule/plan.hpp"

namespace espalier::engine {

// Consecutive parts of a step on the engine's thread, in order. Draft nodes are proposed and chosen
// (draft) between the two halves of the plan; mask is what each draw is asked for, grammars' masks
// among it; run is the target's: the pass and the draws, or queueing them on a device, on which
// wait has the other work of the host that is done meanwhile; commit moves the drawn paths; walk
// includes what speculation learns; extend is what drafters take of the hidden states, nothing
// where none wants them.
enum class Phase : std::uint8_t {
    offer,
    draft,
    plan,
    build,
    mask,
    run,
    wait,
    commit,
    walk,
    extend,
    advance,
    emit,
};
inline constexpr std::size_t kPhases = 12;

// Why a drafter is not asked.
enum class DrafterState : std::uint8_t {
    drafting,     // it is
    slower,       // steps with it gave fewer tokens per second than steps without it
    left_behind,  // a draft model that gained less than it takes to keep it up to date
    failed,
};
inline constexpr std::array<std::string_view, 4> kDrafterStates = {"drafting", "slower",
                                                                   "left_behind", "failed"};

// Steps that computed no prompt: what decoding takes and yields by itself.
struct DecodeCounts {
    std::int64_t steps = 0;
    std::int64_t requests = 0;   // in each step, summed
    std::int64_t committed = 0;  // output tokens
    std::int64_t drafts = 0;     // verified
    std::int64_t draft_levels = 0;
    // Nanoseconds.
    schedule::Time whole = 0;
    schedule::Time drafting = 0;
    schedule::Time masking = 0;  // Phase::mask

    DecodeCounts& operator+=(const DecodeCounts& other) {
        steps += other.steps;
        requests += other.requests;
        committed += other.committed;
        drafts += other.drafts;
        draft_levels += other.draft_levels;
        whole += other.whole;
        drafting += other.drafting;
        masking += other.masking;
        return *this;
    }
};

// Counts that can be summed over steps: of one here, of all in EngineTotals (engine/status.hpp).
struct StepCounts {
    std::int64_t requests = 0;
    std::int64_t accepted = 0;      // drafts
    std::int64_t moved = 0;         // slots: accepted nodes that did not lie where they belong
    std::int64_t committed = 0;     // output tokens
    std::int64_t failed = 0;        // requests
    std::int64_t draft_levels = 0;  // passes of draft models
    std::int64_t disturbed = 0;     // steps that took far longer than such steps do
    // Nanoseconds.
    schedule::Time whole = 0;
    schedule::Time planning = 0;  // offers, drafts and the plan
    schedule::Time masking = 0;
    schedule::Time model = 0, sampling = 0;  // by the device's own time (DeviceTimes)
    schedule::Time drafting = 0;  // drafters' proposals and what they take of hidden states
    // [d]: trees that had a draft accepted at depth d; [0] stays 0.
    std::array<std::int64_t, kMaxNodes> accepted_at_depth = {};
    // [d]: verified and accepted drafts that are counted to drafter d (DraftOrigin).
    std::array<std::int64_t, kMaxDrafters> drafted_from = {}, accepted_from = {};
    DecodeCounts decode;

    StepCounts& operator+=(const StepCounts& other) {
        requests += other.requests;
        accepted += other.accepted;
        moved += other.moved;
        committed += other.committed;
        failed += other.failed;
        draft_levels += other.draft_levels;
        disturbed += other.disturbed;
        whole += other.whole;
        planning += other.planning;
        model += other.model;
        masking += other.masking;
        sampling += other.sampling;
        drafting += other.drafting;
        decode += other.decode;
        for (std::size_t depth = 0; depth < accepted_at_depth.size(); ++depth)
            accepted_at_depth[depth] += other.accepted_at_depth[depth];
        for (std::size_t drafter = 0; drafter < accepted_from.size(); ++drafter) {
            drafted_from[drafter] += other.drafted_from[drafter];
            accepted_from[drafter] += other.accepted_from[drafter];
        }
        return *this;
    }
};

struct StepReport : StepCounts {
    bool ran = false;  // false: no request had anything to compute
    std::int64_t number = 0;
    schedule::StepTokens tokens;
    schedule::Windows windows = schedule::Windows::reserved;
    schedule::Time begin = 0;  // on the engine's clock; all expires that was due by then
    // Nanoseconds of each phase.
    std::array<schedule::Time, kPhases> phases = {};
    // By drafter, and the steps until one that is `slower` is asked again.
    std::array<DrafterState, kMaxDrafters> drafter_states = {};
    std::array<std::int64_t, kMaxDrafters> suspended_steps = {};
    schedule::Time spent(Phase phase) const { return phases[static_cast<std::size_t>(phase)]; }
    // The device itself failed, in these words: no step may follow. Empty: it did not.
    std::string device_failure;
};

// Splits a step's time into phases: each lap ends one.
class StepTimer {
  public:
    StepTimer(const Clock& clock, StepReport& report) : clock_(clock), report_(report) {
        report.begin = last_ = clock();
    }
    // The time now, which is the end of the phase.
    schedule::Time lap(Phase phase) {
        const schedule::Time now = clock_();
        report_.phases[static_cast<std::size_t>(phase)] = now - last_;
        return last_ = now;
    }

  private:
    const Clock& clock_;
    StepReport& report_;
    schedule::Time last_ = 0;
};

}  // namespace espalier::engine
