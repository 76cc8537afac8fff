// SPDX-License-Identifier: Apache-2.0
// Logprobs in the two forms that OpenAI has: lists beside the text (completions), and an object per
// token (chat). Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "accept/prompt_logprobs.hpp"
#include "accept/request_progress.hpp"
#include "text/tokenizer.hpp"

namespace espalier::server {

using OrderedJson = nlohmann::ordered_json;

// A token's own text; where that is no UTF-8, its bytes as bytes:\xe2\x80, so that tokens stay
// apart.
std::string token_text(const text::Tokenizer& tokenizer, std::int32_t token);

// Counts code points up to places in a text that come in ascending order.
class CodePointCounter {
  public:
    // Code points in text[0, bytes); a place beyond the end counts as the end.
    std::int64_t upto(std::string_view text, std::int64_t bytes);

  private:
    std::size_t bytes_ = 0;
    std::int64_t points_ = 0;
};

// A token that is reported: of the prompt or of the output.
struct ScoredToken {
    std::int32_t token = -1;
    std::optional<float> logprob;                 // none: nothing speaks of the first token
    std::span<const accept::TokenLogprob> top{};  // alternatives, the likeliest first
    std::int64_t text_offset = 0;                 // code points of the text before it
};

class CompletionLogprobs {
  public:
    void add(const text::Tokenizer& tokenizer, const ScoredToken& scored);
    bool empty() const { return tokens_.empty(); }
    // The lists, which are empty afterwards.
    OrderedJson take();

  private:
    OrderedJson tokens_ = OrderedJson::array(), logprobs_ = OrderedJson::array(),
                tops_ = OrderedJson::array(), offsets_ = OrderedJson::array();
};

// vLLM's form for a prompt: of each token an object of {"logprob", "rank", "decoded_token"} by id,
// its own and `top` alternatives; null of the first token. A rank beyond the alternatives is null.
OrderedJson prompt_logprobs(const text::Tokenizer& tokenizer, std::span<const std::int32_t> tokens,
                            const accept::PromptLogprobs& known, std::int32_t top);

OrderedJson chat_logprob(const text::Tokenizer& tokenizer, const ScoredToken& scored);

}  // namespace espalier::server
