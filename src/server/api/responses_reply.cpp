// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses_reply.hpp"

#include <fmt/format.h>

#include <utility>

namespace espalier::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson reasoning_part(const std::string& text) {
    return {{"type", "reasoning_text"}, {"text", text}};
}

OrderedJson text_part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", OrderedJson::array()},
            {"logprobs", OrderedJson::array()}};
}

}  // namespace

ResponsesReply::ResponsesReply(PartsReplyOptions options, OrderedJson repeated)
    : PartsReply(std::move(options)), repeated_(std::move(repeated)) {}

// ---- what both forms have -----------------------------------------------------------------------

std::string ResponsesReply::item_id(std::size_t index) const {
    const Part::Kind kind = parts_[index].kind;
    const char* prefix = kind == Part::Kind::reasoning ? "rs"
                         : kind == Part::Kind::content ? "msg"
                                                       : "fc";
    return fmt::format("{}_{}{:02x}", prefix, own_digits(), index);
}

OrderedJson ResponsesReply::item(std::size_t index, const char* status) const {
    const Part& part = parts_[index];
    switch (part.kind) {
        case Part::Kind::reasoning:
            return {{"id", item_id(index)},
                    {"type", "reasoning"},
                    {"summary", OrderedJson::array()},
                    {"content", OrderedJson::array({reasoning_part(part.text)})},
                    {"encrypted_content", nullptr},
                    {"status", status}};
        case Part::Kind::content:
            return {{"id", item_id(index)},
                    {"type", "message"},
                    {"role", "assistant"},
                    {"content", OrderedJson::array({text_part(part.text)})},
                    {"status", status}};
        case Part::Kind::call:
            return {{"id", item_id(index)}, {"type", "function_call"}, {"call_id", part.id},
                    {"name", part.name},    {"arguments", part.text},  {"status", status}};
    }
    return nullptr;
}

OrderedJson ResponsesReply::empty_item(std::size_t index) const {
    OrderedJson made = item(index, "in_progress");
    if (made.contains("content")) made["content"] = OrderedJson::array();
    return made;
}

OrderedJson ResponsesReply::usage() const {
    return {
        {"input_tokens", usage_.prompt_tokens},
        {"input_tokens_details", {{"cached_tokens", cached_tokens_}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage_.completion_tokens},
        {"output_tokens_details", {{"reasoning_tokens", usage_.reasoning_tokens}}},
        {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}};
}

// status: in_progress has neither output nor usage yet.
OrderedJson ResponsesReply::response(const char* status) const {
    const bool is_open = status == std::string_view("in_progress");
    const bool is_incomplete = status == std::string_view("incomplete");
    const bool is_cut_short = status != std::string_view("completed");
    OrderedJson output = OrderedJson::array();
    for (std::size_t i = 0; !is_open && i < parts_.size(); ++i)
        output.push_back(
            item(i, i + 1 == parts_.size() && is_cut_short ? "incomplete" : "completed"));
    OrderedJson made = {
        {"id", options_.id},
        {"object", "response"},
        {"created_at", options_.created},
        {"status", status},
        {"background", false},
        {"error", error_},
        {"incomplete_details",
         is_incomplete ? OrderedJson({{"reason", "max_output_tokens"}}) : OrderedJson()},
        {"model", options_.model},
        {"output", std::move(output)}};
    made.update(repeated_);
    made["usage"] = is_open ? OrderedJson() : usage();
    return made;
}

// ---- a stream -----------------------------------------------------------------------------------

void ResponsesReply::event(const char* type, OrderedJson body, std::string& out) {
    OrderedJson whole = {{"type", type}, {"sequence_number", events_++}};
    whole.update(body);
    out += sse_event(type, json_text(whole));
}

void ResponsesReply::item_event(const char* type, OrderedJson body, bool has_content,
                                std::string& out) {
    const std::size_t index = parts_.size() - 1;
    OrderedJson whole = {{"item_id", item_id(index)}, {"output_index", index}};
    if (has_content) whole["content_index"] = 0;
    whole.update(body);
    event(type, std::move(whole), out);
}

void ResponsesReply::response_event(const char* type, const char* status, std::string& out) {
    event(type, {{"response", response(status)}}, out);
}

void ResponsesReply::begin(std::string& out) {
    if (!options_.stream) return;
    response_event("response.created", "in_progress", out);
    response_event("response.in_progress", "in_progress", out);
}

void ResponsesReply::part_began(std::string& out) {
    const std::size_t index = parts_.size() - 1;
    event("response.output_item.added", {{"output_index", index}, {"item", empty_item(index)}},
          out);
    if (parts_.back().kind == Part::Kind::call) return;
    const bool thinks = parts_.back().kind == Part::Kind::reasoning;
    item_event("response.content_part.added",
               {{"part", thinks ? reasoning_part("") : text_part("")}}, true, out);
}

void ResponsesReply::part_grew(const std::string& text, std::string& out) {
    switch (parts_.back().kind) {
        case Part::Kind::reasoning:
            item_event("response.reasoning_text.delta", {{"delta", text}}, true, out);
            break;
        case Part::Kind::content:
            item_event("response.output_text.delta",
                       {{"delta", text}, {"logprobs", OrderedJson::array()}}, true, out);
            break;
        case Part::Kind::call:
            item_event("response.function_call_arguments.delta", {{"delta", text}}, false, out);
            break;
    }
}

void ResponsesReply::part_ended(std::string& out) {
    const std::size_t index = parts_.size() - 1;
    const Part& part = parts_.back();
    switch (part.kind) {
        case Part::Kind::reasoning:
            item_event("response.reasoning_text.done", {{"text", part.text}}, true, out);
            item_event("response.content_part.done", {{"part", reasoning_part(part.text)}}, true,
                       out);
            break;
        case Part::Kind::content:
            item_event("response.output_text.done",
                       {{"text", part.text}, {"logprobs", OrderedJson::array()}}, true, out);
            item_event("response.content_part.done", {{"part", text_part(part.text)}}, true, out);
            break;
        case Part::Kind::call:
            item_event("response.function_call_arguments.done",
                       {{"name", part.name}, {"arguments", part.text}}, false, out);
            break;
    }
    const char* status = ending_ && is_cut() ? "incomplete" : "completed";
    event("response.output_item.done", {{"output_index", index}, {"item", item(index, status)}},
          out);
}

void ResponsesReply::end(std::string& out) {
    ending_ = true;
    close_part(out);
    const char* status = is_cut() ? "incomplete" : "completed";
    if (!options_.stream)
        out += json_text(response(status));
    else
        response_event(is_cut() ? "response.incomplete" : "response.completed", status, out);
}

std::string ResponsesReply::failed(const ApiError& error) {
    error_ = {{"code", "server_error"}, {"message", shortened_message(error.message)}};
    std::string out;
    response_event("response.failed", "failed", out);
    return out;
}

}  // namespace espalier::server
