// SPDX-License-Identifier: Apache-2.0
// Bodies of /v1/messages: the chat that templates read, and who is named when a field is wrong.
#include "server/api/messages_request.hpp"

#include <gtest/gtest.h>

#include "server/api/conversation.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

Expected<GenerationRequest> parse_text(const std::string& text) {
    auto body = parse_body(text);
    if (!body) return tl::unexpected<Error>(body.error());
    auto ordered = parse_ordered(text, *body, kMessagesOrdered);
    if (!ordered) return tl::unexpected<Error>(ordered.error());
    return parse_messages_request(*body, *ordered, {.generation = {}});
}

Expected<GenerationRequest> parse(const std::string& more) {
    return parse_text(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}])" +
                      std::string(more.empty() ? "" : ", ") + more + "}");
}

std::string fault(const std::string& more) {
    const auto parsed = parse(more);
    return parsed ? "accepted" : parsed.error().field;
}

Json messages_of(const std::string& messages) {
    const auto parsed = parse_text(R"({"max_tokens": 9, "messages": )" + messages + "}");
    return parsed ? parsed->chat.messages : Json(parsed.error().field);
}

TEST(MessagesRequest, BlocksBecomeTheChatThatTemplatesRead) {
    EXPECT_EQ(messages_of(R"([
        {"role": "user", "content": [{"type": "text", "text": "a"},
                                     {"type": "text", "text": "b",
                                      "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I "}, {"type": "text", "text": "look."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"z": [1, {}], "a": "ü\n"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "r", "is_error": true},
            {"type": "tool_result", "tool_use_id": "t2",
             "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "text", "text": "go on"}]}])"),
              Json::parse(R"([
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
            {"id": "t1", "type": "function",
             "function": {"name": "f", "arguments": "{\"z\": [1, {}], \"a\": \"ü\\n\"}"}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "r"},
        {"role": "tool", "tool_call_id": "t2", "content": "x\ny"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "go on"}])"));
    // Beside calls, templates ask whether the content is none; otherwise it is a text.
    EXPECT_EQ(messages_of(R"([{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": "x"}])")[0]["content"],
              nullptr);
    EXPECT_EQ(messages_of(R"([{"role": "assistant", "content": []},
                              {"role": "user", "content": "x"}])")[0],
              Json({{"role", "assistant"}, {"content", ""}}));
    EXPECT_EQ(messages_of(R"([{"role": "system", "content": "s"},
                              {"role": "user", "content": "x"}])")[0],
              Json({{"role", "system"}, {"content", "s"}}));
}

TEST(MessagesRequest, ArgumentsAreWrittenAsPythonDoes) {
    const auto text = [](const char* json) {
        return spaced_json(nlohmann::ordered_json::parse(json));
    };
    EXPECT_EQ(text(R"({"b":1,"a":[true,null,1.5,"x\"y"],"c":{}})"),
              R"({"b": 1, "a": [true, null, 1.5, "x\"y"], "c": {}})");
    EXPECT_EQ(text("[]"), "[]");
}

TEST(MessagesRequest, FieldsOfTheOutput) {
    const auto parsed = parse(R"("stop_sequences": ["a", "b"], "temperature": 0.5, "top_k": 7,
        "top_p": 0.9, "stream": true, "system": "S", "model": "m", "seed": 4,
        "metadata": {"user_id": "u"}, "service_tier": "auto", "wonder": 1)");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->api, Api::messages);
    EXPECT_EQ(parsed->model, "m");
    EXPECT_EQ(parsed->engine.output.stop, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(parsed->engine.output.max_tokens, 9);
    EXPECT_EQ(parsed->engine.sampling.top_k, 7);
    EXPECT_FLOAT_EQ(parsed->engine.sampling.temperature, 0.5f);
    EXPECT_EQ(parsed->engine.sampling.seed, 4u);
    EXPECT_TRUE(parsed->stream && parsed->seed_given);
    EXPECT_EQ(parsed->chat.messages[0], Json({{"role", "system"}, {"content", "S"}}));
    EXPECT_EQ(parsed->unknown, std::vector<std::string>{"wonder"});
}

TEST(MessagesRequest, ToolsAndTheirChoice) {
    const std::string tools = R"("tools": [{"name": "f", "description": "d", "input_schema":
        {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}}, "strict": true},
        {"type": "custom", "name": "g", "input_schema": {"type": "object"}}])";
    const auto choice = [&](const std::string& word) {
        auto parsed = parse(tools + R"(, "tool_choice": )" + word);
        EXPECT_TRUE(parsed) << parsed.error().message;
        return parsed->chat.tools;
    };
    const ToolRequest plain = choice(R"({"type": "auto"})");
    ASSERT_EQ(plain.functions.size(), 2u);
    EXPECT_EQ(plain.functions[0].strict, true);
    EXPECT_FALSE(plain.functions[1].strict);
    EXPECT_TRUE(plain.parallel);
    EXPECT_EQ(plain.declared[0].dump(),
              R"({"type":"function","function":{"name":"f","description":"d","parameters":)"
              R"({"type":"object","properties":{"z":{"type":"string"},"a":{}}}}})");
    EXPECT_EQ(plain.choice, ToolRequest::Choice::automatic);
    EXPECT_EQ(choice(R"({"type": "any"})").choice, ToolRequest::Choice::required);
    EXPECT_EQ(choice(R"({"type": "none"})").choice, ToolRequest::Choice::none);
    const ToolRequest named =
        choice(R"({"type": "tool", "name": "g", "disable_parallel_tool_use": true})");
    EXPECT_EQ(named.choice, ToolRequest::Choice::named);
    EXPECT_EQ(named.named, 1u);
    EXPECT_FALSE(named.parallel);
    EXPECT_EQ(fault(tools + R"(, "tool_choice": {"type": "tool", "name": "h"})"),
              "tool_choice.name");
    EXPECT_EQ(fault(tools + R"(, "tool_choice": "auto")"), "tool_choice");
    EXPECT_EQ(fault(R"("tool_choice": {"type": "any"})"), "tool_choice");
    EXPECT_EQ(fault(R"("tools": [{"name": "f"}])"), "tools[0].input_schema");
    EXPECT_EQ(fault(R"("tools": [{"name": "a b", "input_schema": {}}])"), "tools[0].name");
    EXPECT_EQ(fault(R"("tools": [{"name": "f", "input_schema": {}},
                                 {"name": "f", "input_schema": {}}])"),
              "tools[1].name");
    EXPECT_EQ(fault(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
              "tools[0].type");
}

TEST(MessagesRequest, ThinkingIsAPermission) {
    const auto parsed =
        parse(R"("thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"})");
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->chat.arguments["thinking"], true);
    EXPECT_EQ(parsed->reasoning_budget, 1024);
    EXPECT_TRUE(parsed->reasoning_is_optional && parsed->omits_reasoning);
    EXPECT_EQ(parse(R"("thinking": {"type": "disabled"})")->chat.arguments["thinking"], false);
    EXPECT_EQ(parse(R"("thinking": {"type": "adaptive"})")->chat.arguments["thinking"], true);
    EXPECT_FALSE(parse("")->chat.arguments.contains("thinking"));
    EXPECT_EQ(fault(R"("thinking": {"type": "enabled"})"), "thinking.budget_tokens");
    EXPECT_EQ(fault(R"("thinking": {"type": "much"})"), "thinking.type");
    EXPECT_EQ(fault(R"("thinking": true)"), "thinking");
}

TEST(MessagesRequest, AFormatIsAGrammar) {
    const std::string format =
        R"({"type": "json_schema", "schema": {"type": "object", "properties": {"z": {}, "a": {}}}})";
    for (const std::string& where :
         {R"("output_config": {"effort": "low", "format": )" + format + "}",
          R"("output_format": )" + format}) {
        const auto parsed = parse(where);
        ASSERT_TRUE(parsed && parsed->grammar) << where;
        EXPECT_EQ(parsed->grammar->specification.text,
                  R"({"type":"object","properties":{"z":{},"a":{}}})");
    }
    EXPECT_EQ(parse(R"("output_config": {"effort": "low"})")->chat.reasoning_effort, "low");
    EXPECT_EQ(fault(R"("output_config": {"format": {"type": "text"}})"),
              "output_config.format.type");
    EXPECT_EQ(
        fault(R"("output_config": {"format": )" + format + R"(}, "output_format": )" + format),
        "output_format.schema");
}

TEST(MessagesRequest, FaultsAreNamed) {
    EXPECT_EQ(parse_text(R"({"messages": [{"role": "user", "content": "x"}]})").error().field,
              "max_tokens");
    EXPECT_EQ(parse_text(R"({"max_tokens": 3})").error().field, "messages");
    EXPECT_EQ(fault(R"("stop_sequences": [3])"), "stop_sequences[0]");
    EXPECT_EQ(fault(R"("system": 3)"), "system");
    EXPECT_EQ(fault(R"("system": [{"type": "image"}])"), "system[0]");
    EXPECT_EQ(fault(R"("system": [{"type": "text"}])"), "system[0].text");
    EXPECT_EQ(fault(R"("mcp_servers": [{"type": "url"}])"), "mcp_servers");
    EXPECT_EQ(fault(R"("mcp_servers": [])"), "accepted");
    EXPECT_EQ(messages_of("[]"), "messages");
    EXPECT_EQ(messages_of("[3]"), "messages[0]");
    EXPECT_EQ(messages_of(R"([{"role": "tool", "content": "x"}])"), "messages[0].role");
    EXPECT_EQ(messages_of(R"([{"role": "user"}])"), "messages[0].content");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": []}])"), "messages[0].content");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": [{"type": "image"}]}])"),
              "messages[0].content[0]");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": [{"type": "tool_use"}]}])"),
              "messages[0].content[0]");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": [{"type": "tool_result"}]}])"),
              "messages[0].content[0].tool_use_id");
    EXPECT_EQ(messages_of(R"([{"role": "assistant", "content": [
                  {"type": "tool_use", "id": "i", "name": "f", "input": "{}"}]}])"),
              "messages[0].content[0].input");
    EXPECT_EQ(messages_of(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [
                  {"type": "tool_use", "id": "i", "name": "f", "input": {}}]}])"),
              "messages");
}

TEST(MessagesRequest, ALastMessageOfTheAssistantIsContinued) {
    const auto parsed_of = [](const std::string& last) {
        return parse_text(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"},
                              {"role": "assistant", "content": )" +
                          last + "}]}");
    };
    const auto parsed = parsed_of(R"("The best is (")");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_TRUE(parsed->chat.continues_final);
    EXPECT_FALSE(parsed->chat.add_generation_prompt);
    EXPECT_EQ(parsed->chat.messages.size(), 2u);
    for (const char* nothing : {R"("")", "[]"}) {
        const auto empty = parsed_of(nothing);
        ASSERT_TRUE(empty);
        EXPECT_FALSE(empty->chat.continues_final);
        EXPECT_EQ(empty->chat.messages.size(), 1u);
    }
    EXPECT_FALSE(parsed_of(R"("  ")"));
}

TEST(MessagesRequest, CountingWantsNoOutput) {
    const Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"system", "s"}};
    const auto counted =
        parse_count_request(body, nlohmann::ordered_json(body), {.generation = {}});
    ASSERT_TRUE(counted);
    EXPECT_EQ(counted->chat.messages.size(), 2u);
}

TEST(MessagesRequest, TheEnginesErrorsGoByTheRequestsNames) {
    const auto parsed = parse("");
    const auto named = [&](const char* field) {
        return named_as_in_request(fail_field(ErrorKind::invalid, field, "x").value(), *parsed)
            .message;
    };
    EXPECT_EQ(named("stop"), "stop_sequences: x");
    EXPECT_EQ(named("stop[2]"), "stop_sequences[2]: x");
    EXPECT_EQ(named("prompt"), "messages: x");
    const auto schema = [](const char* field, Api api) {
        return named_as_in_chat(fail_field(ErrorKind::invalid, field, "x").value(), api).message;
    };
    constexpr const char* kSchema = "tools[1].function.parameters.properties";
    EXPECT_EQ(schema(kSchema, Api::chat), std::string(kSchema) + ": x");
    EXPECT_EQ(schema(kSchema, Api::messages), "tools[1].input_schema.properties: x");
    EXPECT_EQ(schema(kSchema, Api::responses), "tools[1].parameters.properties: x");
    EXPECT_EQ(schema("tools", Api::messages), "tools: x");
    EXPECT_EQ(schema("messages", Api::messages), "messages: x");
    EXPECT_EQ(schema("messages", Api::responses), "input: x");
}

}  // namespace
}  // namespace espalier::server
