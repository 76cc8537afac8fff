// SPDX-License-Identifier: Apache-2.0
// Logprobs of a prompt's own tokens, gathered chunk by chunk as the prompt is computed. The logits
// at position i speak of token i + 1, also where a chunk ends between the two; token 0 has none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.hpp"

namespace espalier::accept {

using ops::TokenLogprob;

class PromptLogprobs {
  public:
    PromptLogprobs(std::span<const std::int32_t> prompt, std::int32_t top_count);

    // For positions [first, first + count) of the prompt: the token whose logprob is wanted at each
    // of them, and whose logits must be gathered. One fewer when the chunk ends the prompt: the
    // last position speaks of the first token of the output.
    std::span<const std::int32_t> wanted(std::int64_t first, std::int64_t count) const;

    // Results computed for wanted(first, count): its logprobs and, per token, top_count
    // alternatives. A prompt that is computed again after a preemption repeats what is known, bit
    // for bit, and repeated positions are passed over. A gap is a programmer error: a request that
    // wants its prompt's logprobs cannot skip positions by a prefix hit.
    void add(std::int64_t first, std::span<const float> logprobs,
             std::span<const TokenLogprob> top);

    bool complete() const { return logprobs_.size() + 1 >= prompt_.size(); }
    std::int32_t top_count() const { return top_count_; }
    // Entry i is of prompt token i + 1; tops: [entries, top_count].
    std::span<const float> logprobs() const { return logprobs_; }
    std::span<const TokenLogprob> tops() const { return tops_; }

  private:
    std::vector<std::int32_t> prompt_;
    std::int32_t top_count_;
    std::vector<float> logprobs_;
    std::vector<TokenLogprob> tops_;
};

}  // namespace espalier::accept
