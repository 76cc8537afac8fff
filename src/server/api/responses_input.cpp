// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/conversation.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

constexpr const char* kMessageParts[] = {"input_text", "output_text"};
constexpr const char* kReasoningParts[] = {"reasoning_text"};

// Items of these types alone; what else they have is not read.
Json input_schema() {
    const Json text = {{"type", "string"}};
    const auto words = [](const std::vector<std::string>& list) -> Json {
        return {{"enum", list}};
    };
    const auto object = [](Json properties, std::vector<std::string> required) -> Json {
        return {{"type", "object"},
                {"properties", std::move(properties)},
                {"required", std::move(required)}};
    };
    const auto parts = [&](std::span<const char* const> types) -> Json {
        const Json part = object({{"type", words({types.begin(), types.end()})}, {"text", text}},
                                 {"type", "text"});
        return {{"anyOf", {text, {{"type", "array"}, {"items", part}}}}};
    };
    const Json message = object({{"type", words({"message"})},
                                 {"role", words({"user", "assistant", "system", "developer"})},
                                 {"content", parts(kMessageParts)}},
                                {"role", "content"});
    const Json call = object({{"type", words({"function_call"})},
                              {"call_id", text},
                              {"name", text},
                              {"arguments", text}},
                             {"type", "call_id", "name", "arguments"});
    const Json output = object({{"type", words({"function_call_output"})},
                                {"call_id", text},
                                {"output", parts(kMessageParts)}},
                               {"type", "call_id", "output"});
    const Json reasoning =
        object({{"type", words({"reasoning"})}, {"content", parts(kReasoningParts)}}, {"type"});
    const Json items = {{"type", "array"},
                        {"items", {{"anyOf", {message, call, output, reasoning}}}},
                        {"minItems", 1}};
    return {{"anyOf", {text, items}}};
}

class InputReader {
  public:
    explicit InputReader(Fields& fields) : fields_(fields) {}

    Json read() {
        std::string instructions;
        fields_.read("instructions", instructions);
        if (!instructions.empty()) chat_.system(instructions);
        fields_.require("input");
        if (fields_.describes()) fields_.describe("input", input_schema());
        const Json* given = fields_.find("input");
        if (given == nullptr) return chat_.take();
        if (given->is_string()) {
            chat_.user(given->get<std::string>());
        } else if (!given->is_array() || given->empty()) {
            fields_.fail_at("input", fmt::format("a string or a list of items is expected, not {}",
                                                 given->empty() ? "nothing" : json_kind(*given)));
        } else {
            for (std::size_t i = 0; i < given->size() && fields_.ok(); ++i)
                read_item((*given)[i], fmt::format("input[{}]", i));
            if (fields_.ok() && chat_.ends_with_assistant())
                fields_.fail_at(fmt::format("input[{}]", given->size() - 1),
                                "the last item is the assistant's; a message or an output of a "
                                "call is expected");
        }
        return chat_.take();
    }

  private:
    void read_item(const Json& given, const std::string& path) {
        Fields item(given, path);
        std::string type = "message";
        item.read("type", type);
        if (type == "message")
            read_message(item);
        else if (type == "function_call")
            read_call(item);
        else if (type == "function_call_output")
            read_output(item);
        else if (type == "reasoning")
            read_reasoning(item);
        else if (type == "item_reference")
            item.fail_at("type", "'item_reference': this server keeps no items; send the item",
                         ErrorKind::unsupported);
        else
            item.fail_at("type",
                         fmt::format("'{}' is not supported by this server", type.substr(0, 80)),
                         ErrorKind::unsupported);
        fields_.adopt(item);
    }

    // A string, or parts of these types, which are joined by line ends. Nothing: a fault.
    static std::optional<std::string> text_of_parts(Fields& item, const char* name,
                                                    std::span<const char* const> types) {
        const Json* content = item.find(name);
        if (content == nullptr) {
            item.fail_at(name, "is missing");
            return std::nullopt;
        }
        if (content->is_string()) return content->get<std::string>();
        if (!content->is_array()) {
            item.fail_at(name, fmt::format("a string or a list of parts is expected, not {}",
                                           json_kind(*content)));
            return std::nullopt;
        }
        std::string text;
        for (std::size_t i = 0; i < content->size() && item.ok(); ++i) {
            Fields part((*content)[i], fmt::format("{}[{}]", item.path_of(name), i));
            if (i > 0) text += '\n';
            text += text_of_part(part, types);
            item.adopt(part);
        }
        if (!item.ok()) return std::nullopt;
        return text;
    }

    static std::string text_of_part(Fields& part, std::span<const char* const> types) {
        std::string type, text;
        part.read("type", type);
        const char* name = type == "refusal" ? "refusal" : "text";
        if (type == "input_image")
            part.fail_at("type", "the model takes no images", ErrorKind::unsupported);
        else if (type != "refusal" &&
                 std::ranges::find(types, std::string_view(type)) == types.end())
            part.fail_at("type", fmt::format("'{}' is not supported here", type.substr(0, 80)),
                         ErrorKind::unsupported);
        part.require(name);
        part.read(name, text);
        return text;
    }

    void read_message(Fields& item) {
        std::string role;
        item.require("role");
        item.read("role", role);
        const auto text = text_of_parts(item, "content", kMessageParts);
        if (!text) return;
        if (role == "assistant") return chat_.assistant(*text);
        chat_.end_turn();
        if (role == "user")
            chat_.user(*text);
        else if (role == "system" || role == "developer")
            chat_.system(*text);
        else
            item.fail_at("role", "one of user, assistant, system, developer is expected");
    }

    void read_call(Fields& item) {
        std::string id, name, arguments;
        for (const char* field : {"call_id", "name", "arguments"}) item.require(field);
        item.read("call_id", id);
        item.read("name", name);
        item.read("arguments", arguments);
        if (item.ok()) chat_.call(id, name, arguments);
    }

    void read_output(Fields& item) {
        std::string id;
        item.require("call_id");
        item.read("call_id", id);
        if (const auto text = text_of_parts(item, "output", kMessageParts))
            chat_.tool_result(id, *text);
    }

    // A summary is not what was thought.
    void read_reasoning(Fields& item) {
        if (!item.has("content")) return;
        if (const auto text = text_of_parts(item, "content", kReasoningParts))
            chat_.reasoning(*text);
    }

    Fields& fields_;
    Conversation chat_;
};

}  // namespace

Json read_responses_input(Fields& fields) { return InputReader(fields).read(); }

}  // namespace espalier::server
