// SPDX-License-Identifier: Apache-2.0
// Grammars, calls and reasoning by a client that means harm, or combines what is seldom combined.
// Whatever comes is answered by itself: 200 with a text that holds, or 400 with the field's name;
// a stream beside it has the text that it has alone.
#include <gtest/gtest.h>

#include <regex>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

RunningServer& server() {
    static RunningServer running({.speculate = {"auto"}, .model = tool_model()});
    return running;
}

Json chat(const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Weather in Paris?"}}}},
                 {"max_tokens", 600},
                 {"temperature", 2.0},
                 {"seed", 5}};
    body.update(more);
    return body;
}

Answer post(const Json& more) { return server().client().post("/v1/chat/completions", chat(more)); }

Json answered(const Json& more) {
    const Answer answer = post(more);
    EXPECT_EQ(answer.status, 200) << more.dump().substr(0, 200) << answer.body;
    return answer.status == 200 ? answer.json() : Json();
}

std::string repeated(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
}

// Alternatives that double with each definition.
std::string doubling_schema(int levels) {
    Json definitions = {{"d0", {{"type", "null"}}}};
    for (int i = 1; i <= levels; ++i) {
        const Json below = {{"$ref", "#/$defs/d" + std::to_string(i - 1)}};
        definitions["d" + std::to_string(i)] = {{"type", "object"},
                                                {"properties", {{"a", below}, {"b", below}}},
                                                {"required", {"a", "b"}},
                                                {"additionalProperties", false}};
    }
    return Json{{"$ref", "#/$defs/d" + std::to_string(levels)}, {"$defs", definitions}}.dump();
}

std::vector<Json> bombs() {
    std::vector<Json> all;
    const auto regex = [&](const std::string& text) { all.push_back({{"regex", text}}); };
    const auto schema = [&](const std::string& text) { all.push_back({{"json_schema", text}}); };
    const auto ebnf = [&](const std::string& text) { all.push_back({{"ebnf", text}}); };
    regex("(((a{1000}){1000}){1000})");
    regex(repeated("(a|b|", 500) + "c" + repeated(")", 500));
    regex("a{99999999999999999999}");
    regex(repeated("(.{0,500}){0,500}", 20));
    regex("(?<=a)b");
    regex("(a)\\1");
    schema(repeated(R"({"items":)", 3000) + "{}" + repeated("}", 3000));
    schema(R"({"$ref":"#"})");
    schema(R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}]})");
    schema(R"({"type":"string","maxLength":1000000000})");
    schema(R"x({"type":"string","pattern":"((((a{99}){99}){99}){99})"})x");
    schema(R"({"type":"integer","multipleOf":0})");
    schema(R"({"type":"number","minimum":1e400})");
    schema(R"({"not":{}})");
    schema(R"({"$ref":"http://example.com/schema"})");
    schema("[1, 2");
    schema("null");
    ebnf("root ::= root root | root");
    ebnf("root ::= a{200}\na ::= b{200}\nb ::= c{200}\nc ::= \"x\"");
    ebnf("root ::= " + repeated("(", 5000) + "\"a\"" + repeated(")", 5000));
    ebnf("root[max_tokens=3] ::= \"a\"");
    ebnf("root ::= undefined");
    ebnf("root ::= \"");
    all.push_back({{"structured_outputs", {{"choice", Json::array()}}}});
    all.push_back({{"structured_outputs", {{"choice", std::vector<std::string>(5000, "a")}}}});
    all.push_back({{"structured_outputs", {{"structural_tag", "{\"format\":{\"type\":\"x\"}}"}}}});
    all.push_back({{"structured_outputs", {{"regex", "a"}, {"choice", {"a"}}}}});
    return all;
}

TEST(HostileGrammar, BombsAreRefusedByNameAndAStreamBesideThemHasItsOwnText) {
    const Json streamed = {{"max_tokens", 1500}, {"seed", 7}, {"stream", true}};
    const std::vector<std::string> alone = post(streamed).events();
    Client stream = server().client();
    ASSERT_TRUE(stream.send(request_text("POST", "/v1/chat/completions", chat(streamed).dump())));
    for (const Json& bomb : bombs()) {
        const Answer answer = post(bomb);
        EXPECT_EQ(answer.status, 400)
            << bomb.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 200)
            << answer.body;
        EXPECT_LT(answer.body.size(), 4096u);
    }
    const auto texts = [](const std::vector<std::string>& events) {
        std::string text;
        for (const std::string& event : events)
            if (event != "[DONE]")
                text += Json::parse(event)["choices"][0]["delta"].value("content", "");
        return text;
    };
    EXPECT_EQ(texts(stream.receive().events()), texts(alone));
    EXPECT_TRUE(server().becomes_idle());
}

// Large, and not refused: what they cost is the compiler's business, and its answer is held.
TEST(HostileGrammar, WhatIsWithinTheLimitsIsHeld) {
    const Json deep = answered({{"json_schema", doubling_schema(4)}, {"max_tokens", 4000}});
    if (deep["choices"][0]["finish_reason"] == "stop") {
        EXPECT_TRUE(
            Json::parse(deep["choices"][0]["message"]["content"].get<std::string>()).contains("a"));
    }
    const std::string digits =
        answered({{"regex", "([0-9]{1,9}[a-f]){20}"}})["choices"][0]["message"]["content"];
    EXPECT_TRUE(std::regex_match(digits, std::regex("([0-9]{1,9}[a-f]){20}"))) << digits;
}

TEST(HostileGrammar, ManySeedsAtTemperatureTwoHold) {
    const Json schema = Json::parse(R"({"type": "object", "properties": {
        "s": {"type": "string", "maxLength": 12}, "t": {"type": "string", "minLength": 5, "maxLength": 6},
        "n": {"enum": [1, "é", null]}}, "required": ["s", "t", "n"], "additionalProperties": false})");
    for (int seed = 0; seed < 25; ++seed) {
        const Json one = answered({{"structured_outputs", {{"json", schema}}}, {"seed", seed}});
        if (one["choices"][0]["finish_reason"] != "stop") continue;
        const Json value =
            Json::parse(one["choices"][0]["message"]["content"].get<std::string>(), nullptr, false);
        ASSERT_FALSE(value.is_discarded()) << one;
        const auto characters = [&](const char* name) {
            const std::string text = value[name].get<std::string>();
            return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
        };
        EXPECT_LE(characters("s"), 12);
        EXPECT_TRUE(characters("t") == 5 || characters("t") == 6) << value;
    }
}

// Each choice has a matcher of its own.
TEST(HostileGrammar, EveryOneOfManyChoicesHolds) {
    const Json many =
        answered({{"regex", "[a-d]{3,40}[0-9]{5}"}, {"n", 5}, {"stop", Json::array({"zzz"})}});
    ASSERT_EQ(many["choices"].size(), 5u);
    for (const Json& one : many["choices"]) {
        EXPECT_EQ(one["finish_reason"], "stop");
        EXPECT_TRUE(std::regex_match(one["message"]["content"].get<std::string>(),
                                     std::regex("[a-d]{3,40}[0-9]{5}")))
            << one;
    }
}

// A stop string cuts the text wherever it is met, in the middle of a grammar too.
TEST(HostileGrammar, AStopStringCutsAGrammarsText) {
    const Json cut = answered({{"regex", "[ab]{20}-[0-9]{6}-end"}, {"stop", {"-"}}});
    const std::string text = cut["choices"][0]["message"]["content"];
    EXPECT_TRUE(std::regex_match(text, std::regex("[ab]{20}"))) << text;
    EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
    // Inside forced text, and with the marker kept.
    const Json kept =
        answered({{"regex", "abcdefgh"}, {"stop", {"def"}}, {"include_stop_str_in_output", true}});
    EXPECT_EQ(kept["choices"][0]["message"]["content"], "abcdef");
}

// Everything legal is forbidden by a bias: such a request ends alone, or is drawn all the same.
TEST(HostileGrammar, ABiasAgainstAllThatIsLegalEndsNobodyElse) {
    const text::Tokenizer& tokenizer = *server().runtime->files().tokenizer;
    Json bias = Json::object();
    for (const char* text : {"y", "ye", "yes", "n", "no"}) {
        const auto tokens = tokenizer.encode(text);
        for (const TokenId token : tokens.value()) bias[std::to_string(token)] = -100;
    }
    const Json made =
        answered({{"structured_outputs", {{"choice", {"yes", "no"}}}}, {"logit_bias", bias}});
    const std::string text = made["choices"][0]["message"]["content"];
    EXPECT_TRUE(text == "yes" || text == "no") << text;
}

TEST(HostileGrammar, ReasoningBudgetsOfNothingAndOfOneAreKept) {
    for (const int budget : {0, 1, 2})
        for (int seed = 0; seed < 4; ++seed) {
            const Json made = answered({{"chat_template_kwargs", {{"thinking", true}}},
                                        {"thinking_token_budget", budget},
                                        {"structured_outputs", {{"choice", {"yes", "no"}}}},
                                        {"seed", seed}});
            const std::string text = made["choices"][0]["message"]["content"];
            EXPECT_TRUE(text == "yes" || text == "no") << made;
            const Json& usage = made["usage"];
            EXPECT_LE(usage["completion_tokens_details"]["reasoning_tokens"], budget);
            EXPECT_LE(usage["completion_tokens_details"]["reasoning_tokens"],
                      usage["completion_tokens"]);
        }
}

Json one_tool(const char* name) {
    return Json::array({{{"type", "function"},
                         {"function",
                          {{"name", name},
                           {"parameters",
                            {{"type", "object"},
                             {"properties", {{"x", {{"type", "string"}, {"maxLength", 30}}}}},
                             {"required", {"x"}},
                             {"additionalProperties", false}}}}}}});
}

TEST(HostileGrammar, AChoiceOfAFunctionThatIsNotThereIsNamed) {
    const Json named = {{"type", "function"}, {"function", {{"name", "other"}}}};
    const Answer unknown = post({{"tools", one_tool("save")}, {"tool_choice", named}});
    EXPECT_EQ(unknown.status, 400) << unknown.body;
    EXPECT_EQ(unknown.param().substr(0, 11), "tool_choice") << unknown.body;
    EXPECT_EQ(post({{"tool_choice", "required"}}).status, 400);
    EXPECT_EQ(post({{"tools", one_tool("a b\"c")}}).status, 400);
    EXPECT_EQ(post({{"tools", one_tool("save")}, {"tool_choice", "sometimes"}}).status, 400);
}

// Streamed calls, put together, are what comes in one piece: at temperature 2, cut by
// max_tokens at every place of a call.
TEST(HostileGrammar, CallsCutAnywhereAreStreamedAsTheyAreAnswered) {
    const auto joined = [](const std::vector<std::string>& events) {
        Json message = {{"content", ""}, {"calls", Json::array()}, {"finish", nullptr}};
        for (const std::string& event : events) {
            if (event == "[DONE]") continue;
            const Json one = Json::parse(event)["choices"][0];
            if (!one["finish_reason"].is_null()) message["finish"] = one["finish_reason"];
            const Json& delta = one["delta"];
            if (delta.contains("content") && delta["content"].is_string())
                message["content"] =
                    message["content"].get<std::string>() + delta["content"].get<std::string>();
            if (!delta.contains("tool_calls")) continue;
            for (const Json& call : delta["tool_calls"]) {
                const std::size_t index = call["index"];
                if (index == message["calls"].size()) message["calls"].push_back({"", ""});
                Json& kept = message["calls"].at(index);
                kept[0] = kept[0].get<std::string>() + call["function"].value("name", "");
                kept[1] = kept[1].get<std::string>() + call["function"].value("arguments", "");
            }
        }
        return message;
    };
    for (int length = 1; length < 60; length += 3) {
        const Json asked = {{"tools", one_tool("save")},
                            {"tool_choice", "required"},
                            {"parallel_tool_calls", length % 2 == 0},
                            {"max_tokens", length}};
        Json streamed = asked;
        streamed["stream"] = true;
        const Json pieces = joined(post(streamed).events());
        const Json whole = answered(asked)["choices"][0];
        EXPECT_EQ(pieces["finish"], whole["finish_reason"]) << length;
        const Json& content = whole["message"]["content"];
        EXPECT_EQ(pieces["content"], content.is_null() ? Json("") : content) << length;
        Json calls = Json::array();
        if (whole["message"].contains("tool_calls"))
            for (const Json& call : whole["message"]["tool_calls"])
                calls.push_back({call["function"]["name"], call["function"]["arguments"]});
        EXPECT_EQ(pieces["calls"], calls) << length << whole;
    }
}

}  // namespace
}  // namespace espalier::server::test
