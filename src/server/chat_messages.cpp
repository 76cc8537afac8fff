// SPDX-License-Identifier: Apache-2.0
#include "server/chat_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "server/final_message.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
// Names that a template takes from the server; a request must not set them
// (CVE-2025-62426: chat_template_kwargs that replaced the template itself).
constexpr std::string_view kServersOwn[] = {"messages",      "add_generation_prompt",
                                            "bos_token",     "eos_token",
                                            "chat_template", "tools",
                                            "documents",     "tokenize",
                                            "strftime_now"};

// One call of an assistant's message, of an earlier answer.
void read_call(const Json& given, const std::string& path, Fields& fields, Json& calls) {
    Fields call(given, path);
    std::string id, type = "function", name, arguments;
    if (!call.has("id")) call.fail_at("id", "is missing");
    call.read("id", id);
    call.read("type", type);
    if (type != "function")
        call.fail_at("type", "only function is supported", ErrorKind::unsupported);
    const Json* function = call.find("function");
    if (function == nullptr) call.fail_at("function", "is missing");
    fields.adopt(call);
    if (!call.ok()) return;
    Fields inner(*function, call.path_of("function"));
    for (const char* field : {"name", "arguments"})
        if (!inner.has(field)) inner.fail_at(field, "is missing");
    inner.read("name", name);
    inner.read("arguments", arguments);
    fields.adopt(inner);
    calls.push_back(
        {{"id", id}, {"type", type}, {"function", {{"name", name}, {"arguments", arguments}}}});
}

// Nothing: the message has none.
std::optional<Json> read_calls(const Json& message, const Json& role, Fields& fields,
                               const std::string& path) {
    const Json given = message.value("tool_calls", Json());
    if (given.is_null() || (given.is_array() && given.empty())) return std::nullopt;
    const std::string place = path + ".tool_calls";
    Json calls = Json::array();
    if (role != "assistant")
        fields.fail_at(place, "is of assistants");
    else if (!given.is_array())
        fields.fail_at(place, fmt::format("a list is expected, not {}", json_kind(given)));
    else
        for (std::size_t i = 0; i < given.size() && fields.ok(); ++i)
            read_call(given[i], fmt::format("{}[{}]", place, i), fields, calls);
    return calls;
}

// The id of the call that a tool's message answers.
void read_tool_call_id(const Json& given, Fields& fields, const std::string& path, Json& message) {
    const Json id = given.value("tool_call_id", Json());
    if (!id.is_string())
        return fields.fail_at(path + ".tool_call_id",
                              fmt::format("a string is expected, not {}", json_kind(id)));
    message["tool_call_id"] = id;
}

std::optional<Json> one_message(const Json& given, Fields& fields, const std::string& path) {
    if (!given.is_object()) {
        fields.fail_at(path, fmt::format("an object is expected, not {}", json_kind(given)));
        return std::nullopt;
    }
    const Json role = given.value("role", Json());
    if (!role.is_string() ||
        std::ranges::find(kRoles, role.get_ref<const std::string&>()) == std::end(kRoles)) {
        fields.fail_at(path + ".role",
                       "one of system, developer, user, assistant, tool is expected",
                       ErrorKind::unsupported);
        return std::nullopt;
    }
    for (const char* name : {"function_call", "audio"})
        if (const Json value = given.value(name, Json()); !value.is_null() && !value.empty()) {
            fields.fail_at(path + "." + name, "is not supported by this server",
                           ErrorKind::unsupported);
            return std::nullopt;
        }
    std::optional<Json> calls = read_calls(given, role, fields, path);
    if (!fields.ok()) return std::nullopt;
    // developer: OpenAI's newer name for the same part.
    Json message = {{"role", role == "developer" ? Json("system") : role}, {"content", nullptr}};
    // Beside calls, templates ask whether the content is none.
    const Json content = given.value("content", Json());
    if (role == "assistant" && !calls && content.is_null()) {
        message["content"] = "";
    } else if (!calls || !(content.is_null() || content == "")) {
        const auto text = text_of_content(content, fields, path + ".content");
        if (!text) return std::nullopt;
        message["content"] = *text;
    }
    if (calls) message["tool_calls"] = std::move(*calls);
    if (role == "tool") read_tool_call_id(given, fields, path, message);
    // vLLM's name for the same.
    if (const Json value = given.value("reasoning", Json()); value.is_string())
        message["reasoning_content"] = value;
    for (const char* name : {"name", "reasoning_content"})
        if (const Json value = given.value(name, Json()); value.is_string()) message[name] = value;
    return message;
}

Json call_schema() {
    const Json text = {{"type", "string"}};
    const Json function = {{"type", "object"},
                           {"properties", {{"name", text}, {"arguments", text}}},
                           {"required", {"name", "arguments"}}};
    return {
        {"type", "object"},
        {"properties", {{"id", text}, {"type", {{"enum", {"function"}}}}, {"function", function}}},
        {"required", {"id", "function"}}};
}

// One schema for each kind of message: what must be there differs.
Json message_schema(const std::vector<std::string>& roles, const std::vector<std::string>& required,
                    Json more = Json::object()) {
    more["role"] = {{"enum", roles}};
    more["name"] = {{"type", "string"}};
    if (!more.contains("content")) more["content"] = content_schema();
    return {{"type", "object"}, {"properties", std::move(more)}, {"required", required}};
}

void describe_messages(Fields& fields) {
    const Json text = {{"type", "string"}};
    Json maybe = content_schema();
    maybe["anyOf"].push_back({{"type", "null"}});
    const Json assistant = {{"content", maybe},
                            {"reasoning", text},
                            {"reasoning_content", text},
                            {"tool_calls", {{"type", "array"}, {"items", call_schema()}}}};
    const Json message = {{"anyOf",
                           {message_schema({"system", "developer", "user"}, {"role", "content"}),
                            message_schema({"assistant"}, {"role"}, assistant),
                            message_schema({"tool"}, {"role", "content", "tool_call_id"},
                                           {{"tool_call_id", text}})}}};
    fields.describe("messages", {{"type", "array"}, {"items", message}, {"minItems", 1}});
}

Json read_messages(Fields& fields) {
    fields.require("messages");
    if (fields.describes()) describe_messages(fields);
    const Json* given = fields.find("messages");
    Json messages = Json::array();
    if (given == nullptr) return messages;
    if (!given->is_array() || given->empty()) {
        fields.fail_at("messages", fmt::format("a list of messages is expected, not {}",
                                               given->empty() ? "nothing" : json_kind(*given)));
    } else {
        for (std::size_t i = 0; i < given->size(); ++i) {
            auto message = one_message((*given)[i], fields, fmt::format("messages[{}]", i));
            if (!message) break;
            messages.push_back(std::move(*message));
        }
    }
    return messages;
}

void read_continuation(Fields& fields, ChatInput& chat) {
    const bool prompt_given = fields.has("add_generation_prompt");
    fields.read("add_generation_prompt", chat.add_generation_prompt);
    fields.read("continue_final_message", chat.continues_final);
    if (!chat.continues_final || !fields.ok()) return;
    if (prompt_given && chat.add_generation_prompt)
        return fields.fail_at("continue_final_message", "goes with no add_generation_prompt");
    chat.add_generation_prompt = false;
    if (const auto can = check_continued(chat.messages); !can)
        fields.fail_at("continue_final_message", can.error().message, can.error().kind);
}

}  // namespace

Json content_schema() {
    const Json part = {
        {"type", "object"},
        {"properties", {{"type", {{"enum", {"text"}}}}, {"text", {{"type", "string"}}}}},
        {"required", {"type", "text"}}};
    return {
        {"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", part}, {"minItems", 1}}}}};
}

std::optional<std::string> text_of_content(const Json& content, Fields& fields,
                                           const std::string& path) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array() || content.empty()) {
        fields.fail_at(path, fmt::format("a string or a list of parts is expected, not {}",
                                         content.empty() ? "nothing" : json_kind(content)));
        return std::nullopt;
    }
    std::string text;
    for (std::size_t i = 0; i < content.size(); ++i) {
        const Json& part = content[i];
        const std::string place = fmt::format("{}[{}]", path, i);
        if (part.is_object() && part.contains("type") && part["type"].is_string() &&
            part["type"] != "text") {
            fields.fail_at(place,
                           fmt::format("a part of type '{}': this model takes text alone, no "
                                       "images, sound or files",
                                       part["type"].get<std::string>().substr(0, 40)),
                           ErrorKind::unsupported);
            return std::nullopt;
        }
        if (!part.is_object() || part.value("type", Json()) != "text" ||
            !part.value("text", Json()).is_string()) {
            fields.fail_at(place, "a part {\"type\": \"text\", \"text\": …} is expected",
                           ErrorKind::unsupported);
            return std::nullopt;
        }
        if (i > 0) text += '\n';
        text += part["text"].get_ref<const std::string&>();
    }
    return text;
}

ChatInput read_chat(Fields& fields, const nlohmann::ordered_json& ordered) {
    ChatInput chat;
    chat.messages = read_messages(fields);
    chat.tools = read_tools(fields, ordered);
    fields.read("reasoning_effort", chat.reasoning_effort);
    read_continuation(fields, chat);
    if (fields.describes()) fields.describe("chat_template_kwargs", {{"type", "object"}});
    const Json* arguments = fields.find("chat_template_kwargs");
    if (arguments == nullptr) return chat;
    if (!arguments->is_object()) {
        fields.fail_at("chat_template_kwargs",
                       fmt::format("an object is expected, not {}", json_kind(*arguments)));
        return chat;
    }
    for (const std::string_view name : kServersOwn)
        if (arguments->contains(name))
            fields.fail_at(fmt::format("chat_template_kwargs.{}", name), "is the server's own");
    chat.arguments = *arguments;
    return chat;
}

Expected<void> parse_call_arguments(nlohmann::ordered_json& messages) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
        if (!messages[i].contains("tool_calls")) continue;
        nlohmann::ordered_json& calls = messages[i]["tool_calls"];
        for (std::size_t j = 0; j < calls.size(); ++j) {
            nlohmann::ordered_json& arguments = calls[j]["function"]["arguments"];
            const std::string field =
                fmt::format("messages[{}].tool_calls[{}].function.arguments", i, j);
            const auto& text = arguments.get_ref<const std::string&>();
            nlohmann::ordered_json parsed;
            if (check_json_depth(text, field, {}))
                parsed = nlohmann::ordered_json::parse(text, nullptr, false);
            if (!parsed.is_object())
                return fail_field(ErrorKind::invalid, field,
                                  "a JSON object is expected: this model's template writes its "
                                  "members one by one");
            arguments = std::move(parsed);
        }
    }
    return {};
}

}  // namespace espalier::server
