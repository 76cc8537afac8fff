// SPDX-License-Identifier: Apache-2.0
// A server under load on a machine that is not there: a clock that steps, draft levels and looking
// on move by what a table of times says, texts that are hashes, drafters that are right as often as
// they are told to be, and clients who send their next request when the last has ended. All else is
// the engine itself: scheduler, planner, grants, learning. So what automatic speculation comes to
// can be compared with what it might have come to, whatever runs beside the test.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace espalier::engine {

// Microseconds.
struct SimulatedMachine {
    std::string name;
    // A step by its tokens; linear in between and beyond. On top of it the host's time for a row.
    std::vector<std::pair<std::int64_t, double>> step;
    double per_row = 0;
    // A GPU: the host goes on while a step runs, and a step takes as long as the next recorded size
    // (batch/captured_steps.hpp).
    bool beside = false, graphs = false;
    // A draft model: a call, each of its levels, each token that these compute; and for looking on
    // (the KV of committed tokens), each step and each token.
    double draft_call = 0, draft_level = 0, draft_token = 0;
    double look_on = 0, look_token = 0;
    // A drafter without a model: each row that it is asked for, each token that it reads.
    double free_row = 0, free_token = 0;
    // What every time is off, evenly up to this share of it either way; and the chance of one that
    // is five times as long, as by an interrupt.
    double noise = 0, outliers = 0;
    std::uint64_t seed = 1;  // of both

    double step_time(std::int64_t tokens) const;
};

struct SimulatedDrafter {
    bool passes = true;
    // The chance that its first choice is right, given that it was right so far. Texts differ from
    // it by up to `spread` either way.
    double right = 0.5, spread = 0.15;
    double second = 0.4;  // that the second choice is, where the first is not
    double offers = 1;    // that it has anything to offer at all
};

struct SimulatedLoad {
    std::int64_t clients = 1;
    std::int64_t prompt = 100, output = 128;
    bool spread_lengths = false;  // 1/4 to 7/4 of the output instead
    int prompts = 0;              // different ones; 0: no two are the same
    std::int64_t pages = 10;      // of the cache, for each client
    std::int64_t steps = 1000;    // that plain decoding would take, about
    // Prescribed levels, 0: what pays.
    std::int32_t depth = 0;
};

struct SimulatedResult {
    double tokens_per_second = 0;
    double later = 0;          // the same of the second half
    double accepted = 0;       // drafts, per step and row
    double levels = 0;         // of draft models, per step
    double drafts = 0;         // verified, per step and row
    double with_prompts = 0;   // share of steps
    double looked_on = 0;      // share of steps in which some drafter did
    double prompt_tokens = 0;  // computed, per request
};

SimulatedResult simulate(const SimulatedMachine& machine,
                         const std::vector<SimulatedDrafter>& drafters, const SimulatedLoad& load);

}  // namespace espalier::engine
