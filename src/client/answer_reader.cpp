// SPDX-License-Identifier: Apache-2.0
#include "client/answer_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.hpp"

namespace espalier::client {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxErrorBody = 64 << 10;
constexpr std::size_t kMaxMessage = 300;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr JsonLimits kDepth{.max_depth = 32};

// A line for people: what a server wrote must not pass for more than text.
std::string one_line(std::string_view text) {
    std::string line(text.substr(0, kMaxMessage));
    if (line.size() < text.size()) line += "…";
    std::ranges::replace_if(
        line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
    return line;
}

// The message of {"error": {"message": …}}, {"error": "…"} or {"message": …}; otherwise all of it.
std::string error_text(const Json& error) {
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object())
        for (const char* name : {"error", "message"})
            if (error.contains(name)) return error_text(error[name]);
    return error.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Failure not_the_api(std::string_view what) {
    return {FailureKind::json, fmt::format("an event's {}", what)};
}

// False: there, but no count.
bool read_count(const Json& object, const char* name, std::optional<std::int64_t>& count) {
    if (!object.is_object() || !object.contains(name) || object[name].is_null()) return true;
    const Json& value = object[name];
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxCount) return false;
    count = value.get<std::int64_t>();
    return true;
}

bool read_usage(const Json& usage, AnswerUsage& counts) {
    if (!usage.is_object()) return false;
    const Json details = usage.value("completion_tokens_details", Json());
    return read_count(usage, "prompt_tokens", counts.prompt_tokens) &&
           read_count(usage, "completion_tokens", counts.completion_tokens) &&
           read_count(details, "accepted_prediction_tokens", counts.accepted_tokens) &&
           read_count(details, "rejected_prediction_tokens", counts.rejected_tokens);
}

// A chat's text is in its delta, thoughts beside it; a completion's stands in the choice itself.
std::optional<std::string> text_of(const Json& choice) {
    const Json& place = choice.contains("delta") ? choice["delta"] : choice;
    if (!place.is_object()) return std::nullopt;
    std::string text;
    for (const char* name : {"reasoning_content", "content", "text"}) {
        if (!place.contains(name) || place[name].is_null()) continue;
        if (!place[name].is_string()) return std::nullopt;
        text += place[name].get_ref<const std::string&>();
    }
    return text;
}

}  // namespace

std::string status_message(int status, std::string_view body) {
    const auto json = parse_json(body, "answer", kDepth);
    const std::string said = json && json->is_object() ? error_text(*json) : std::string(body);
    return said.empty() ? fmt::format("HTTP {}", status)
                        : fmt::format("HTTP {}: {}", status, one_line(said));
}

std::optional<Failure> AnswerReader::push(std::string_view bytes,
                                          std::vector<std::string>& pieces) {
    if (status_ != 200) {
        error_body_ += bytes.substr(0, kMaxErrorBody - std::min(kMaxErrorBody, error_body_.size()));
        return std::nullopt;
    }
    std::vector<std::string> events;
    if (auto failure = events_.push(bytes, events)) return failure;
    for (const std::string& data : events) {
        if (data.starts_with("[DONE]")) done_ = true;
        if (done_) return std::nullopt;
        if (auto failure = take(data, pieces)) return failure;
    }
    return std::nullopt;
}

std::optional<Failure> AnswerReader::take(const std::string& data,
                                          std::vector<std::string>& pieces) {
    const auto parsed = parse_json(data, "event", kDepth);
    if (!parsed || !parsed->is_object()) return not_the_api("data is no JSON object");
    const Json& chunk = *parsed;
    if (chunk.contains("error") && !chunk["error"].is_null())
        return Failure{FailureKind::server_error, one_line(error_text(chunk["error"]))};
    if (chunk.contains("usage") && !chunk["usage"].is_null() && !read_usage(chunk["usage"], usage_))
        return not_the_api("usage is no list of counts");
    if (!chunk.contains("choices") || !chunk["choices"].is_array())
        return not_the_api("data has no choices");
    if (chunk["choices"].empty()) return std::nullopt;
    const Json& choice = chunk["choices"][0];
    const auto text = choice.is_object() ? text_of(choice) : std::nullopt;
    if (!text) return not_the_api("choice has no text");
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
        finish_reason_ = choice["finish_reason"].get<std::string>();
    if (text->empty() && (finish_reason_.empty() || pieces_ > 0)) return std::nullopt;
    if (++pieces_ > max_pieces_)
        return Failure{FailureKind::events,
                       fmt::format("more than {} pieces of text came", max_pieces_)};
    pieces.push_back(*text);
    return std::nullopt;
}

std::optional<Failure> AnswerReader::end() const {
    if (status_ != 200) return Failure{FailureKind::status, status_message(status_, error_body_)};
    if (pieces_ == 0) return Failure{FailureKind::events, "the answer has no events with text"};
    if (done_ || !finish_reason_.empty()) return std::nullopt;
    return Failure{FailureKind::closed, "the stream ended before the answer did"};
}

}  // namespace espalier::client
