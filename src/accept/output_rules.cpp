// SPDX-License-Identifier: Apache-2.0
#include "accept/output_rules.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "text/utf8.hpp"

namespace espalier::accept {
namespace {

Expected<void> check_stop_strings(const std::vector<std::string>& stop) {
    const auto count = static_cast<std::int64_t>(stop.size());
    if (count > kMaxStopStrings)
        return fail_field(ErrorKind::invalid, "stop", "{} strings, at most {}", count,
                          kMaxStopStrings);
    for (std::size_t i = 0; i < stop.size(); ++i) {
        const std::string field = fmt::format("stop[{}]", i);
        const auto bytes = static_cast<std::int64_t>(stop[i].size());
        if (bytes == 0) return fail_field(ErrorKind::invalid, field, "an empty string");
        if (bytes > kMaxStopStringBytes)
            return fail_field(ErrorKind::invalid, field, "{} bytes, at most {}", bytes,
                              kMaxStopStringBytes);
        const auto valid = static_cast<std::int64_t>(text::valid_utf8_prefix(stop[i]));
        if (valid != bytes)
            return fail_field(ErrorKind::invalid, field, "no UTF-8 from byte {} of {} on", valid,
                              bytes);
    }
    return {};
}

Expected<void> check_ids(const char* field, const std::vector<std::int32_t>& ids,
                         std::int64_t vocabulary) {
    const auto count = static_cast<std::int64_t>(ids.size());
    if (count > kMaxStopTokens)
        return fail_field(ErrorKind::invalid, field, "{} ids, at most {}", count, kMaxStopTokens);
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return fail_field(ErrorKind::invalid, fmt::format("{}[{}]", field, i),
                              "{} is not an id of the vocabulary of {}", ids[i], vocabulary);
    return {};
}

Expected<void> check_within(const char* field, std::int64_t value, std::int64_t most) {
    if (value >= 0 && value <= most) return {};
    return fail_field(ErrorKind::invalid, field, "{}, not within 0…{}", value, most);
}

Expected<void> check_numbers(const OutputOptions& options, std::int64_t vocabulary) {
    if (options.max_tokens < (options.prompt_top_logprobs ? 0 : 1))
        return fail_field(ErrorKind::invalid, "max_tokens",
                          "{}, at least 1 (or 0 with prompt_logprobs)", options.max_tokens);
    if (options.min_tokens < 0 || options.min_tokens > options.max_tokens)
        return fail_field(ErrorKind::invalid, "min_tokens", "{}, not within 0…max_tokens = {}",
                          options.min_tokens, options.max_tokens);
    const std::int64_t most = std::min<std::int64_t>(kMaxTopLogprobs, vocabulary);
    ESPALIER_RETURN_IF_ERROR(check_within("top_logprobs", options.top_logprobs, most));
    return check_within("prompt_logprobs", options.prompt_top_logprobs.value_or(0), most);
}

}  // namespace

Expected<OutputRules> OutputRules::make(OutputOptions options, const text::Tokenizer& tokenizer,
                                        std::int64_t vocabulary) {
    ESPALIER_RETURN_IF_ERROR(check_numbers(options, vocabulary));
    ESPALIER_RETURN_IF_ERROR(check_stop_strings(options.stop));
    ESPALIER_RETURN_IF_ERROR(check_ids("stop_token_ids", options.stop_token_ids, vocabulary));
    ESPALIER_RETURN_IF_ERROR(check_ids("eos_token_ids", options.eos_token_ids, vocabulary));
    OutputRules rules;
    std::vector<std::int32_t>& ending = rules.ending_tokens_;
    ending = options.stop_token_ids;
    if (!options.ignore_eos)
        ending.insert(ending.end(), options.eos_token_ids.begin(), options.eos_token_ids.end());
    for (const std::string& stop : options.stop) {
        const std::optional<std::int32_t> id = tokenizer.id_of(stop);
        if (id && *id < vocabulary && tokenizer.is_special(*id)) ending.push_back(*id);
    }
    std::ranges::sort(ending);
    ending.erase(std::unique(ending.begin(), ending.end()), ending.end());
    rules.options_ = std::move(options);
    return rules;
}

bool OutputRules::ends_output(std::int32_t token) const {
    return std::ranges::binary_search(ending_tokens_, token);
}

bool OutputRules::is_eos(std::int32_t token) const {
    return std::ranges::find(options_.eos_token_ids, token) != options_.eos_token_ids.end();
}

}  // namespace espalier::accept
