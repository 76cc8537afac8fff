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

void read_messages_tool(Fields& tool, const OrderedJson& ordered, ToolRequest& tools) {
    std::string type = "custom";
    tool.read("type", type);
    if (tool.ok() && type != "custom")
        tool.fail_at("type",
                     fmt::format("'{}' is not supported by this server; only tools with an "
                                 "input_schema are",
                                 type.substr(0, 80)),
                     ErrorKind::unsupported);
    if (tool.describes()) tool.describe("type", {{"enum", {"custom"}}});
    tool.require("input_schema");
    if (tool.ok()) add_function(tool, ordered, "input_schema", tools);
}

void read_messages_choice(Fields& fields, ToolRequest& tools) {
    auto choice = fields.object("tool_choice");
    if (!choice) return;
    constexpr const char* kTypes[] = {"auto", "any", "tool", "none"};
    std::string type;
    bool alone = false;
    choice->require("type");
    choice->read_word("type", type, kTypes);
    choice->read("disable_parallel_tool_use", alone);
    tools.parallel = !alone;
    if (choice->describes()) choice->describe("name", {{"type", "string"}});
    if (type == "none")
        tools.choice = Choice::none;
    else if (type == "any")
        tools.choice = Choice::required;
    else if (type == "tool")
        choose_function(*choice, "name", tools);
    fields.adopt(*choice);
    if (tools.must_call() && tools.functions.empty()) fields.fail_at("tool_choice", "wants tools");
}

ToolRequest read_messages_tools(Fields& fields, const OrderedJson& ordered) {
    ToolRequest tools;
    read_declarations(fields, ordered, tools, read_messages_tool);
    if (fields.ok()) read_messages_choice(fields, tools);
    return tools;
}

// A permission rather than a promise: of a model without reasoning it means nothing.
void read_thinking(Fields& fields, GenerationRequest& request) {
    auto thinking = fields.object("thinking");
    if (!thinking) return;
    constexpr const char* kTypes[] = {"enabled", "disabled", "adaptive", "between_tools"};
    constexpr const char* kDisplays[] = {"summarized", "omitted"};
    std::string type, display = kDisplays[0];
    thinking->require("type");
    thinking->read_word("type", type, kTypes);
    thinking->read_word("display", display, kDisplays);
    if (type == "enabled" || thinking->describes()) {
        std::int64_t budget = 0;
        if (type == "enabled") thinking->require("budget_tokens");
        thinking->read("budget_tokens", budget, 1, kMessagesMost);
        request.reasoning_budget = budget;
        request.reasoning_budget_field = "thinking.budget_tokens";
        request.reasoning_is_optional = true;
    }
    request.chat.arguments["thinking"] = type != "disabled";
    request.omits_reasoning = display == "omitted";
    fields.adopt(*thinking);
}

void read_messages_format(Fields& fields, const char* name, const OrderedJson& ordered,
                          GenerationRequest& request) {
    auto format = fields.object(name);
    if (!format) return;
    constexpr const char* kTypes[] = {"json_schema"};
    std::string type;
    format->require("type");
    format->read_word("type", type, kTypes, ErrorKind::unsupported);
    format->require("schema");
    if (format->describes()) format->describe("schema", {{"type", "object"}});
    const Json* schema = format->find("schema");
    if (schema != nullptr && !schema->is_object())
        format->fail_at("schema",
                        fmt::format("a JSON Schema is expected, not {}", json_kind(*schema)));
    if (schema != nullptr && request.grammar)
        format->fail_at("schema", fmt::format("{} says already what the text is to be",
                                              request.grammar->field));
    if (schema != nullptr && format->ok())
        request.grammar = GrammarField{
            {.kind = grammar::Kind::json_schema, .text = ordered[name]["schema"].dump()},
            format->path_of("schema")};
    fields.adopt(*format);
}

// output_format: the older name of output_config.format.
void read_output_config(Fields& fields, const OrderedJson& ordered, GenerationRequest& request) {
    if (auto config = fields.object("output_config")) {
        config->read("effort", request.chat.reasoning_effort);
        read_messages_format(*config, "format", ordered_field(ordered, "output_config"), request);
        fields.adopt(*config);
    }
    read_messages_format(fields, "output_format", ordered, request);
}

// Fields that the prompt is made of.
void read_messages_prompt(Fields& fields, const OrderedJson& ordered,
                          const RequestDefaults& defaults, GenerationRequest& request) {
    request.api = Api::messages;
    fields.ignore(kMessagesIgnored);
    for (const char* name : kMessagesRefused)
        if (const Json* value = fields.describes() ? nullptr : fields.find(name);
            value != nullptr && !value->empty())
            fields.fail_at(name, "is not supported by this server", ErrorKind::unsupported);
    fields.read("model", request.model);
    read_messages_content(fields, ordered, defaults.drops_billing_header, request.chat);
    request.chat.tools = read_messages_tools(fields, ordered);
    read_thinking(fields, request);
    read_output_config(fields, ordered, request);
}

}  // namespace

Expected<GenerationRequest> read_messages_request(Fields& fields, const OrderedJson& ordered,
                                                  const RequestDefaults& defaults) {
    GenerationRequest request;
    read_messages_prompt(fields, ordered, defaults, request);
    std::int64_t max_tokens = 0;
    fields.require("max_tokens");
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

Expected<GenerationRequest> read_count_request(Fields& fields, const OrderedJson& ordered,
                                               const RequestDefaults& defaults) {
    GenerationRequest request;
    read_messages_prompt(fields, ordered, defaults, request);
    ESPALIER_RETURN_IF_ERROR(fields.result());
    request.unknown = fields.unknown();
    return request;
}

Expected<GenerationRequest> parse_messages_request(const Json& body, const OrderedJson& ordered,
                                                   const RequestDefaults& defaults) {
    Fields fields(body);
    return read_messages_request(fields, ordered, defaults);
}

Expected<GenerationRequest> parse_count_request(const Json& body, const OrderedJson& ordered,
                                                const RequestDefaults& defaults) {
    Fields fields(body);
    return read_count_request(fields, ordered, defaults);
}

}  // namespace espalier::server
