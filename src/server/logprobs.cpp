// SPDX-License-Identifier: Apache-2.0
#include "server/logprobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/utf8.hpp"

namespace espalier::server {
namespace {

// JSON has no infinity; vLLM says so too.
constexpr float kLeastLogprob = -9999.0f;

double finite(float logprob) { return static_cast<double>(std::max(logprob, kLeastLogprob)); }

OrderedJson token_object(const text::Tokenizer& tokenizer, std::int32_t token, float logprob) {
    OrderedJson bytes = OrderedJson::array();
    for (const char byte : tokenizer.token_bytes(token))
        bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", token_text(tokenizer, token)},
            {"logprob", finite(logprob)},
            {"bytes", std::move(bytes)}};
}

}  // namespace

std::string token_text(const text::Tokenizer& tokenizer, std::int32_t token) {
    const std::string_view bytes = tokenizer.token_bytes(token);
    if (text::valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
    std::string made = "bytes:";
    for (const char byte : bytes)
        made += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    return made;
}

std::int64_t CodePointCounter::upto(std::string_view text, std::int64_t bytes) {
    const std::size_t end = std::min(text.size(), static_cast<std::size_t>(bytes));
    for (; bytes_ < end; ++bytes_)
        points_ += (static_cast<unsigned char>(text[bytes_]) & 0xC0) != 0x80 ? 1 : 0;
    return points_;
}

void CompletionLogprobs::add(const text::Tokenizer& tokenizer, const ScoredToken& scored) {
    tokens_.push_back(token_text(tokenizer, scored.token));
    offsets_.push_back(scored.text_offset);
    if (!scored.logprob) {
        logprobs_.push_back(nullptr);
        tops_.push_back(nullptr);
        return;
    }
    logprobs_.push_back(finite(*scored.logprob));
    OrderedJson top = OrderedJson::object();
    for (const accept::TokenLogprob& other : scored.top)
        if (other.token >= 0) top[token_text(tokenizer, other.token)] = finite(other.logprob);
    // The token itself is always among them.
    if (!scored.top.empty()) top[token_text(tokenizer, scored.token)] = finite(*scored.logprob);
    tops_.push_back(std::move(top));
}

OrderedJson CompletionLogprobs::take() {
    const auto taken = [](OrderedJson& list) { return std::exchange(list, OrderedJson::array()); };
    return {{"tokens", taken(tokens_)},
            {"token_logprobs", taken(logprobs_)},
            {"top_logprobs", taken(tops_)},
            {"text_offset", taken(offsets_)}};
}

OrderedJson prompt_logprobs(const text::Tokenizer& tokenizer, std::span<const std::int32_t> tokens,
                            const accept::PromptLogprobs& known, std::int32_t top) {
    const auto all = static_cast<std::size_t>(known.top_count());
    const std::size_t count = std::min(all, static_cast<std::size_t>(top));
    const auto entry = [&](std::int32_t token, float logprob, OrderedJson rank) -> OrderedJson {
        return {{"logprob", finite(logprob)},
                {"rank", std::move(rank)},
                {"decoded_token", token_text(tokenizer, token)}};
    };
    OrderedJson list = OrderedJson::array();
    list.push_back(nullptr);
    for (std::size_t i = 1; i < tokens.size() && i <= known.logprobs().size(); ++i) {
        const auto others = known.tops().subspan((i - 1) * all, count);
        OrderedJson one = OrderedJson::object();
        one[std::to_string(tokens[i])] = entry(tokens[i], known.logprobs()[i - 1], nullptr);
        for (std::size_t rank = 0; rank < others.size(); ++rank)
            if (others[rank].token >= 0)
                one[std::to_string(others[rank].token)] =
                    entry(others[rank].token, others[rank].logprob, rank + 1);
        list.push_back(std::move(one));
    }
    return list;
}

OrderedJson chat_logprob(const text::Tokenizer& tokenizer, const ScoredToken& scored) {
    OrderedJson object =
        token_object(tokenizer, scored.token, scored.logprob.value_or(kLeastLogprob));
    OrderedJson tops = OrderedJson::array();
    for (const accept::TokenLogprob& other : scored.top)
        if (other.token >= 0) tops.push_back(token_object(tokenizer, other.token, other.logprob));
    object["top_logprobs"] = std::move(tops);
    return object;
}

}  // namespace espalier::server
