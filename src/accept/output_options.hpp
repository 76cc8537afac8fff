// SPDX-License-Identifier: Apache-2.0
// What a request asks of its output: where it ends, what is reported with it, where its reasoning
// ends. Plain data, each struct with one list of its fields; a trace's lines are those lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace espalier::accept {

// Limits within which fields() reads what it lists; checks at the edge are far narrower.
inline constexpr std::int64_t kMaxListed = std::int64_t{1} << 53;
inline constexpr std::int64_t kMaxListedIds = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxListedId = (std::int64_t{1} << 31) - 1;

// Output options as a request or a checkpoint states them, under the names that users write.
struct OutputOptions {
    std::vector<std::int32_t> eos_token_ids;  // of the checkpoint
    bool ignore_eos = false;
    std::vector<std::int32_t> stop_token_ids;
    std::vector<std::string> stop;    // UTF-8
    bool include_stop = false;        // the text keeps what stopped it
    bool skip_special_tokens = true;  // the text leaves special tokens out
    std::int64_t min_tokens = 0;      // these first ones never end the output
    // ≥ 1, the room left in the context considered; 0 where only the prompt's logprobs are wanted.
    std::int64_t max_tokens = 0;
    std::int32_t top_logprobs = 0;                    // alternatives reported with each token
    std::optional<std::int32_t> prompt_top_logprobs;  // the same for the prompt; none: no logprobs
    bool count_tokens = false;  // penalties are on, so draws need counts of tokens

    // Visitors are those of trace/events.hpp. A field that is not listed does not compile;
    // count_tokens follows from SamplingOptions.
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        [[maybe_unused]] auto& [eos_token_ids, ignore_eos, stop_token_ids, stop, include_stop,
                                skip_special_tokens, min_tokens, max_tokens, top_logprobs,
                                prompt_top_logprobs, count_tokens] = self;
        visit.integer("max_tokens", max_tokens, 0, kMaxListed);
        visit.integer("min_tokens", min_tokens, 0, kMaxListed);
        visit.integers("eos_token_ids", eos_token_ids, kMaxListedIds, 0, kMaxListedId);
        visit.flag("ignore_eos", ignore_eos);
        visit.integers("stop_token_ids", stop_token_ids, kMaxListedIds, 0, kMaxListedId);
        visit.texts("stop", stop, kMaxListedIds);
        visit.flag("include_stop", include_stop);
        visit.flag("skip_special_tokens", skip_special_tokens);
        visit.integer("top_logprobs", top_logprobs, 0, kMaxListedId);
        visit.maybe_integer("prompt_top_logprobs", prompt_top_logprobs, 0, kMaxListedId);
    }
    bool operator==(const OutputOptions&) const = default;
};

struct ReasoningRule {
    // Each of them ends the reasoning; the first is the one that an exhausted budget asks for.
    std::vector<std::int32_t> end_token_ids;
    // False: the prompt has closed the reasoning already, and the answer begins at once.
    bool open = true;
    std::optional<std::int64_t> budget;  // tokens before the end marker; none: not bounded

    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        auto& [end_token_ids, open, budget] = self;
        visit.integers("end_token_ids", end_token_ids, kMaxListedIds, 0, kMaxListedId);
        visit.flag("open", open);
        visit.maybe_integer("budget", budget, 0, kMaxListed);
    }
    bool operator==(const ReasoningRule&) const = default;
};

}  // namespace espalier::accept
