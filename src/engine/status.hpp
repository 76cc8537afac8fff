// SPDX-License-Identifier: Apache-2.0
// What an engine tells about itself: its state, its numbers, and the one list of metrics that a
// server or a bench reads them by. Filled by the engine's thread, copied by Engine::status().
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/receiver.hpp"
#include "engine/step_report.hpp"
#include "schedule/plan.hpp"

namespace espalier::engine {

enum class EngineState : std::uint8_t {
    running,
    draining,  // takes nothing new, finishes what it has
    stopped,
    failed,  // by an error of the program: takes nothing, has ended all it had
};

// Choices that have ended, by how.
struct EndCounts {
    std::array<std::int64_t, accept::kFinishReasons> finished = {};  // by accept::FinishReason
    std::array<std::int64_t, kInterruptions> interrupted = {};       // by Interruption

    void add(const accept::Finish& finish, Interruption interruption, std::int64_t choices = 1);
    std::int64_t of(accept::FinishReason reason) const {
        return finished[static_cast<std::size_t>(reason)];
    }
    std::int64_t of(Interruption interruption) const {
        return interrupted[static_cast<std::size_t>(interruption)];
    }
};

// Since the engine was made.
struct EngineTotals {
    StepCounts steps;  // of all steps
    // Nanoseconds of the engine's thread, whenever it had a request: the steps and all between.
    schedule::Time busy = 0;
    std::int64_t refused = 0;  // choices that the queue had no room for
    EndCounts ends;
    // Steps counted by request: output tokens are these and the accepted drafts.
    std::int64_t drawing_steps() const { return steps.committed - steps.accepted; }
};

struct EngineStatus {
    EngineState state = EngineState::running;
    std::vector<std::string> drafters;  // their names, by id
    std::string failure;                // of state failed
    std::int64_t steps = 0;
    // On the engine's clock (Engine::now). heartbeat: when its thread last came round, once a
    // second at least while it is idle; it stands still for as long as a step takes. last_step:
    // when that ended.
    schedule::Time heartbeat = 0;
    schedule::Time last_step = 0;
    std::int64_t queued = 0;  // choices in the inbox, not yet with the scheduler
    schedule::Gauges gauges;
    schedule::Totals totals;
    StepReport report;  // of the last step
    EngineTotals sums;
};

// State of each drafter (asked, or why not): one of kDrafterStates.
std::vector<std::string_view> drafter_states(const EngineStatus& status);

struct Metric {
    enum class Kind : std::uint8_t { gauge, counter };
    const char* name;  // in the manner of Prometheus, unit included
    Kind kind;
    const char* help;
    double (*of)(const EngineStatus&);
    bool is_vllms = false;  // vLLM has the same number under this name
};

// All of them, each once. A new metric is a number in one of the structs above and a line here.
std::span<const Metric> engine_metrics();

// A metric with one number for each value of a label.
struct MetricFamily {
    const char* name;
    Metric::Kind kind;
    const char* help;
    const char* label;
    std::size_t (*size)(const EngineStatus&);
    std::string (*value)(const EngineStatus&, std::size_t);  // of the label
    double (*of)(const EngineStatus&, std::size_t);
};
std::span<const MetricFamily> engine_metric_families();

}  // namespace espalier::engine
