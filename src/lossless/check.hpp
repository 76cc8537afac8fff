// SPDX-License-Identifier: Apache-2.0
// The engine's promise as a check: a workload is driven through a Stepper, and each request's
// tokens, logprobs, text and end must be those of the same request run alone, plainly
// (plain_run.hpp). A request that is cancelled or out of time has emitted exactly what it would
// have up to there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "lossless/grammars.hpp"
#include "lossless/workload.hpp"

namespace espalier::lossless {

// Features that workloads exercised, so that an engine cannot pass by doing nothing.
struct Coverage {
    std::int64_t requests = 0;  // choices
    std::int64_t steps = 0;
    std::int64_t prompt_tokens = 0, tokens = 0;
    std::int64_t drafts = 0, accepted = 0;
    std::int64_t accepted_beside = 0;  // of drafters beside the first
    std::int64_t moved = 0;            // slots, by commits of paths that were not the first branch
    std::int64_t preemptions = 0;
    std::int64_t hits = 0;         // tokens found in the prefix index
    std::int64_t interrupted = 0;  // cancelled or out of time
    std::int64_t bad_numbers = 0, stop_strings = 0, eos = 0;
    std::int64_t prompt_logprobs = 0;   // requests whose prompts' were compared
    std::int64_t broken = 0;            // drafters that were given up
    std::int64_t grammars = 0;          // requests with one
    std::int64_t held = 0;              // of these: came to an end of the grammar
    std::int64_t markers_in_trees = 0;  // ends of reasoning that were accepted drafts
    std::int64_t forced = 0;            // accepted drafts of what grammars force

    void add(const Coverage& other);
};

// The first difference between two outputs, in words; empty: none.
std::string difference(const Output& got, const Output& want);

struct Verdict {
    std::vector<std::string> differences;  // none: lossless
    Coverage coverage;
    std::vector<HeldText> held;  // for a checker of texts
};

// An error: the model refused something, or the engine did not come to an end.
Expected<Verdict> check_workload(const Workload& work, const Subject& subject);

}  // namespace espalier::lossless
