// SPDX-License-Identifier: Apache-2.0
#include "server/api/messages_content.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/billing_header.hpp"
#include "server/api/conversation.hpp"
#include "server/body.hpp"
#include "server/final_message.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

class ContentReader {
  public:
    ContentReader(Fields& fields, const OrderedJson& ordered, bool drops_billing_header)
        : fields_(fields), ordered_(ordered), drops_billing_header_(drops_billing_header) {}

    void read(ChatInput& chat) {
        read_system();
        fields_.require("messages");
        if (fields_.describes()) return describe();
        const Json* given = fields_.find("messages");
        if (given == nullptr) return;
        if (!given->is_array() || given->empty()) {
            fields_.fail_at("messages",
                            fmt::format("a list of messages is expected, not {}",
                                        given->empty() ? "nothing" : json_kind(*given)));
        } else {
            const OrderedJson ordered = ordered_field(ordered_, "messages");
            for (std::size_t i = 0; i < given->size() && fields_.ok(); ++i)
                read_message((*given)[i], ordered[i], fmt::format("messages[{}]", i));
        }
        chat.messages = chat_.take();
        if (fields_.ok()) read_prefill(chat);
    }

  private:
    void describe() {
        const Json text = {{"type", "string"}};
        const auto block = [&](const char* type, Json properties, std::vector<std::string> needed) {
            properties["type"] = {{"enum", {type}}};
            needed.emplace_back("type");
            return Json{
                {"type", "object"}, {"properties", std::move(properties)}, {"required", needed}};
        };
        const auto list = [&](std::vector<Json> blocks) -> Json {
            const Json items = {{"anyOf", std::move(blocks)}};
            return {{"anyOf", {text, {{"type", "array"}, {"items", items}}}}};
        };
        const Json said = block("text", {{"text", text}}, {"text"});
        const Json content =
            list({said, block("thinking", {{"thinking", text}}, {"thinking"}),
                  block("tool_use", {{"id", text}, {"name", text}, {"input", {{"type", "object"}}}},
                        {"id", "name", "input"}),
                  block("tool_result", {{"tool_use_id", text}, {"content", list({said})}},
                        {"tool_use_id"})});
        const Json message = {
            {"type", "object"},
            {"properties",
             {{"role", {{"enum", {"user", "assistant", "system"}}}}, {"content", content}}},
            {"required", {"role", "content"}}};
        fields_.describe("system", list({said}));
        fields_.describe("messages", {{"type", "array"}, {"items", message}, {"minItems", 1}});
    }

    void fail(const std::string& path, std::string sentence, ErrorKind kind = ErrorKind::invalid) {
        fields_.fail_at(path, std::move(sentence), kind);
    }

    // A last message of the assistant without anything in it is as good as none.
    void read_prefill(ChatInput& chat) {
        if (chat.messages.back()["role"] != "assistant") return;
        if (chat.messages.back() == Json({{"role", "assistant"}, {"content", ""}})) {
            chat.messages.erase(chat.messages.size() - 1);
            if (chat.messages.empty()) fail("messages", "have nothing to answer");
            return;
        }
        if (const auto can = check_continued(chat.messages); !can)
            return fail("messages", can.error().message, can.error().kind);
        chat.continues_final = true;
        chat.add_generation_prompt = false;
    }

    // A string, or blocks of type text, which are joined by line ends. Nothing: a fault.
    std::optional<std::string> read_text(const Json& content, const std::string& path) {
        if (content.is_string()) return content.get<std::string>();
        if (!content.is_array()) {
            fail(path, fmt::format("a string or a list of blocks is expected, not {}",
                                   json_kind(content)));
            return std::nullopt;
        }
        std::string text;
        for (std::size_t i = 0; i < content.size(); ++i) {
            const std::string place = fmt::format("{}[{}]", path, i);
            if (type_of(content[i], place) != "text") {
                refuse_block(content[i], place);
                return std::nullopt;
            }
            const auto one = string_of(content[i], "text", place);
            if (!one) return std::nullopt;
            if (i > 0) text += '\n';
            text += *one;
        }
        return text;
    }

    // Empty: a fault.
    std::string type_of(const Json& block, const std::string& path) {
        if (!block.is_object()) {
            fail(path, fmt::format("an object is expected, not {}", json_kind(block)));
            return {};
        }
        return string_of(block, "type", path).value_or(std::string());
    }

    std::optional<std::string> string_of(const Json& block, const char* name,
                                         const std::string& path) {
        const auto found = block.find(name);
        if (found != block.end() && found->is_string()) return found->get<std::string>();
        fail(path + "." + name,
             found == block.end() ? "is missing"
                                  : fmt::format("a string is expected, not {}", json_kind(*found)));
        return std::nullopt;
    }

    void refuse_block(const Json& block, const std::string& path) {
        const std::string type = type_of(block, path);
        if (type == "image")
            fail(path, "the model takes no images", ErrorKind::unsupported);
        else
            fail(path,
                 fmt::format("a block of type '{}' is not supported here", type.substr(0, 80)),
                 ErrorKind::unsupported);
    }

    // The header is a block of its own or the first line of the first one.
    void read_system() {
        const Json* given = fields_.find("system");
        if (given == nullptr) return;
        const auto text = read_text(*given, "system");
        if (!text) return;
        std::string_view kept = *text;
        if (drops_billing_header_) kept.remove_prefix(billing_header_bytes(kept));
        if (!kept.empty()) chat_.system(std::string(kept));
    }

    void read_message(const Json& given, const OrderedJson& ordered, const std::string& path) {
        if (!given.is_object())
            return fail(path, fmt::format("an object is expected, not {}", json_kind(given)));
        const auto role = string_of(given, "role", path);
        if (!role) return;
        if (*role != "user" && *role != "assistant" && *role != "system")
            return fail(path + ".role", "one of user, assistant, system is expected");
        const auto content = given.find("content");
        if (content == given.end()) return fail(path + ".content", "is missing");
        if (*role == "system") {
            if (const auto text = read_text(*content, path + ".content")) chat_.system(*text);
            return;
        }
        const bool is_user = *role == "user";
        if (content->is_string()) {
            const auto& text = content->get_ref<const std::string&>();
            return is_user ? chat_.user(text) : chat_.assistant(text);
        }
        if (!content->is_array())
            return fail(path + ".content",
                        fmt::format("a string or a list of blocks is expected, not {}",
                                    json_kind(*content)));
        if (content->empty() && is_user) return fail(path + ".content", "is empty");
        if (!is_user) chat_.assistant("");  // a turn, whatever its blocks are
        for (std::size_t i = 0; i < content->size() && fields_.ok(); ++i) {
            const std::string place = fmt::format("{}.content[{}]", path, i);
            if (is_user)
                read_user_block((*content)[i], place);
            else
                read_assistant_block((*content)[i], ordered["content"][i], place);
        }
    }

    void read_user_block(const Json& block, const std::string& path) {
        const std::string type = type_of(block, path);
        if (type == "text") {
            if (const auto text = string_of(block, "text", path)) chat_.user(*text);
        } else if (type == "tool_result") {
            const auto id = string_of(block, "tool_use_id", path);
            if (!id) return;
            const auto content = block.find("content");
            const auto text = content == block.end() || content->is_null()
                                  ? std::optional<std::string>(std::in_place)
                                  : read_text(*content, path + ".content");
            if (text) chat_.tool_result(*id, *text);
        } else if (!type.empty()) {
            refuse_block(block, path);
        }
    }

    void read_assistant_block(const Json& block, const OrderedJson& ordered,
                              const std::string& path) {
        const std::string type = type_of(block, path);
        if (type == "text") {
            if (const auto text = string_of(block, "text", path)) chat_.assistant(*text);
        } else if (type == "thinking") {
            if (const auto text = string_of(block, "thinking", path)) chat_.reasoning(*text);
        } else if (type == "tool_use") {
            const auto id = string_of(block, "id", path);
            const auto name = string_of(block, "name", path);
            if (!id || !name) return;
            const auto input = ordered.find("input");
            if (input == ordered.end() || !input->is_object())
                return fail(path + ".input", "an object is expected");
            chat_.call(*id, *name, spaced_json(*input));
        } else if (type != "redacted_thinking" && !type.empty()) {  // nothing that can be read
            refuse_block(block, path);
        }
    }

    Fields& fields_;
    const OrderedJson& ordered_;
    const bool drops_billing_header_;
    Conversation chat_;
};

}  // namespace

void read_messages_content(Fields& fields, const OrderedJson& ordered, bool drops_billing_header,
                           ChatInput& chat) {
    ContentReader(fields, ordered, drops_billing_header).read(chat);
}

}  // namespace espalier::server
