// SPDX-License-Identifier: Apache-2.0
#include "server/tool_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "output/parser.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Choice = ToolRequest::Choice;

constexpr const char* kFunctionTypes[] = {"function"};

// Names stand between markers in texts and grammars, so they have no character that either knows.
bool is_name(std::string_view name) {
    const auto may_stand = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-' || c == '.';
    };
    return !name.empty() && name.size() <= output::kMaxNameBytes &&
           std::ranges::all_of(name, may_stand);
}

void read_function(Fields& tool, const OrderedJson& ordered, ToolRequest& tools) {
    std::string type;
    tool.require("type");
    tool.read_word("type", type, kFunctionTypes, ErrorKind::unsupported);
    tool.require("function");
    auto function = tool.object("function");
    if (!function) return;
    output::Function made;
    read_signature(*function, "parameters", tools, made);
    const Json* parameters = function->find("parameters");
    tool.adopt(*function);
    if (!tool.ok() || tool.describes()) return;
    // Templates put these together without asking whether they are there.
    OrderedJson declared = ordered;
    OrderedJson& body = declared["function"];
    body.erase("strict");
    if (body.value("description", OrderedJson()).is_null()) body["description"] = "";
    if (parameters != nullptr)
        made.parameters = body["parameters"];
    else
        body["parameters"] = {{"type", "object"}, {"properties", OrderedJson::object()}};
    tools.declared.push_back(std::move(declared));
    tools.functions.push_back(std::move(made));
}

Json choice_schema() {
    const Json named = {{"type", "object"},
                        {"properties", {{"name", {{"type", "string"}}}}},
                        {"required", {"name"}}};
    const Json function = {
        {"type", "object"},
        {"properties", {{"type", {{"enum", {"function"}}}}, {"function", named}}},
        {"required", {"type", "function"}}};
    return {{"anyOf", {{{"enum", {"auto", "none", "required"}}}, function}}};
}

void read_choice(Fields& fields, ToolRequest& tools) {
    if (fields.describes()) fields.describe("tool_choice", choice_schema());
    const Json* given = fields.find("tool_choice");
    if (given == nullptr) return;
    if (given->is_string()) {
        const auto& word = given->get_ref<const std::string&>();
        if (word == "none")
            tools.choice = Choice::none;
        else if (word == "required")
            tools.choice = Choice::required;
        else if (word != "auto")
            return fields.fail_at("tool_choice",
                                  "one of auto, none, required, or a function, is expected");
    } else {
        Fields named(*given, "tool_choice");
        std::string type, name;
        named.read("type", type);
        if (type != "function")
            named.fail_at("type", "only function is supported", ErrorKind::unsupported);
        const Json* function = named.find("function");
        if (function == nullptr) named.fail_at("function", "is missing");
        fields.adopt(named);
        if (!named.ok()) return;
        Fields inner(*function, "tool_choice.function");
        inner.read("name", name);
        const auto found = std::ranges::find(tools.functions, name, &output::Function::name);
        if (found == tools.functions.end())
            inner.fail_at("name", fmt::format("'{}' is not among the tools", name.substr(0, 80)));
        fields.adopt(inner);
        tools.choice = Choice::named;
        tools.named = static_cast<std::size_t>(found - tools.functions.begin());
    }
    if (tools.must_call() && tools.functions.empty()) fields.fail_at("tool_choice", "wants tools");
}

}  // namespace

void read_signature(Fields& function, const char* schema_name, const ToolRequest& tools,
                    output::Function& made) {
    std::string description;
    bool strict = false;
    function.require("name");
    function.read("name", made.name);
    function.read("description", description);
    function.read("strict", strict);
    if (function.has("strict")) made.strict = strict;
    if (!function.describes()) check_function_name(function, made.name, tools);
    if (function.describes()) {
        function.describe("name",
                          {{"pattern", "^[A-Za-z0-9_.-]+$"}, {"maxLength", output::kMaxNameBytes}});
        function.describe(schema_name, {{"type", "object"}});
    }
    const Json* schema = function.find(schema_name);
    if (schema != nullptr && !schema->is_object())
        function.fail_at(schema_name,
                         fmt::format("a JSON Schema is expected, not {}", json_kind(*schema)));
}

void check_function_name(Fields& function, const std::string& name, const ToolRequest& tools) {
    if (function.ok() && !is_name(name))
        function.fail_at("name", fmt::format("1 to {} of letters, digits, '_', '-' and '.' are "
                                             "expected",
                                             output::kMaxNameBytes));
    if (std::ranges::find(tools.functions, name, &output::Function::name) != tools.functions.end())
        function.fail_at("name", fmt::format("'{}' is declared twice", name));
}

ToolRequest read_tools(Fields& fields, const OrderedJson& ordered) {
    ToolRequest tools;
    fields.read("parallel_tool_calls", tools.parallel);
    read_declarations(fields, ordered, tools, read_function);
    if (fields.ok()) read_choice(fields, tools);
    return tools;
}

void read_declarations(Fields& fields, const OrderedJson& ordered, ToolRequest& tools,
                       DeclarationReader read) {
    OrderedJson declared = ordered_field(ordered, "tools");
    if (declared.is_null()) declared = OrderedJson::array({nullptr});
    const Json* given = fields.find("tools");
    if (given != nullptr && given->is_array() && !given->empty()) {
        tools.declared = OrderedJson::array();
        tools.bytes = static_cast<std::int64_t>(given->dump().size());
    }
    fields.each("tools", [&](Fields& tool, std::size_t i) { read(tool, declared[i], tools); });
}

Expected<void> check_tools(const ToolRequest& tools, const ToolLimits& limits) {
    const auto count = static_cast<std::int64_t>(tools.functions.size());
    if (count > limits.functions)
        return fail_field(ErrorKind::invalid, "tools", "{} functions, at most {}", count,
                          limits.functions);
    if (tools.bytes > limits.bytes)
        return fail_field(ErrorKind::invalid, "tools", "{} bytes, at most {}", tools.bytes,
                          limits.bytes);
    return {};
}

}  // namespace espalier::server
