// SPDX-License-Identifier: Apache-2.0
// Facts that DraftPolicy is told, in the order of a step. Plain data: durations come as seconds,
// texts as how likely their drafts are, requests as slots. The facts of a run, and the memory that
// it began with, give its decisions again (tests/engine/policy_replay_test.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/index.hpp"
#include "speculate/drafter.hpp"
#include "speculate/policy/acceptance.hpp"
#include "speculate/policy/budget.hpp"
#include "speculate/policy/planner.hpp"

namespace espalier::speculate {

struct RequestBegun {
    RequestSlot request;
    bool prescribes = false;  // its drafts; draft models are kept up to date for it
};

struct RequestEnded {
    RequestSlot request;
};

// One call of a draft model.
struct DraftCallTime {
    std::int32_t levels = 0;
    std::int64_t tokens = 0;
    double seconds = 0;
};
using DraftCallTimes = std::array<std::optional<DraftCallTime>, kMaxDrafters>;

// One drafter's kind; a drafter that failed is none.
struct DrafterFacts {
    bool works = false;
    bool passes = false;    // of a model
    bool looks_on = false;  // at hidden states
};

struct RowFacts {
    RequestSlot request;
    double keys = 0;  // that a node of it sees, as in StepSize
    std::int32_t max_drafts = 0;
    bool drafts = false;   // the request wants any
    bool read = false;     // drafters without passes have read its whole text
    bool coupled = false;  // drafts share the target's noise
    std::optional<DraftShape> prescribed = {};
};

// Beginning of a step.
struct StepFacts {
    StepLoad load = {};
    std::array<DrafterFacts, kMaxDrafters> drafters = {};
    DraftCallTimes calls = {};  // of a step whose outcome was not told
    std::vector<RowFacts> rows = {};
};

// Proposals of drafters without passes, for the rows whose drafts are planned.
struct ProposedFacts {
    struct Row {
        std::size_t row = 0;
        std::array<bool, kMaxDrafters> unable = {};
        std::int32_t drafts = 0;
        Reach reach = {};
    };
    double free_seconds = 0;  // that they took
    std::vector<Row> rows = {};
};

// All proposals, merged and ranked.
struct OfferedFacts {
    double planning_seconds = 0;
    double free_seconds = 0, model_seconds = 0;  // of both kinds of drafters
    std::vector<std::int32_t> drafts = {};       // by row
    std::vector<double> survival = {};           // of these, row by row, not increasing in one
};

// A request's proposals beside what the target drew, in the order in which they were merged.
struct ComparedFacts {
    RequestSlot request;
    std::vector<Comparison> comparisons = {};
};

struct OutcomeFacts {
    StepSize size = {};
    std::int64_t prompt_tokens = 0;
    double tokens = 0;  // that decoding rows committed
    double seconds = 0;
    double drafting = 0, reading = 0;               // of these
    std::array<double, kMaxDrafters> look_on = {};  // of `drafting`, for KV of committed tokens
    DraftCallTimes calls = {};
};

using PolicyFact = std::variant<RequestBegun, RequestEnded, StepFacts, ProposedFacts, OfferedFacts,
                                ComparedFacts, OutcomeFacts>;

}  // namespace espalier::speculate
