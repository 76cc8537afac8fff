// SPDX-License-Identifier: Apache-2.0
// How a request wants its tokens drawn, checked once at the edge. Everything past
// SamplingParameters::make may rely on it; ops/sampling.hpp says what each number does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accept/sampling_options.hpp"
#include "base/error.hpp"
#include "ops/sampling.hpp"

namespace espalier::accept {

// Biases are applied to every node of every step, so their number is work.
inline constexpr std::int64_t kMaxLogitBiases = 1024;

class SamplingParameters {
  public:
    // vocabulary: ids a draw can have.
    static Expected<SamplingParameters> make(const SamplingOptions& options,
                                             std::int64_t vocabulary);

    // A penalty is on, so draws need counts of tokens (OutputOptions::count_tokens).
    bool counts_tokens() const { return draw_.penalises(); }
    const ops::DrawParameters& draw() const { return draw_; }
    std::span<const ops::LogitBias> logit_bias() const { return logit_bias_; }  // ascending ids

    SamplingParameters(SamplingParameters&&) = default;
    SamplingParameters& operator=(SamplingParameters&&) = default;

  private:
    SamplingParameters() = default;
    std::vector<ops::LogitBias> logit_bias_;
    ops::DrawParameters draw_;
};

}  // namespace espalier::accept
