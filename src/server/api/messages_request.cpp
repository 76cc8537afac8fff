// SPDX-License-Identifier: Apache-2.0
#include "server/api/messages_request.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <utility>

#include "server/api/function_tools.hpp"
#include "server/api/messages_content.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Choice = ToolRequest::Choice;

// Anthropic's, and without a meaning here. betas: headers that a client wrote into the body.
constexpr const char* kMessagesIgnored[] = {
    "metadata",    "service_tier",    "cache_control", "inference_geo",      "speed",
    "diagnostics", "user_profile_id", "workspace_id",  "context_management", "betas",
};

// Fields of what runs at Anthropic: refused, so that no client waits for it.
constexpr const char* kMessagesRefused[] = {"container", "mcp_servers"};

constexpr std::int64_t kMessagesMost = std::numeric_limits<std::int32_t>::max();

void read_messages_tool(const Json& given, const OrderedJson& ordered, const std::string& path,
                        Fields& fields, ToolRequest& tools) {
    Fields tool(given, path);
    std::string type = "custom";
    tool.read("type", type);
    if (tool.ok() && type != "custom")
        tool.fail_at("type",
                     fmt::format("'{}' is not supported by this server; only tools with an "
                                 "input_schema are",
                                 type.substr(0, 80)),
                     ErrorKind::unsupported);
    if (!tool.has("input_schema")) tool.fail_at("input_schema", "is missing");
    if (tool.ok()) add_function(tool, ordered, "input_schema", tools);
    fields.adopt(tool);
}

void read_messages_choice(Fields& fields, ToolRequest& tools) {
    const Json* given = fields.find("tool_choice");
    if (given == nullptr) return;
    Fields choice(*given, "tool_choice");
    std::string type;
    bool alone = false;
    if (!choice.has("type")) choice.fail_at("type", "is missing");
    choice.read("type", type);
    choice.read("disable_parallel_tool_use", alone);
    tools.parallel = !alone;
    if (type == "none")
        tools.choice = Choice::none;
    else if (type == "any")
        tools.choice = Choice::required;
    else if (type == "tool")
        choose_function(choice, "name", tools);
    else if (type != "auto")
        choice.fail_at("type", "one of auto, any, tool, none is expected");
    fields.adopt(choice);
    if (tools.must_call() && tools.functions.empty()) fields.fail_at("tool_choice", "wants tools");
}

ToolRequest read_messages_tools(Fields& fields, const OrderedJson& ordered) {
    ToolRequest tools;
    const Json* given = fields.find("tools");
    if (given != nullptr && !given->is_array()) {
        fields.fail_at("tools", fmt::format("a list is expected, not {}", json_kind(*given)));
    } else if (given != nullptr && !given->empty()) {
        const OrderedJson declared = ordered_field(ordered, "tools");
        tools.declared = OrderedJson::array();
        tools.bytes = static_cast<std::int64_t>(given->dump().size());
        for (std::size_t i = 0; i < given->size() && fields.ok(); ++i)
            read_messages_tool((*given)[i], declared[i], fmt::format("tools[{}]", i), fields,
                               tools);
    }
    if (fields.ok()) read_messages_choice(fields, tools);
    return tools;
}

// A permission rather than a promise: of a model without reasoning it means nothing.
void read_thinking(Fields& fields, GenerationRequest& request) {
    const Json* given = fields.find("thinking");
    if (given == nullptr) return;
    Fields thinking(*given, "thinking");
    std::string type, display = "summarized";
    if (!thinking.has("type")) thinking.fail_at("type", "is missing");
    thinking.read("type", type);
    thinking.read("display", display);
    if (type == "enabled") {
        std::int64_t budget = 0;
        if (!thinking.has("budget_tokens")) thinking.fail_at("budget_tokens", "is missing");
        thinking.read("budget_tokens", budget, 1, kMessagesMost);
        request.reasoning_budget = budget;
        request.reasoning_budget_field = "thinking.budget_tokens";
        request.reasoning_is_optional = true;
    } else if (type != "disabled" && type != "adaptive" && type != "between_tools") {
        thinking.fail_at("type", "one of enabled, disabled, adaptive, between_tools is expected");
    }
    if (display != "summarized" && display != "omitted")
        thinking.fail_at("display", "one of summarized, omitted is expected");
    request.chat.arguments["thinking"] = type != "disabled";
    request.omits_reasoning = display == "omitted";
    fields.adopt(thinking);
}

void read_messages_format(Fields& fields, const char* name, const OrderedJson& ordered,
                          GenerationRequest& request) {
    const Json* given = fields.find(name);
    if (given == nullptr) return;
    Fields format(*given, fields.path_of(name));
    std::string type;
    if (!format.has("type")) format.fail_at("type", "is missing");
    format.read("type", type);
    if (type != "json_schema")
        format.fail_at("type", "only json_schema is supported", ErrorKind::unsupported);
    const Json* schema = format.find("schema");
    if (schema == nullptr)
        format.fail_at("schema", "is missing");
    else if (!schema->is_object())
        format.fail_at("schema",
                       fmt::format("a JSON Schema is expected, not {}", json_kind(*schema)));
    else if (request.grammar)
        format.fail_at("schema", fmt::format("{} says already what the text is to be",
                                             request.grammar->field));
    else
        request.grammar = GrammarField{
            {.kind = grammar::Kind::json_schema, .text = ordered[name]["schema"].dump()},
            format.path_of("schema")};
    fields.adopt(format);
}

// output_format: the older name of output_config.format.
void read_output_config(Fields& fields, const OrderedJson& ordered, GenerationRequest& request) {
    if (const Json* given = fields.find("output_config")) {
        Fields config(*given, "output_config");
        config.read("effort", request.chat.reasoning_effort);
        read_messages_format(config, "format", ordered_field(ordered, "output_config"), request);
        fields.adopt(config);
    }
    read_messages_format(fields, "output_format", ordered, request);
}

// Fields that the prompt is made of.
void read_messages_prompt(Fields& fields, const OrderedJson& ordered,
                          const RequestDefaults& defaults, GenerationRequest& request) {
    request.api = Api::messages;
    fields.ignore(kMessagesIgnored);
    for (const char* name : kMessagesRefused)
        if (const Json* value = fields.find(name); value != nullptr && !value->empty())
            fields.fail_at(name, "is not supported by this server", ErrorKind::unsupported);
    fields.read("model", request.model);
    read_messages_content(fields, ordered, defaults.drops_billing_header, request.chat);
    request.chat.tools = read_messages_tools(fields, ordered);
    read_thinking(fields, request);
    read_output_config(fields, ordered, request);
}

}  // namespace

Expected<GenerationRequest> parse_messages_request(const Json& body, const OrderedJson& ordered,
                                                   const RequestDefaults& defaults) {
    GenerationRequest request;
    Fields fields(body);
    read_messages_prompt(fields, ordered, defaults, request);
    std::int64_t max_tokens = 0;
    if (!fields.has("max_tokens")) fields.fail_at("max_tokens", "is missing");
    fields.read("max_tokens", max_tokens, 1, kMessagesMost);
    request.max_tokens = request.engine.output.max_tokens = max_tokens;
    fields.read_strings("stop_sequences", request.engine.output.stop,
                        static_cast<std::size_t>(accept::kMaxStopStrings));
    fields.read("stream", request.stream);
    read_engine_fields(fields, request, defaults.generation);
    request.engine.logprobs = false;
    ESPALIER_RETURN_IF_ERROR(fields.result());
    request.unknown = fields.unknown();
    return request;
}

Expected<GenerationRequest> parse_count_request(const Json& body, const OrderedJson& ordered,
                                                const RequestDefaults& defaults) {
    GenerationRequest request;
    Fields fields(body);
    read_messages_prompt(fields, ordered, defaults, request);
    ESPALIER_RETURN_IF_ERROR(fields.result());
    request.unknown = fields.unknown();
    return request;
}

}  // namespace espalier::server
