// SPDX-License-Identifier: Apache-2.0
#include "load/prompts.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.hpp"
#include "base/random.hpp"
#include "text/utf8.hpp"

namespace espalier::load {
namespace {

using Json = nlohmann::ordered_json;

// From a random place on; the text counts as a ring, and code points stay whole.
std::string cut(std::string_view text, std::size_t bytes, Random& random) {
    const auto begins = [&](std::size_t at) {
        return (static_cast<unsigned char>(text[at]) & 0xc0u) != 0x80u;
    };
    std::size_t at = random.bits() % text.size();
    while (at > 0 && !begins(at)) --at;
    std::string piece;
    while (piece.size() < bytes) {
        const std::string_view rest = text.substr(at, bytes - piece.size());
        piece += rest;
        at = 0;
    }
    std::string valid;
    text::append_valid_utf8(piece, true, valid);
    return valid;
}

Json prompt_of(const LoadOptions& options, std::size_t request, Random& random) {
    if (!options.prompts.empty()) return options.prompts[request % options.prompts.size()];
    if (!options.text.empty())
        return cut(options.text, static_cast<std::size_t>(options.input_tokens * kBytesPerToken),
                   random);
    Json ids = Json::array();
    for (std::int64_t i = 0; i < options.input_tokens; ++i)
        ids.push_back(
            random.between(static_cast<int>(kFirstId), static_cast<int>(options.vocabulary) - 1));
    return ids;
}

}  // namespace

const char* request_path(Api api) {
    return api == Api::chat ? "/v1/chat/completions" : "/v1/completions";
}

std::string request_body(const LoadOptions& options, std::size_t request) {
    // A seed of its own, drawn: streams of neighbouring seeds are one another's, shifted by a draw.
    Random random(Random(options.seed + (std::uint64_t{request} << 32)).bits());
    Json body = {{"model", options.model}};
    Json prompt = prompt_of(options, request, random);
    if (options.api == Api::chat)
        body["messages"] = Json::array({{{"role", "user"}, {"content", std::move(prompt)}}});
    else
        body["prompt"] = std::move(prompt);
    body["max_tokens"] = options.output_tokens;
    body["temperature"] = options.temperature;
    body["seed"] = random.bits() >> 33;  // 31 bits: some servers take no more
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (options.ignore_eos) body["ignore_eos"] = true;
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Expected<std::vector<std::string>> parse_prompts(std::string_view lines, std::string_view name) {
    std::vector<std::string> prompts;
    for (std::size_t begin = 0, number = 1; begin < lines.size(); ++number) {
        const std::size_t end = std::min(lines.find('\n', begin), lines.size());
        const auto line = parse_json(lines.substr(begin, end - begin), name);
        begin = end + 1;
        if (!line || !line->is_object() || !line->contains("prompt") ||
            !(*line)["prompt"].is_string())
            return fail(ErrorKind::invalid, "{}: line {} has no text \"prompt\"", name, number);
        prompts.push_back((*line)["prompt"].get<std::string>());
    }
    if (prompts.empty()) return fail(ErrorKind::invalid, "{}: no lines", name);
    return prompts;
}

Expected<std::vector<std::string>> parse_conversations(std::string_view text,
                                                       std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const auto list, parse_json(text, name));
    if (!list.is_array()) return fail(ErrorKind::invalid, "{}: no list of conversations", name);
    std::vector<std::string> prompts;
    for (const auto& entry : list) {
        if (!entry.is_object()) continue;
        const auto turns = entry.value("conversations", nlohmann::json());
        if (!turns.is_array() || turns.size() < 2 || !turns[0].is_object()) continue;
        const auto said = turns[0].value("value", nlohmann::json());
        if (said.is_string() && !said.get_ref<const std::string&>().empty())
            prompts.push_back(said.get<std::string>());
    }
    if (prompts.empty())
        return fail(ErrorKind::invalid, "{}: no conversation of two messages", name);
    return prompts;
}

Expected<void> check_prompts(const LoadOptions& options) {
    if (options.api == Api::chat && options.text.empty() && options.prompts.empty())
        return fail(ErrorKind::invalid,
                    "a chat needs words, not ids: give --text or --prompts, or leave --backend "
                    "openai-chat");
    if (options.vocabulary <= kFirstId)
        return fail_field(ErrorKind::invalid, "vocabulary", "{}, not above {}", options.vocabulary,
                          kFirstId);
    return {};
}

}  // namespace espalier::load
