// SPDX-License-Identifier: Apache-2.0
// Bodies of /v1/responses: the chat that templates read, what the answer repeats, and who is named
// when a field is wrong or asks for something that is kept.
#include "server/api/responses_request.hpp"

#include <gtest/gtest.h>

#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

Expected<GenerationRequest> parse_text(const std::string& text) {
    auto body = parse_body(text);
    if (!body) return tl::unexpected<Error>(body.error());
    auto ordered = parse_ordered(text, *body, kResponsesOrdered);
    if (!ordered) return tl::unexpected<Error>(ordered.error());
    return parse_responses_request(*body, *ordered, {.generation = {}});
}

Expected<GenerationRequest> parse(const std::string& more) {
    return parse_text(R"({"input": "hi")" + std::string(more.empty() ? "" : ", ") + more + "}");
}

std::string fault(const std::string& more) {
    const auto parsed = parse(more);
    return parsed ? "accepted" : parsed.error().field;
}

Json messages_of(const std::string& input) {
    const auto parsed = parse_text(R"({"input": )" + input + "}");
    return parsed ? parsed->chat.messages : Json(parsed.error().field);
}

TEST(ResponsesRequest, ItemsBecomeTheChatThatTemplatesRead) {
    EXPECT_EQ(parse(R"("instructions": "S")")->chat.messages,
              Json::parse(R"([{"role": "system", "content": "S"},
                              {"role": "user", "content": "hi"}])"));
    EXPECT_EQ(messages_of(R"([
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                        {"type": "input_text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f",
         "arguments": "{\"z\":1}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {"type": "function_call_output", "call_id": "c2",
         "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "go on"}])"),
              Json::parse(R"([
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\":1}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "tool", "tool_call_id": "c2", "content": "x"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "go on"}])"));
}

TEST(ResponsesRequest, FieldsOfTheOutput) {
    const auto parsed = parse(R"("max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25,
        "stream": true, "seed": 4, "store": true, "reasoning": {"effort": "low", "summary": "auto"},
        "thinking_token_budget": 7, "include": ["reasoning.encrypted_content"], "wonder": 1,
        "metadata": {"k": "v"}, "tools": [{"type": "function", "name": "f", "parameters":
        {"type": "object", "properties": {"z": {}, "a": {}}}, "strict": true}])");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->max_tokens, 9);
    EXPECT_EQ(parsed->engine.output.max_tokens, 9);
    EXPECT_EQ(parsed->engine.sampling.seed, 4u);
    EXPECT_EQ(parsed->chat.reasoning_effort, "low");
    EXPECT_EQ(parsed->chat.arguments["thinking"], true);
    EXPECT_EQ(parsed->reasoning_budget, 7);
    EXPECT_EQ(parsed->unknown, std::vector<std::string>{"wonder"});
    const nlohmann::ordered_json& repeated = parsed->repeated;
    EXPECT_EQ(repeated["store"], false);
    EXPECT_EQ(repeated["temperature"], 0.5);
    EXPECT_EQ(repeated["metadata"], nlohmann::ordered_json({{"k", "v"}}));
    EXPECT_EQ(repeated["text"].dump(), R"({"format":{"type":"text"}})");
    EXPECT_EQ(repeated["tools"].dump(),
              R"([{"type":"function","name":"f","parameters":{"type":"object","properties":)"
              R"({"z":{},"a":{}}},"strict":true}])");
    EXPECT_EQ(repeated["tool_choice"], "auto");
    EXPECT_TRUE(repeated["instructions"].is_null());
    EXPECT_FALSE(parse("")->max_tokens);
    EXPECT_EQ(parse(R"("reasoning": {"effort": "none"})")->chat.arguments["thinking"], false);
    EXPECT_FALSE(parse("")->chat.arguments.contains("thinking"));
}

TEST(ResponsesRequest, DefaultsAreRepeatedAsTheModelsFileHasThem) {
    const Json body = {{"input", "hi"}};
    checkpoint::GenerationDefaults generation;
    generation.temperature = 0.7;
    generation.top_p = 0.95;
    const auto parsed =
        parse_responses_request(body, nlohmann::ordered_json(body), {.generation = generation});
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->repeated["temperature"].dump(), "0.7");
    EXPECT_EQ(parsed->repeated["top_p"].dump(), "0.95");
}

TEST(ResponsesRequest, ToolsAndTheirChoice) {
    const std::string tools = R"("tools": [{"type": "function", "name": "f", "parameters": null},
                                           {"type": "function", "name": "g"}])";
    const auto choice = [&](const std::string& word) {
        auto parsed = parse(tools + R"(, "tool_choice": )" + word);
        EXPECT_TRUE(parsed) << parsed.error().message;
        return parsed->chat.tools;
    };
    EXPECT_EQ(choice(R"("auto")").choice, ToolRequest::Choice::automatic);
    EXPECT_EQ(choice(R"("none")").choice, ToolRequest::Choice::none);
    EXPECT_EQ(choice(R"("required")").choice, ToolRequest::Choice::required);
    EXPECT_EQ(choice(R"({"type": "function", "name": "g"})").named, 1u);
    EXPECT_FALSE(parse(R"("parallel_tool_calls": false)")->chat.tools.parallel);
    EXPECT_EQ(fault(tools + R"(, "tool_choice": {"type": "function", "name": "h"})"),
              "tool_choice.name");
    EXPECT_EQ(fault(tools + R"(, "tool_choice": {"type": "web_search"})"), "tool_choice.type");
    EXPECT_EQ(fault(tools + R"(, "tool_choice": "some")"), "tool_choice");
    EXPECT_EQ(fault(R"("tool_choice": "required")"), "tool_choice");
    EXPECT_EQ(fault(R"("tools": 3)"), "tools");
    EXPECT_EQ(fault(R"("tools": [{"name": "f"}])"), "tools[0].type");
    for (const char* type : {"web_search", "file_search", "code_interpreter", "mcp", "custom"}) {
        const auto refused = parse(R"("tools": [{"type": ")" + std::string(type) + "\"}]");
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find(type), std::string::npos);
    }
}

TEST(ResponsesRequest, AFormatIsAGrammar) {
    const auto parsed = parse(R"("text": {"verbosity": "low", "format": {"type": "json_schema",
        "name": "n", "strict": false, "schema": {"properties": {"z": {}, "a": {}}}}})");
    ASSERT_TRUE(parsed && parsed->grammar);
    EXPECT_EQ(parsed->grammar->specification.text, R"({"properties":{"z":{},"a":{}}})");
    EXPECT_FALSE(parsed->grammar->specification.strict);
    EXPECT_EQ(parse(R"("text": {"format": {"type": "json_object"}})")->grammar->specification.kind,
              grammar::Kind::json_object);
    EXPECT_FALSE(parse(R"("text": {"format": {"type": "text"}})")->grammar);
    EXPECT_EQ(fault(R"("text": {"format": {"type": "xml"}})"), "text.format.type");
    EXPECT_EQ(fault(R"("text": {"format": {"type": "json_schema", "schema": {}}})"),
              "text.format.name");
    EXPECT_EQ(fault(R"("text": {"format": {"type": "json_schema", "name": "n"}})"),
              "text.format.schema");
}

TEST(ResponsesRequest, WhatIsNotKeptIsRefusedByName) {
    for (const char* field :
         {R"("previous_response_id": "resp_1")", R"("conversation": {"id": "conv_1"})",
          R"("background": true)", R"("prompt": {"id": "p"})", R"("top_logprobs": 2)"}) {
        const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
        EXPECT_EQ(fault(field), name);
    }
    EXPECT_EQ(fault(R"("include": ["message.output_text.logprobs"])"), "include");
    EXPECT_EQ(fault(R"("previous_response_id": null, "background": false, "top_logprobs": 0)"),
              "accepted");
    EXPECT_EQ(messages_of(R"([{"type": "item_reference", "id": "i"}])"), "input[0].type");
}

TEST(ResponsesRequest, FaultsAreNamed) {
    EXPECT_EQ(parse_text("{}").error().message, "input: is missing");
    EXPECT_EQ(messages_of("3"), "input");
    EXPECT_EQ(messages_of("[]"), "input");
    EXPECT_EQ(messages_of("[3]"), "input[0]");
    EXPECT_EQ(messages_of(R"([{"content": "x"}])"), "input[0].role");
    EXPECT_EQ(messages_of(R"([{"role": "user"}])"), "input[0].content");
    EXPECT_EQ(messages_of(R"([{"role": "tool", "content": "x"}])"), "input[0].role");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": [{"type": "input_image"}]}])"),
              "input[0].content[0].type");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": [{"type": "input_text"}]}])"),
              "input[0].content[0].text");
    EXPECT_EQ(messages_of(R"([{"type": "function_call", "call_id": "c", "name": "f"}])"),
              "input[0].arguments");
    EXPECT_EQ(messages_of(R"([{"type": "function_call_output", "output": "x"}])"),
              "input[0].call_id");
    EXPECT_EQ(messages_of(R"([{"type": "web_search_call", "id": "w"}])"), "input[0].type");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": "a"},
                              {"role": "assistant", "content": "b"}])"),
              "input[1]");
    EXPECT_EQ(fault(R"("instructions": 3)"), "instructions");
    EXPECT_EQ(fault(R"("max_output_tokens": 0)"), "max_output_tokens");
    EXPECT_EQ(fault(R"("metadata": [])"), "metadata");
    EXPECT_EQ(fault(R"("reasoning": "low")"), "reasoning");
}

}  // namespace
}  // namespace espalier::server
