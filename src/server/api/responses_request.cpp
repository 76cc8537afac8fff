// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "server/api/function_tools.hpp"
#include "server/api/responses_input.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Choice = ToolRequest::Choice;

// OpenAI's, and without a meaning here. store: the answer says that it is not kept.
constexpr const char* kResponsesIgnored[] = {
    "store",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "max_tool_calls",
    "truncation",
    "stream_options",
    "context_management",
    "access_programs",
};

struct Refusal {
    const char* name;
    const char* why;
};
constexpr Refusal kResponsesRefused[] = {
    {"previous_response_id",
     "this server keeps no responses; send the items of the conversation as input"},
    {"conversation", "this server keeps no conversations; send their items as input"},
    {"background", "this server keeps no responses that could be asked for later"},
    {"prompt", "this server keeps no prompts; send instructions and input"},
    {"moderation", "is not supported by this server"},
    {"image", "is not supported by this server"},
    {"top_logprobs", "is not supported by this server; /v1/chat/completions has logprobs"},
};

// What is refused is in no description of the body.
void refuse_responses_fields(Fields& fields) {
    if (fields.describes()) return;
    for (const Refusal& refusal : kResponsesRefused)
        if (const Json* value = fields.find(refusal.name);
            value != nullptr && *value != false && *value != 0 && *value != "")
            fields.fail_at(refusal.name, refusal.why, ErrorKind::unsupported);
    const Json* include = fields.find("include");
    if (include != nullptr && include->is_array() &&
        std::ranges::find(*include, "message.output_text.logprobs") != include->end())
        fields.fail_at("include",
                       "message.output_text.logprobs is not supported by this server; "
                       "/v1/chat/completions has logprobs",
                       ErrorKind::unsupported);
}

void refuse_hosted_tool(Fields& fields, const std::string& type) {
    if (type != "function")
        fields.fail_at("type",
                       fmt::format("'{}' is not supported by this server; only function is",
                                   type.substr(0, 80)),
                       ErrorKind::unsupported);
}

void read_responses_tool(Fields& tool, const OrderedJson& ordered, ToolRequest& tools) {
    std::string type;
    tool.require("type");
    tool.read("type", type);
    refuse_hosted_tool(tool, type);
    if (tool.describes()) tool.describe("type", {{"enum", {"function"}}});
    if (tool.ok()) add_function(tool, ordered, "parameters", tools);
}

ToolRequest read_responses_tools(Fields& fields, const OrderedJson& ordered) {
    ToolRequest tools;
    fields.read("parallel_tool_calls", tools.parallel);
    read_declarations(fields, ordered, tools, read_responses_tool);
    return tools;
}

Json responses_choice_schema() {
    const Json function = {
        {"type", "object"},
        {"properties", {{"type", {{"enum", {"function"}}}}, {"name", {{"type", "string"}}}}},
        {"required", {"type", "name"}}};
    return {{"anyOf", {{{"enum", {"auto", "none", "required"}}}, function}}};
}

void read_responses_choice(Fields& fields, ToolRequest& tools) {
    if (fields.describes()) fields.describe("tool_choice", responses_choice_schema());
    const Json* given = fields.find("tool_choice");
    if (given == nullptr) return;
    if (*given == "none") {
        tools.choice = Choice::none;
    } else if (*given == "required") {
        tools.choice = Choice::required;
    } else if (given->is_object()) {
        Fields choice(*given, "tool_choice");
        std::string type;
        choice.read("type", type);
        refuse_hosted_tool(choice, type);
        choose_function(choice, "name", tools);
        fields.adopt(choice);
    } else if (*given != "auto") {
        fields.fail_at("tool_choice", "one of auto, none, required, or a function, is expected");
    }
    if (tools.must_call() && tools.functions.empty()) fields.fail_at("tool_choice", "wants tools");
}

void read_responses_schema(Fields& format, const OrderedJson& ordered, GenerationRequest& request) {
    std::string name, description;
    bool strict = true;
    if (!format.describes()) format.require("name");
    format.read("name", name);
    format.read("description", description);
    format.read("strict", strict);
    if (format.describes()) return format.describe("schema", {{"type", "object"}});
    format.require("schema");
    const Json* schema = format.find("schema");
    if (schema == nullptr) return;
    if (!schema->is_object())
        format.fail_at("schema",
                       fmt::format("a JSON Schema is expected, not {}", json_kind(*schema)));
    else
        request.grammar = GrammarField{{.kind = grammar::Kind::json_schema,
                                        .text = ordered["schema"].dump(),
                                        .strict = strict},
                                       format.path_of("schema")};
}

void read_responses_text(Fields& fields, const OrderedJson& ordered, GenerationRequest& request) {
    auto text = fields.object("text");
    if (!text) return;
    constexpr const char* kMeaningless[] = {"verbosity"};
    constexpr const char* kTypes[] = {"text", "json_object", "json_schema"};
    text->ignore(kMeaningless);
    if (auto format = text->object("format")) {
        std::string type;
        format->require("type");
        format->read_word("type", type, kTypes, ErrorKind::unsupported);
        if (type == "json_object")
            request.grammar =
                GrammarField{{.kind = grammar::Kind::json_object}, "text.format.type"};
        else if (type == "json_schema" || format->describes())
            read_responses_schema(*format, ordered_field(ordered, "text")["format"], request);
        text->adopt(*format);
    }
    fields.adopt(*text);
}

// An effort asks for reasoning where the template asks whether there is to be some.
void read_responses_reasoning(Fields& fields, GenerationRequest& request) {
    auto reasoning = fields.object("reasoning");
    if (!reasoning) return;
    reasoning->read("effort", request.chat.reasoning_effort);
    if (!request.chat.reasoning_effort.empty())
        request.chat.arguments["thinking"] = request.chat.reasoning_effort != "none";
    fields.adopt(*reasoning);
}

// The field as the request has it, or what stands for it there.
OrderedJson said_or(const Json& body, const char* name, OrderedJson otherwise) {
    const auto found = body.find(name);
    return found == body.end() || found->is_null() ? std::move(otherwise) : OrderedJson(*found);
}

OrderedJson said_or(const OrderedJson& ordered, const char* name, OrderedJson otherwise) {
    const auto found = ordered.find(name);
    return found == ordered.end() || found->is_null() ? std::move(otherwise) : *found;
}

// 0.7 rather than 0.699999988079071.
OrderedJson shortest_number(float value) { return std::stod(fmt::format("{}", value)); }

OrderedJson repeated_fields(const Json& body, const OrderedJson& ordered,
                            const GenerationRequest& request) {
    const accept::SamplingOptions& sampling = request.engine.sampling;
    const std::string& effort = request.chat.reasoning_effort;
    OrderedJson text = said_or(ordered, "text", OrderedJson::object());
    if (!text.contains("format")) text["format"] = {{"type", "text"}};
    return {
        {"instructions", said_or(body, "instructions", nullptr)},
        {"max_output_tokens", said_or(body, "max_output_tokens", nullptr)},
        {"metadata", said_or(body, "metadata", OrderedJson::object())},
        {"parallel_tool_calls", request.chat.tools.parallel},
        {"previous_response_id", nullptr},
        {"reasoning",
         {{"effort", effort.empty() ? OrderedJson() : OrderedJson(effort)}, {"summary", nullptr}}},
        {"store", false},
        {"temperature", said_or(body, "temperature", shortest_number(sampling.temperature))},
        {"text", std::move(text)},
        {"tool_choice", said_or(ordered, "tool_choice", said_or(body, "tool_choice", "auto"))},
        {"tools", said_or(ordered, "tools", OrderedJson::array())},
        {"top_p", said_or(body, "top_p", shortest_number(sampling.top_p))},
        {"truncation", "disabled"}};
}

}  // namespace

Expected<GenerationRequest> read_responses_request(Fields& fields, const OrderedJson& ordered,
                                                   const RequestDefaults& defaults) {
    GenerationRequest request;
    request.api = Api::responses;
    refuse_responses_fields(fields);
    fields.ignore(kResponsesIgnored);
    fields.read("model", request.model);
    if (fields.describes()) fields.describe("metadata", {{"type", "object"}});
    if (const Json* metadata = fields.find("metadata");
        metadata != nullptr && !metadata->is_object())
        fields.fail_at("metadata",
                       fmt::format("an object is expected, not {}", json_kind(*metadata)));
    request.chat.messages = read_responses_input(fields);
    request.chat.tools = read_responses_tools(fields, ordered);
    if (fields.ok()) read_responses_choice(fields, request.chat.tools);
    read_responses_text(fields, ordered, request);
    read_responses_reasoning(fields, request);
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    request.max_tokens_field = "max_output_tokens";
    request.engine.output.max_tokens = kMost;
    fields.read("max_output_tokens", request.engine.output.max_tokens, 1, kMost);
    if (fields.has("max_output_tokens")) request.max_tokens = request.engine.output.max_tokens;
    fields.read("stream", request.stream);
    read_engine_fields(fields, request, defaults.generation);
    read_reasoning_budget(fields, request);
    request.engine.logprobs = false;
    ESPALIER_RETURN_IF_ERROR(fields.result());
    request.unknown = fields.unknown();
    return request;
}

Expected<GenerationRequest> parse_responses_request(const Json& body, const OrderedJson& ordered,
                                                    const RequestDefaults& defaults) {
    Fields fields(body);
    ESPALIER_ASSIGN_OR_RETURN(GenerationRequest request,
                              read_responses_request(fields, ordered, defaults));
    request.repeated = repeated_fields(body, ordered, request);
    return request;
}

}  // namespace espalier::server
