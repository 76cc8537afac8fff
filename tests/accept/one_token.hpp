// SPDX-License-Identifier: Apache-2.0
// The definition of an output, plainly: no trees, one token at a time, and after each token the
// whole text is decoded and searched anew. What src/accept does must equal this.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "accept/output_rules.hpp"
#include "accept/request_progress.hpp"
#include "ops/sampling.hpp"

namespace espalier::accept {

struct PlainCount {
    int in_output = 0;
    bool in_prompt = false;
};
using PlainCounts = std::map<std::int32_t, PlainCount>;

struct PlainDraw {
    ops::Draw draw;
    std::vector<TokenLogprob> top;
};

// The model and its sampler: what is drawn after this output.
using Target = std::function<PlainDraw(std::span<const std::int32_t> output,
                                       std::span<const std::int32_t> banned, const PlainCounts&)>;

// Result of one draw.
struct PlainStep {
    std::string text;                    // a client sees this now
    std::vector<CommittedToken> tokens;  // and these
    std::vector<TokenLogprob> top;
};

struct PlainOutput {
    std::vector<std::int32_t> tokens;
    std::vector<PlainStep> steps;  // one per draw, a failing one too
    Finish finish;
    std::string text;
};

PlainOutput run_one_token_at_a_time(const OutputOptions& options,
                                    std::span<const std::int32_t> prompt, const Target& target);

}  // namespace espalier::accept
