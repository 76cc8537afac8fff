// SPDX-License-Identifier: Apache-2.0
// How a request wants its tokens drawn, checked once at the edge. Everything past
// SamplingParameters::make may rely on it; ops/sampling.hpp says what each number does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "ops/sampling.hpp"

namespace espalier::accept {

// Biases are applied to every node of every step, so their number is work.
inline constexpr std::int64_t kMaxLogitBiases = 1024;

// As a request states it; names are those of the fields users write.
struct SamplingOptions {
    struct Bias {
        std::int64_t token = 0;
        float bias = 0.0f;
    };
    float temperature = 1.0f;
    float top_p = 1.0f;
    std::int64_t top_k = 0;  // 0 and -1: off
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    std::vector<Bias> logit_bias;
    std::uint64_t seed = 0;  // callers without one draw 64 random bits and report them
};

class SamplingParameters {
  public:
    // vocabulary: ids a draw can have.
    static Expected<SamplingParameters> make(const SamplingOptions& options,
                                             std::int64_t vocabulary);

    // A penalty is on, so draws need counts of tokens (OutputOptions::count_tokens).
    bool counts_tokens() const;
    // One that every node of the request begins with: all but position, choice, counts, bans,
    // grammar and reports. It borrows the biases: valid while this lives, also if it is moved.
    const ops::NodeSampling& node() const { return node_; }

    SamplingParameters(SamplingParameters&&) = default;
    SamplingParameters& operator=(SamplingParameters&&) = default;

  private:
    SamplingParameters() = default;
    std::vector<ops::LogitBias> logit_bias_;  // ascending ids
    ops::NodeSampling node_;
};

}  // namespace espalier::accept
