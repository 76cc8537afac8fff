// SPDX-License-Identifier: Apache-2.0
// Structured output, tools and reasoning in bodies: what each field of three APIs becomes, and who
// is named when one is wrong.
#include <gtest/gtest.h>

#include "server/body.hpp"
#include "server/generation_request.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using grammar::Kind;

Expected<GenerationRequest> parse(const std::string& more) {
    const std::string text = R"({"messages": [{"role": "user", "content": "hi"}])" +
                             std::string(more.empty() ? "" : ", ") + more + "}";
    auto body = parse_body(text);
    if (!body) return tl::unexpected<Error>(body.error());
    auto ordered = parse_ordered(text, *body);
    if (!ordered) return tl::unexpected<Error>(ordered.error());
    return parse_generation_request(*body, *ordered, Api::chat, {});
}

std::string fault(const std::string& more) {
    const auto parsed = parse(more);
    return parsed ? "accepted" : parsed.error().field;
}

grammar::Specification specification(const std::string& more) {
    const auto parsed = parse(more);
    EXPECT_TRUE(parsed) << parsed.error().message;
    EXPECT_TRUE(parsed && parsed->grammar) << more;
    return parsed && parsed->grammar ? parsed->grammar->specification : grammar::Specification();
}

// ---- what the text is to be ---------------------------------------------------------------------

TEST(GrammarFields, EveryApisWordsBecomeOneType) {
    // The order of a schema's keys is the order that a model writes in.
    const std::string schema = R"({"type":"object","properties":{"z":{},"a":{"type":"null"}}})";
    EXPECT_EQ(specification(R"("response_format": {"type": "json_object"})"),
              (grammar::Specification{.kind = Kind::json_object}));
    EXPECT_EQ(specification(R"("response_format": {"type": "json_schema", "json_schema":
                                {"name": "n", "description": "d", "schema": )" +
                            schema + "}}"),
              (grammar::Specification{.kind = Kind::json_schema, .text = schema}));
    EXPECT_EQ(specification(R"("response_format": {"type": "json_schema", "json_schema":
                                {"name": "n", "strict": false, "schema": )" +
                            schema + "}}"),
              (grammar::Specification{.kind = Kind::json_schema, .text = schema, .strict = false}));
    const std::string tag = R"({"type":"structural_tag","format":{"type":"any_text"}})";
    EXPECT_EQ(specification(R"("response_format": )" + tag),
              (grammar::Specification{.kind = Kind::structural_tag, .text = tag}));
    EXPECT_EQ(specification(R"("structured_outputs": {"json": )" + schema + "}"),
              (grammar::Specification{.kind = Kind::json_schema, .text = schema}));
    EXPECT_EQ(specification(R"("structured_outputs": {"json": "true"})"),
              (grammar::Specification{.kind = Kind::json_schema, .text = "true"}));
    EXPECT_EQ(
        specification(R"("structured_outputs": {"json": {}, "disable_any_whitespace": true,
                                                      "disable_additional_properties": false})"),
        (grammar::Specification{
            .kind = Kind::json_schema, .text = "{}", .strict = false, .any_whitespace = false}));
    EXPECT_EQ(specification(R"("structured_outputs": {"json_object": true})"),
              (grammar::Specification{.kind = Kind::json_object}));
    EXPECT_EQ(specification(R"("structured_outputs": {"regex": "a+"})"),
              (grammar::Specification{.kind = Kind::regex, .text = "a+"}));
    EXPECT_EQ(specification(R"("structured_outputs": {"choice": ["a", "b"]})"),
              (grammar::Specification{.kind = Kind::choice, .choices = {"a", "b"}}));
    EXPECT_EQ(specification(R"("structured_outputs": {"grammar": "root ::= \"a\""})"),
              (grammar::Specification{.kind = Kind::ebnf, .text = "root ::= \"a\""}));
    EXPECT_EQ(specification(R"("structured_outputs": {"structural_tag": )" + tag + "}"),
              (grammar::Specification{.kind = Kind::structural_tag, .text = tag}));
    EXPECT_EQ(specification(R"("regex": "b")"),
              (grammar::Specification{.kind = Kind::regex, .text = "b"}));
    EXPECT_EQ(specification(R"("ebnf": "c")"),
              (grammar::Specification{.kind = Kind::ebnf, .text = "c"}));
    EXPECT_EQ(specification(R"("json_schema": "{}")"),
              (grammar::Specification{.kind = Kind::json_schema, .text = "{}"}));
    for (const char* nothing : {"", R"("response_format": {"type": "text"})",
                                R"("response_format": null, "regex": null)"})
        EXPECT_FALSE(parse(nothing)->grammar) << nothing;
    EXPECT_EQ(parse(R"("structured_outputs": {"regex": "a"})")->grammar->field,
              "structured_outputs.regex");
}

TEST(GrammarFields, FaultsAreNamedByTheirPlace) {
    EXPECT_EQ(fault(R"("response_format": 3)"), "response_format");
    EXPECT_EQ(fault(R"("response_format": {})"), "response_format.type");
    EXPECT_EQ(fault(R"("response_format": {"type": 3})"), "response_format.type");
    EXPECT_EQ(fault(R"("response_format": {"type": "xml"})"), "response_format.type");
    const auto schema = [](const std::string& inner) {
        return fault(R"("response_format": {"type": "json_schema", "json_schema": )" + inner + "}");
    };
    EXPECT_EQ(schema("null"), "response_format.json_schema");
    EXPECT_EQ(schema("3"), "response_format.json_schema");
    EXPECT_EQ(schema(R"({"schema": {}})"), "response_format.json_schema.name");
    EXPECT_EQ(schema(R"({"name": 3, "schema": {}})"), "response_format.json_schema.name");
    EXPECT_EQ(schema(R"({"name": "n"})"), "response_format.json_schema.schema");
    EXPECT_EQ(schema(R"({"name": "n", "schema": 3})"), "response_format.json_schema.schema");
    EXPECT_EQ(schema(R"({"name": "n", "schema": {}, "strict": 1})"),
              "response_format.json_schema.strict");
    const auto structured = [](const std::string& inner) {
        return fault(R"("structured_outputs": )" + inner);
    };
    EXPECT_EQ(structured("3"), "structured_outputs");
    EXPECT_EQ(structured("{}"), "structured_outputs");
    EXPECT_EQ(structured(R"({"json": 3})"), "structured_outputs.json");
    EXPECT_EQ(structured(R"({"regex": 3})"), "structured_outputs.regex");
    EXPECT_EQ(structured(R"({"grammar": []})"), "structured_outputs.grammar");
    for (const char* wrong : {"3", "[]", "{}", "\"a\""})
        EXPECT_EQ(structured(std::string(R"({"choice": )") + wrong + "}"),
                  "structured_outputs.choice");
    EXPECT_EQ(structured(R"({"choice": ["a", 3]})"), "structured_outputs.choice[1]");
    EXPECT_EQ(structured(R"({"structural_tag": 3})"), "structured_outputs.structural_tag");
    EXPECT_EQ(structured(R"({"json_object": "x"})"), "structured_outputs.json_object");
    EXPECT_EQ(structured(R"({"regex": "a", "whitespace_pattern": "x"})"),
              "structured_outputs.whitespace_pattern");
    EXPECT_EQ(fault(R"("regex": 3)"), "regex");
    EXPECT_EQ(fault(R"("ebnf": {})"), "ebnf");
    EXPECT_EQ(fault(R"("json_schema": 3)"), "json_schema");
}

TEST(GrammarFields, TwoAtOnceAreRefused) {
    EXPECT_EQ(fault(R"("structured_outputs": {"regex": "a", "choice": ["a"]})"),
              "structured_outputs.choice");
    EXPECT_EQ(fault(R"("response_format": {"type": "json_object"}, "regex": "a")"), "regex");
    EXPECT_EQ(fault(R"("response_format": {"type": "json_object"}, "structured_outputs":
                        {"json": {}})"),
              "structured_outputs.json");
    EXPECT_EQ(fault(R"("ebnf": "a", "json_schema": "{}")"), "json_schema");
}

TEST(GrammarFields, AnOrderedObjectIsBounded) {
    std::string many = "{";
    for (int i = 0; i < 5000; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
    many += "}";
    EXPECT_EQ(fault(R"("structured_outputs": {"json": )" + many + "}"), "structured_outputs");
    EXPECT_EQ(fault(R"("regex": "a", "metadata": )" + many), "accepted");
}

// ---- tools --------------------------------------------------------------------------------------

const std::string kTools = R"("tools": [
    {"type": "function", "function": {"name": "f", "description": "d", "strict": true,
        "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}},
    {"type": "function", "function": {"name": "g-1.x"}}])";

TEST(ToolFields, AreTakenAsDeclared) {
    const auto parsed = parse(kTools);
    ASSERT_TRUE(parsed) << parsed.error().message;
    const ToolRequest& tools = parsed->chat.tools;
    ASSERT_EQ(tools.functions.size(), 2u);
    EXPECT_EQ(tools.functions[0].name, "f");
    EXPECT_EQ(tools.functions[0].strict, true);
    EXPECT_EQ(tools.functions[0].parameters.dump(),
              R"({"type":"object","properties":{"z":{},"a":{}}})");
    EXPECT_FALSE(tools.functions[1].strict.has_value());
    EXPECT_TRUE(tools.functions[1].parameters.is_null());
    EXPECT_EQ(tools.choice, ToolRequest::Choice::automatic);
    EXPECT_TRUE(tools.parallel && tools.may_call() && !tools.must_call());
    // Templates read a description and parameters of every function.
    EXPECT_EQ(
        tools.declared.dump(),
        R"([{"type":"function","function":{"name":"f","description":"d","parameters":)"
        R"({"type":"object","properties":{"z":{},"a":{}}}}},{"type":"function","function":)"
        R"({"name":"g-1.x","description":"","parameters":{"type":"object","properties":{}}}}])");
    EXPECT_TRUE(parsed->unknown.empty());
}

TEST(ToolFields, ChoicesAreFour) {
    const auto choice = [](const std::string& word) {
        return parse(kTools + R"(, "tool_choice": )" + word)->chat.tools;
    };
    EXPECT_EQ(choice("\"auto\"").choice, ToolRequest::Choice::automatic);
    EXPECT_FALSE(choice("\"none\"").may_call());
    EXPECT_TRUE(choice("\"required\"").must_call());
    const ToolRequest named = choice(R"({"type": "function", "function": {"name": "g-1.x"}})");
    EXPECT_EQ(named.choice, ToolRequest::Choice::named);
    EXPECT_EQ(named.named, 1u);
    EXPECT_FALSE(parse(kTools + R"(, "parallel_tool_calls": false)")->chat.tools.parallel);
    EXPECT_EQ(fault(R"("tools": [], "tool_choice": "none")"), "accepted");
    EXPECT_EQ(fault(R"("tool_choice": "auto")"), "accepted");
}

TEST(ToolFields, FaultsAreNamedByTheirPlace) {
    EXPECT_EQ(fault(R"("tools": 3)"), "tools");
    EXPECT_EQ(fault(R"("tools": {})"), "tools");
    EXPECT_EQ(fault(R"("tools": [3])"), "tools[0]");
    EXPECT_EQ(fault(R"("tools": [{}])"), "tools[0].type");
    EXPECT_EQ(fault(R"("tools": [{"type": "web_search"}])"), "tools[0].type");
    EXPECT_EQ(fault(R"("tools": [{"type": "function"}])"), "tools[0].function");
    EXPECT_EQ(fault(R"("tools": [{"type": "function", "function": 3}])"), "tools[0].function");
    const auto function = [](const std::string& inner) {
        return fault(R"("tools": [{"type": "function", "function": )" + inner + "}]");
    };
    EXPECT_EQ(function("{}"), "tools[0].function.name");
    for (const char* name : {"3", "\"\"", "\"a b\"", "\"a\\n\"", "\"<｜tool▁sep｜>\""})
        EXPECT_EQ(function(std::string(R"({"name": )") + name + "}"), "tools[0].function.name");
    EXPECT_EQ(function(R"({"name": ")" + std::string(65, 'x') + "\"}"), "tools[0].function.name");
    EXPECT_EQ(function(R"({"name": "f", "description": 3})"), "tools[0].function.description");
    EXPECT_EQ(function(R"({"name": "f", "strict": "x"})"), "tools[0].function.strict");
    EXPECT_EQ(function(R"({"name": "f", "parameters": []})"), "tools[0].function.parameters");
    EXPECT_EQ(fault(R"("tools": [{"type": "function", "function": {"name": "f"}},
                                 {"type": "function", "function": {"name": "f"}}])"),
              "tools[1].function.name");
    EXPECT_EQ(fault(kTools + R"(, "tool_choice": "any")"), "tool_choice");
    EXPECT_EQ(fault(kTools + R"(, "tool_choice": 3)"), "tool_choice");
    EXPECT_EQ(fault(kTools + R"(, "tool_choice": {"type": "allowed_tools"})"), "tool_choice.type");
    EXPECT_EQ(fault(kTools + R"(, "tool_choice": {"type": "function"})"), "tool_choice.function");
    EXPECT_EQ(fault(kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})"),
              "tool_choice.function.name");
    EXPECT_EQ(fault(R"("tool_choice": "required")"), "tool_choice");
    EXPECT_EQ(fault(kTools + R"(, "parallel_tool_calls": 3)"), "parallel_tool_calls");
}

TEST(ToolFields, AreBounded) {
    ToolRequest tools = parse(kTools)->chat.tools;
    EXPECT_TRUE(check_tools(tools, {}));
    EXPECT_EQ(check_tools(tools, {.functions = 1}).error().field, "tools");
    EXPECT_EQ(check_tools(tools, {.bytes = 20}).error().field, "tools");
}

// ---- messages and reasoning ---------------------------------------------------------------------

std::string message_fault(const std::string& message) {
    const std::string text = R"({"messages": [)" + message + "]}";
    const auto body = parse_body(text);
    const auto parsed =
        parse_generation_request(*body, nlohmann::ordered_json::object(), Api::chat, {});
    return parsed ? parsed->chat.messages.dump() : parsed.error().field;
}

TEST(ToolMessages, CallsAndAnswersAreTaken) {
    EXPECT_EQ(message_fault(R"({"role": "assistant", "content": "", "tool_calls": [{"id": "c",
        "type": "function", "function": {"name": "f", "arguments": "{}"}}], "reasoning": "r"},
        {"role": "tool", "tool_call_id": "c", "content": "3"})"),
              R"([{"content":null,"reasoning_content":"r","role":"assistant","tool_calls":)"
              R"([{"function":{"arguments":"{}","name":"f"},"id":"c","type":"function"}]},)"
              R"({"content":"3","role":"tool","tool_call_id":"c"}])");
    EXPECT_EQ(message_fault(R"({"role": "assistant", "content": "x", "tool_calls": []})"),
              R"([{"content":"x","role":"assistant"}])");
    EXPECT_EQ(message_fault(R"({"role": "assistant"})"), R"([{"content":"","role":"assistant"}])");
}

TEST(ToolMessages, FaultsAreNamedByTheirPlace) {
    EXPECT_EQ(message_fault(R"({"role": "tool", "content": "3"})"), "messages[0].tool_call_id");
    EXPECT_EQ(message_fault(R"({"role": "tool", "tool_call_id": "c"})"), "messages[0].content");
    EXPECT_EQ(message_fault(R"({"role": "assistant", "tool_calls": 3})"), "messages[0].tool_calls");
    EXPECT_EQ(message_fault(R"({"role": "user", "content": "x", "tool_calls": [{}]})"),
              "messages[0].tool_calls");
    const auto call = [](const std::string& inner) {
        return message_fault(R"({"role": "assistant", "tool_calls": [)" + inner + "]}");
    };
    const std::string at = "messages[0].tool_calls[0]";
    EXPECT_EQ(call("3"), at);
    EXPECT_EQ(call("{}"), at + ".id");
    EXPECT_EQ(call(R"({"id": 3})"), at + ".id");
    EXPECT_EQ(call(R"({"id": "c", "type": "x"})"), at + ".type");
    EXPECT_EQ(call(R"({"id": "c"})"), at + ".function");
    EXPECT_EQ(call(R"({"id": "c", "function": {"arguments": "{}"}})"), at + ".function.name");
    EXPECT_EQ(call(R"({"id": "c", "function": {"name": "f"}})"), at + ".function.arguments");
    EXPECT_EQ(call(R"({"id": "c", "function": {"name": "f", "arguments": {}}})"),
              at + ".function.arguments");
}

TEST(Reasoning, FieldsAreTaken) {
    EXPECT_EQ(parse(R"("thinking_token_budget": 5)")->reasoning_budget, 5);
    EXPECT_EQ(parse(R"("max_reasoning_tokens": 0)")->reasoning_budget, 0);
    EXPECT_FALSE(parse("")->reasoning_budget.has_value());
    EXPECT_EQ(fault(R"("thinking_token_budget": 5, "max_reasoning_tokens": 6)"),
              "max_reasoning_tokens");
    EXPECT_EQ(fault(R"("thinking_token_budget": -1)"), "thinking_token_budget");
    EXPECT_EQ(fault(R"("thinking_token_budget": "x")"), "thinking_token_budget");
    EXPECT_EQ(parse(R"("reasoning_effort": "low")")->chat.reasoning_effort, "low");
    EXPECT_EQ(fault(R"("reasoning_effort": 3)"), "reasoning_effort");
}

}  // namespace
}  // namespace espalier::server
