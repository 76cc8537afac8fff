// SPDX-License-Identifier: Apache-2.0
// What a client asks of the engine, as plain data, and the check that every request passes once, at
// the edge.
#pragma once

#include <cstdint>
#include <vector>

#include "accept/output_rules.hpp"
#include "base/error.hpp"
#include "ops/sampling.hpp"
#include "schedule/request.hpp"

namespace espalier::engine {

inline constexpr std::int32_t kMaxChoices = 128;
inline constexpr std::int64_t kMaxLogitBias = 1024;

struct SamplingOptions {
    float temperature = 1.0f;  // below 1e-5: greedy
    float min_p = 0.0f;
    float top_p = 1.0f;
    std::int32_t top_k = 0;  // 0: off
    float repetition_penalty = 1.0f;
    float frequency_penalty = 0.0f;
    float presence_penalty = 0.0f;
    std::vector<ops::LogitBias> logit_bias;
    std::uint64_t seed = 0;

    bool penalises() const {
        return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
    }
};

struct Request {
    std::vector<std::int32_t> prompt;
    SamplingOptions sampling;
    accept::OutputOptions output;
    std::int32_t choices = 1;  // parallel answers to the one prompt
    std::int32_t priority = 0;                       // smaller goes first
    schedule::Time deadline = schedule::kNoDeadline;  // nanoseconds on the engine's clock
    std::uint64_t salt = 0;                          // prompts of other salts never share pages
    bool speculate = true;
};

// The sampling options in range for a vocabulary; an error names the field and both numbers.
Expected<void> check_sampling(const SamplingOptions& options, std::int64_t vocabulary);

}  // namespace espalier::engine
