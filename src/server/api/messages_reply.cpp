// SPDX-License-Identifier: Apache-2.0
#include "server/api/messages_reply.hpp"

#include <fmt/format.h>

#include <utility>

namespace espalier::server {
namespace {

using OrderedJson = nlohmann::ordered_json;
using accept::FinishReason;

// Anthropic's word for a status.
const char* messages_error_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 503:
            return "overloaded_error";
        case 408:
        case 504:
            return "timeout_error";
        default:
            return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

// The arguments as an object. A call that the output's end cuts, or whose JSON is none, has {}.
OrderedJson input_of(const std::string& arguments) {
    OrderedJson input = OrderedJson::parse(arguments, nullptr, false);
    return input.is_object() ? input : OrderedJson::object();
}

}  // namespace

std::string messages_error_json(const ApiError& error) {
    return json_text({{"type", "error"},
                      {"error",
                       {{"type", messages_error_type(error.status)},
                        {"message", shortened_message(error.message)}}}});
}

HttpResponse messages_error_response(const ApiError& error) {
    HttpResponse response = error_response(error);
    response.body = messages_error_json(error);
    return response;
}

ApiError messages_too_long(TokenCount tokens, std::int64_t limit, const std::string& field) {
    return {
        .message = fmt::format("prompt is too long: {} tokens > {} maximum", tokens.number, limit),
        .param = field,
        .code = "context_length_exceeded"};
}

MessagesReply::MessagesReply(PartsReplyOptions options, MessagesAnswer answer)
    : PartsReply(std::move(options)), answer_(std::move(answer)) {}

// ---- what both forms have -----------------------------------------------------------------------

OrderedJson MessagesReply::envelope() const {
    return {{"id", options_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", options_.model},
            {"content", OrderedJson::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
}

// Anthropic counts cached tokens beside input_tokens, not among them.
OrderedJson MessagesReply::usage() const {
    return {{"input_tokens", usage_.prompt_tokens - cached_tokens_},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached_tokens_},
            {"output_tokens", usage_.completion_tokens},
            {"output_tokens_details", {{"thinking_tokens", usage_.reasoning_tokens}}}};
}

// Clients send a signature back with its block. Nothing here reads it.
OrderedJson MessagesReply::block(const Part& part) const {
    switch (part.kind) {
        case Part::Kind::reasoning:
            return {{"type", "thinking"},
                    {"thinking", answer_.omits_thinking ? std::string() : part.text},
                    {"signature", options_.id}};
        case Part::Kind::content:
            return {{"type", "text"}, {"text", part.text}};
        case Part::Kind::call:
            return {{"type", "tool_use"},
                    {"id", part.id},
                    {"name", part.name},
                    {"input", input_of(part.text)}};
    }
    return nullptr;
}

const char* MessagesReply::stop_reason() const {
    if (finish_.reason == FinishReason::stop_string) return "stop_sequence";
    if (finish_.reason == FinishReason::length)
        return usage_.completion_tokens < answer_.max_tokens ? "model_context_window_exceeded"
                                                             : "max_tokens";
    return has_calls() ? "tool_use" : "end_turn";
}

OrderedJson MessagesReply::stop_sequence() const {
    if (finish_.reason != FinishReason::stop_string) return nullptr;
    return answer_.stop_sequences.at(static_cast<std::size_t>(finish_.which));
}

// ---- a stream -----------------------------------------------------------------------------------

void MessagesReply::event(const char* type, OrderedJson body, std::string& out) const {
    OrderedJson whole = {{"type", type}};
    whole.update(body);
    out += sse_event(type, json_text(whole));
}

void MessagesReply::delta(const char* type, const char* name, const std::string& text,
                          std::string& out) const {
    event("content_block_delta",
          {{"index", parts_.size() - 1}, {"delta", {{"type", type}, {name, text}}}}, out);
}

void MessagesReply::opened(std::string& out) {
    started_ = true;
    OrderedJson message = envelope();
    message["usage"] = usage();
    event("message_start", {{"message", std::move(message)}}, out);
}

void MessagesReply::part_began(std::string& out) {
    OrderedJson begun = block(parts_.back());
    if (parts_.back().kind == Part::Kind::reasoning) begun["signature"] = "";
    event("content_block_start",
          {{"index", parts_.size() - 1}, {"content_block", std::move(begun)}}, out);
}

void MessagesReply::part_grew(const std::string& text, std::string& out) {
    switch (parts_.back().kind) {
        case Part::Kind::reasoning:
            if (!answer_.omits_thinking) delta("thinking_delta", "thinking", text, out);
            break;
        case Part::Kind::content:
            delta("text_delta", "text", text, out);
            break;
        case Part::Kind::call:
            delta("input_json_delta", "partial_json", text, out);
            break;
    }
}

void MessagesReply::part_ended(std::string& out) {
    if (parts_.back().kind == Part::Kind::reasoning)
        delta("signature_delta", "signature", options_.id, out);
    event("content_block_stop", {{"index", parts_.size() - 1}}, out);
}

void MessagesReply::end(std::string& out) {
    close_part(out);
    if (!options_.stream) {
        OrderedJson message = envelope();
        for (const Part& part : parts_) message["content"].push_back(block(part));
        message["stop_reason"] = stop_reason();
        message["stop_sequence"] = stop_sequence();
        message["usage"] = usage();
        out += json_text(message);
        return;
    }
    event("message_delta",
          {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
           {"usage", usage()}},
          out);
    event("message_stop", OrderedJson::object(), out);
}

std::string MessagesReply::failed(const ApiError& error) {
    return sse_event("error", messages_error_json(error));
}

// Clients expect no event before message_start.
std::string MessagesReply::ping() const {
    return started_ ? sse_event("ping", R"({"type": "ping"})") : kSsePing;
}

}  // namespace espalier::server
