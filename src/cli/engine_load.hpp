// SPDX-License-Identifier: Apache-2.0
// What bench engine sends to an engine, and what its clients see: requests from a seed, times on
// the client's side.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {

// Tokens; log-uniform between both ends, so every doubling is as likely as any other: many short
// requests, some long ones.
struct LengthRange {
    std::int64_t low = 1, high = 1;
};
// "512" or "64-512".
Expected<LengthRange> parse_range(const char* flag, const std::string& text);

struct LoadOptions {
    std::int64_t requests = 32;
    double arrival_rate = 0;  // requests per second, at random moments (Poisson); 0: all at once
    LengthRange prompt, output;
    std::int64_t shared = 0;  // tokens that all prompts begin with
    std::string text;         // file that prompts are cut from; empty: random tokens
    std::string prompts;  // JSON lines with a prompt each, in turn; then its range does not count
    std::string completions;  // JSON lines of prompt and completion, in turn; then no ranges count
    float temperature = 0;
    std::uint64_t seed = 1;
};

struct LoadRequest {
    engine::Request request;
    std::optional<double> arrival_seconds;  // none: when a client is free for it
};

// A function of the options, the tokenizer and the limits alone.
Expected<std::vector<LoadRequest>> make_load(const LoadOptions& options,
                                             const text::Tokenizer& tokenizer,
                                             std::int64_t vocabulary, std::int64_t max_model_len);

struct LoadResult {
    double seconds = 0;  // from the start to the last end
    // Ascending. Seconds from arrival, or from sending, to the first token; and from one token to
    // the next: tokens that come together share the wait for them.
    std::vector<double> first_token, gaps;
    std::int64_t requests = 0, prompt_tokens = 0, tokens = 0;
    engine::EngineStatus status;
};

// Clients take requests in order of arrival, each its next one when its last is finished; a request
// whose clients are all busy waits, and its clock runs. progress: requests done so far.
Expected<LoadResult> run_load(engine::Engine& engine, const std::vector<LoadRequest>& load,
                              std::int64_t clients,
                              const std::function<void(std::int64_t)>& progress);

}  // namespace espalier::cli
