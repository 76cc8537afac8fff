// SPDX-License-Identifier: Apache-2.0
#include "accept/prompt_logprobs.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::accept {

PromptLogprobs::PromptLogprobs(std::span<const std::int32_t> prompt, std::int32_t top_count)
    : prompt_(prompt.begin(), prompt.end()), top_count_(top_count) {
    CHECK(!prompt.empty() && top_count >= 0, "a prompt of {} tokens, {} alternatives",
          prompt.size(), top_count);
    logprobs_.reserve(prompt.size() - 1);
    tops_.reserve((prompt.size() - 1) * static_cast<std::size_t>(top_count));
}

std::span<const std::int32_t> PromptLogprobs::wanted(std::int64_t first, std::int64_t count) const {
    const auto length = static_cast<std::int64_t>(prompt_.size());
    CHECK(first >= 0 && count >= 0 && first + count <= length,
          "positions {}…{} of a prompt of {} tokens", first, first + count, length);
    const std::int64_t end = std::min(first + count + 1, length);
    const std::int64_t begin = std::min(first + 1, end);
    return std::span(prompt_).subspan(static_cast<std::size_t>(begin),
                                      static_cast<std::size_t>(end - begin));
}

void PromptLogprobs::add(std::int64_t first, std::span<const float> logprobs,
                         std::span<const TokenLogprob> top) {
    const auto known = static_cast<std::int64_t>(logprobs_.size());
    const auto count = static_cast<std::int64_t>(logprobs.size());
    const auto top_count = static_cast<std::size_t>(top_count_);
    CHECK(first >= 0 && first <= known, "prompt logprobs from position {} on, but {} are known",
          first, known);
    CHECK(first + count < static_cast<std::int64_t>(prompt_.size()),
          "prompt logprobs of positions {}…{}, but the prompt has {} tokens", first, first + count,
          prompt_.size());
    CHECK(top.size() == logprobs.size() * top_count, "{} alternatives for {} tokens, not {} each",
          top.size(), logprobs.size(), top_count);
    const auto repeated = static_cast<std::size_t>(std::min(known - first, count));
    logprobs = logprobs.subspan(repeated);
    top = top.subspan(repeated * top_count);
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    tops_.insert(tops_.end(), top.begin(), top.end());
}

}  // namespace espalier::accept
