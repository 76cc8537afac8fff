// SPDX-License-Identifier: Apache-2.0
#include "server/api/conversation.hpp"

#include <utility>

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

void append_spaced(const OrderedJson& value, std::string& out) {
    if (!value.is_structured()) {
        out += value.dump();
        return;
    }
    out += value.is_object() ? '{' : '[';
    bool is_first = true;
    for (const auto& [key, inner] : value.items()) {
        if (!std::exchange(is_first, false)) out += ", ";
        if (value.is_object()) out += OrderedJson(key).dump() + ": ";
        append_spaced(inner, out);
    }
    out += value.is_object() ? '}' : ']';
}

}  // namespace

std::string spaced_json(const OrderedJson& value) {
    std::string out;
    append_spaced(value, out);
    return out;
}

Json& Conversation::turn_of(const char* role) {
    if (!turn_is_open_ || messages_.back()["role"] != role)
        messages_.push_back({{"role", role}, {"content", nullptr}});
    turn_is_open_ = true;
    return messages_.back();
}

void Conversation::system(const std::string& text) {
    end_turn();
    messages_.push_back({{"role", "system"}, {"content", text}});
}

void Conversation::user(const std::string& text) {
    Json& content = turn_of("user")["content"];
    content = content.is_null() ? text : content.get_ref<const std::string&>() + "\n" + text;
}

void Conversation::assistant(const std::string& text) {
    Json& content = turn_of("assistant")["content"];
    content = content.is_null() ? text : content.get_ref<const std::string&>() + text;
}

void Conversation::reasoning(const std::string& text) {
    if (text.empty()) return;
    Json& turn = turn_of("assistant");
    turn["reasoning_content"] = turn.value("reasoning_content", std::string()) + text;
}

void Conversation::call(const std::string& id, const std::string& name,
                        const std::string& arguments) {
    turn_of("assistant")["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", arguments}}}});
}

void Conversation::tool_result(const std::string& id, const std::string& text) {
    end_turn();
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
}

bool Conversation::ends_with_assistant() const {
    return !messages_.empty() && messages_.back()["role"] == "assistant";
}

// Templates ask of a message with calls whether its content is none; of others it is a text.
Json Conversation::take() {
    for (Json& message : messages_) {
        if (message["content"].is_null() && !message.contains("tool_calls"))
            message["content"] = "";
        if (message["content"] == "" && message.contains("tool_calls"))
            message["content"] = nullptr;
    }
    return std::exchange(messages_, Json::array());
}

}  // namespace espalier::server
