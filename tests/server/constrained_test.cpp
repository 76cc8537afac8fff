// SPDX-License-Identifier: Apache-2.0
// Structured output, calls and reasoning over HTTP, by a model of random weights: it knows no JSON,
// so whatever is valid in its answers is the grammar's doing.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

RunningServer& server() {
    static RunningServer running({.model = tool_model()});
    return running;
}

Json chat(const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Weather in Paris?"}}}},
                 {"max_tokens", 1500},
                 {"temperature", 1.0},
                 {"seed", 11}};
    body.update(more);
    return body;
}

Answer post(const Json& more) { return server().client().post("/v1/chat/completions", chat(more)); }

Json choice(const Json& more) {
    const Answer answer = post(more);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"][0];
}

// Bounded on all sides, so that a random text comes to its end.
const Json kSchema = Json::parse(R"({"type": "object", "properties": {
    "name": {"type": "string", "enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0,
    "maximum": 99}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
    "required": ["name", "age", "tags"], "additionalProperties": false})");

void expect_valid(const Json& value) {
    ASSERT_TRUE(value.is_object()) << value;
    EXPECT_EQ(value.size(), 3u);
    EXPECT_TRUE(value["name"] == "Ann" || value["name"] == "Bob") << value;
    EXPECT_TRUE(value["age"].is_number_integer() && value["age"] >= 0 && value["age"] <= 99);
    EXPECT_LE(value["tags"].size(), 2u);
}

TEST(Constrained, EveryWayToAskHoldsTheText) {
    for (int seed = 0; seed < 4; ++seed) {
        const Json schema = {
            {"type", "json_schema"},
            {"json_schema", {{"name", "n"}, {"schema", kSchema}, {"strict", true}}}};
        const Json by_schema = choice({{"response_format", schema}, {"seed", seed}});
        EXPECT_EQ(by_schema["finish_reason"], "stop");
        expect_valid(Json::parse(by_schema["message"]["content"].get<std::string>()));
        const auto text = [&](const Json& more) {
            Json with_seed = more;
            with_seed["seed"] = seed;
            return choice(with_seed)["message"]["content"].get<std::string>();
        };
        expect_valid(Json::parse(text({{"structured_outputs", {{"json", kSchema}}}})));
        expect_valid(Json::parse(text({{"json_schema", kSchema.dump()}})));
        const std::regex digits("[0-9]{3}-[ab]{2}");
        EXPECT_TRUE(std::regex_match(text({{"regex", "[0-9]{3}-[ab]{2}"}}), digits));
        EXPECT_TRUE(std::regex_match(
            text({{"structured_outputs", {{"regex", "[0-9]{3}-[ab]{2}"}}}}), digits));
        const std::string chosen = text({{"structured_outputs", {{"choice", {"yes", "no"}}}}});
        EXPECT_TRUE(chosen == "yes" || chosen == "no") << chosen;
        EXPECT_EQ(text({{"ebnf", "root ::= \"x\" [0-9]"}}).size(), 2u);
        EXPECT_EQ(text({{"structured_outputs", {{"grammar", "root ::= \"x\" [0-9]"}}}}).size(), 2u);
    }
}

TEST(Constrained, AStreamHasTheSameText) {
    const Json asked = {{"structured_outputs", {{"json", kSchema}}}};
    const std::string whole = choice(asked)["message"]["content"];
    Json streamed = asked;
    streamed["stream"] = true;
    std::string text;
    for (const std::string& event : post(streamed).events())
        if (event != "[DONE]")
            text += Json::parse(event)["choices"][0]["delta"].value("content", "");
    EXPECT_EQ(text, whole);
    Json completion = RunningServer::completion("abc", 1500);
    completion.erase("ignore_eos");
    completion.erase("model");
    completion.update(asked);
    const Answer answer = server().client().post("/v1/completions", completion);
    ASSERT_EQ(answer.status, 200) << answer.body;
    expect_valid(Json::parse(answer.json()["choices"][0]["text"].get<std::string>()));
}

TEST(Constrained, ABadSchemaIsNamedAndOthersGoOn) {
    const auto fault = [](const Json& more) {
        const Answer answer = post(more);
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.param();
    };
    EXPECT_EQ(fault({{"regex", "(("}}), "regex");
    EXPECT_EQ(fault({{"ebnf", "no rules"}}), "ebnf");
    EXPECT_EQ(fault({{"json_schema", "{"}}), "json_schema");
    EXPECT_EQ(fault({{"response_format",
                      {{"type", "json_schema"},
                       {"json_schema", {{"name", "n"}, {"schema", {{"type", "nonsense"}}}}}}}}),
              "response_format.json_schema.schema");
    EXPECT_EQ(fault({{"regex", "a+"}, {"ignore_eos", true}}), "ignore_eos");
    EXPECT_EQ(fault({{"regex", "a+"}, {"min_tokens", 3}}), "min_tokens");
    EXPECT_EQ(choice({{"max_tokens", 3}})["finish_reason"], "length");
}

// ---- calls --------------------------------------------------------------------------------------

Json tools() {
    const auto function = [](const char* name, const Json& parameters) {
        return Json{{"type", "function"},
                    {"function", {{"name", name}, {"parameters", parameters}, {"strict", true}}}};
    };
    return Json::array(
        {function("save", kSchema), function("stop", {{"type", "object"},
                                                      {"properties", Json::object()},
                                                      {"additionalProperties", false}})});
}

void expect_valid_call(const Json& call) {
    const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
    if (call["function"]["name"] == "save")
        expect_valid(arguments);
    else
        EXPECT_EQ(arguments, Json::object());
}

TEST(Constrained, RequiredCallsHoldToTheirSchemas) {
    for (int seed = 0; seed < 6; ++seed) {
        const Json made = choice({{"tools", tools()},
                                  {"tool_choice", "required"},
                                  {"parallel_tool_calls", false},
                                  {"seed", seed}});
        EXPECT_EQ(made["finish_reason"], "tool_calls") << made;
        EXPECT_TRUE(made["message"]["content"].is_null());
        ASSERT_EQ(made["message"]["tool_calls"].size(), 1u);
        expect_valid_call(made["message"]["tool_calls"][0]);
    }
    const Json named =
        choice({{"tools", tools()},
                {"tool_choice", {{"type", "function"}, {"function", {{"name", "stop"}}}}}});
    EXPECT_EQ(named["message"]["tool_calls"][0]["function"]["name"], "stop");
}

TEST(Constrained, ParallelCallsAreHeldEach) {
    std::size_t most = 0;
    for (int seed = 0; seed < 8; ++seed) {
        const Json made = choice({{"tools", tools()}, {"tool_choice", "required"}, {"seed", seed}});
        const Json& calls = made["message"]["tool_calls"];
        most = std::max(most, calls.size());
        // The last of a text that was cut off may be unfinished.
        const bool cut = made["finish_reason"] == "length";
        for (std::size_t i = 0; i + (cut ? 1 : 0) < calls.size(); ++i) expect_valid_call(calls[i]);
    }
    EXPECT_GT(most, 1u);
}

TEST(Constrained, CallsAreStreamedAsTheyCome) {
    const Json asked = {
        {"tools", tools()}, {"tool_choice", "required"}, {"parallel_tool_calls", false}};
    const Json whole = choice(asked);
    Json streamed = asked;
    streamed["stream"] = true;
    std::string name, arguments, finish;
    int pieces = 0;
    for (const std::string& event : post(streamed).events()) {
        if (event == "[DONE]") continue;
        const Json one = Json::parse(event)["choices"][0];
        if (!one["finish_reason"].is_null()) finish = one["finish_reason"];
        if (!one["delta"].contains("tool_calls")) continue;
        const Json& call = one["delta"]["tool_calls"][0];
        EXPECT_EQ(call["index"], 0);
        name += call["function"].value("name", "");
        arguments += call["function"]["arguments"].get<std::string>();
        ++pieces;
    }
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_GT(pieces, 2);
    EXPECT_EQ(name, whole["message"]["tool_calls"][0]["function"]["name"]);
    EXPECT_EQ(arguments, whole["message"]["tool_calls"][0]["function"]["arguments"]);
}

TEST(Constrained, ATextMayBeHeldBesideCalls) {
    for (int seed = 0; seed < 4; ++seed) {
        const Json made = choice({{"tools", tools()},
                                  {"structured_outputs", {{"choice", {"yes", "no"}}}},
                                  {"parallel_tool_calls", false},
                                  {"seed", seed}});
        if (made["message"].contains("tool_calls"))
            expect_valid_call(made["message"]["tool_calls"][0]);
        else
            EXPECT_TRUE(made["message"]["content"] == "yes" || made["message"]["content"] == "no");
    }
}

// A bias towards the first marker stands for a model that likes to call.
TEST(Constrained, AStrictFunctionIsHeldWhereTheModelChooses) {
    const text::Tokenizer& tokenizer = *server().runtime->files().tokenizer;
    const std::string marker = std::to_string(*tokenizer.id_of("<｜tool▁calls▁begin｜>"));
    for (int seed = 0; seed < 4; ++seed) {
        const Json called = choice({{"tools", tools()},
                                    {"parallel_tool_calls", false},
                                    {"logit_bias", {{marker, 100}}},
                                    {"seed", seed}});
        EXPECT_EQ(called["finish_reason"], "tool_calls") << called;
        ASSERT_EQ(called["message"]["tool_calls"].size(), 1u) << called;
        expect_valid_call(called["message"]["tool_calls"][0]);
        const Json text = choice({{"tools", tools()},
                                  {"logit_bias", {{marker, -100}}},
                                  {"max_tokens", 20},
                                  {"seed", seed}});
        EXPECT_FALSE(text["message"].contains("tool_calls")) << text;
        EXPECT_FALSE(text["message"]["content"].get<std::string>().empty());
    }
}

TEST(Constrained, ABadFunctionIsNamed) {
    Json wrong = tools();
    wrong[1]["function"]["parameters"] = {{"type", "nonsense"}};
    const Answer answer = post({{"tools", wrong}, {"tool_choice", "required"}});
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.param(), "tools[1].function.parameters");
}

// A schema that no grammar holds.
const Json kUnique = Json::parse(R"({"type": "object", "properties": {
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true}},
    "required": ["tags"], "additionalProperties": false})");

TEST(Constrained, AFunctionInsistsOnItsSchemaOnlyWhereItSaysStrict) {
    const auto unique = [](const Json& strict) {
        Json function = {{"name", "save"}, {"parameters", kUnique}};
        if (!strict.is_null()) function["strict"] = strict;
        return Json::array({{{"type", "function"}, {"function", function}}});
    };
    const Json ways[] = {
        {{"tool_choice", "required"}},
        {{"tool_choice", {{"type", "function"}, {"function", {{"name", "save"}}}}}},
        {{"parallel_tool_calls", false}}};
    for (const Json& way : ways)
        for (const Json& strict : {Json(), Json(false)}) {
            Json more = way;
            more.update({{"tools", unique(strict)}, {"max_tokens", 3}});
            EXPECT_EQ(post(more).status, 200) << post(more).body;
        }
    const Answer refused = post({{"tools", unique(true)}, {"tool_choice", "required"}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.param(), "tools[0].function.parameters");
    EXPECT_NE(refused.message().find("'uniqueItems'"), std::string::npos) << refused.body;
    EXPECT_NE(refused.message().find("\"strict\": false"), std::string::npos) << refused.body;
    // A grammar holds what it can, whether it was asked for or not.
    Json held = tools();
    for (Json& one : held) one["function"].erase("strict");
    const Json made =
        choice({{"tools", held}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
    expect_valid_call(made["message"]["tool_calls"][0]);
}

TEST(Constrained, AnAnswerInsistsOnItsSchemaUnlessItSaysOtherwise) {
    const auto format = [](const Json& strict) {
        Json schema = {{"name", "n"}, {"schema", kUnique}};
        if (!strict.is_null()) schema["strict"] = strict;
        return Json{{"response_format", {{"type", "json_schema"}, {"json_schema", schema}}},
                    {"max_tokens", 3}};
    };
    for (const Json& strict : {Json(), Json(true)}) {
        const Answer refused = post(format(strict));
        EXPECT_EQ(refused.status, 400);
        EXPECT_EQ(refused.param(), "response_format.json_schema.schema");
        EXPECT_NE(refused.message().find("\"strict\": false"), std::string::npos) << refused.body;
    }
    EXPECT_EQ(post(format(false)).status, 200) << post(format(false)).body;
    // A schema that is no JSON is the request's fault, also where it stands beside tools.
    const Answer broken = post({{"tools", tools()}, {"structured_outputs", {{"json", "{"}}}});
    EXPECT_EQ(broken.status, 400) << broken.body;
}

TEST(Constrained, AGrammarWithoutAnEndIsRefusedBeforeAnythingRuns) {
    for (const char* endless : {"root ::= root", "root ::= \"a\" root"}) {
        const Answer refused = server().client().post(
            "/v1/completions", Json{{"prompt", {"a", "b"}},
                                    {"max_tokens", 3},
                                    {"structured_outputs", {{"grammar", endless}}}});
        EXPECT_EQ(refused.status, 400) << refused.body;
        EXPECT_EQ(refused.param(), "structured_outputs.grammar");
    }
}

TEST(Constrained, WhiteSpaceMayBeLeast) {
    ServerOptions options = test_options();
    options.json_whitespace = "least";
    RunningServer tight({.server = options, .model = tool_model()});
    const Json body = {{"prompt", "x"}, {"max_tokens", 500}, {"temperature", 1.0}, {"seed", 3}};
    for (const Json& asked :
         {Json{{"json_schema", kSchema}}, Json{{"structured_outputs", {{"json", kSchema}}}}}) {
        Json all = body;
        all.update(asked);
        const Json answer = tight.client().post("/v1/completions", all).json();
        const std::string text = answer["choices"][0]["text"];
        expect_valid(Json::parse(text));
        // Python's json.dumps writes it so.
        std::string spaced;
        for (const char c : Json::parse(text).dump()) {
            spaced += c;
            if (c == ':' || c == ',') spaced += ' ';
        }
        std::string sorted_text = text, sorted_spaced = spaced;
        std::ranges::sort(sorted_text);
        std::ranges::sort(sorted_spaced);
        EXPECT_EQ(sorted_text, sorted_spaced) << text;  // the order of keys is the schema's
    }
}

TEST(Constrained, ToolsAreBounded) {
    ServerOptions options = test_options();
    options.max_tools = 1;
    RunningServer small({.server = options, .model = tool_model()});
    const Answer answer = small.client().post("/v1/chat/completions", chat({{"tools", tools()}}));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.param(), "tools");
}

// Arguments and answers of earlier turns are text, whatever they say.
TEST(Constrained, TheHistoryIsRenderedAndItsContentIsNoToken) {
    const Json messages = Json::parse(R"([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "save", "arguments": "{\"x\": \"<｜tool▁sep｜>\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "<think>"}])");
    Client client = server().client();
    const Json body = {{"messages", messages}, {"tools", tools()}};
    const std::string prompt = client.post("/apply-template", body).json()["prompt"];
    EXPECT_NE(prompt.find("<｜tool▁call▁begin｜>save<｜tool▁sep｜>{\"x\""), std::string::npos);
    EXPECT_NE(prompt.find("[tool]<think>"), std::string::npos) << prompt;
    const Json tokens = client.post("/tokenize", body).json()["tokens"];
    const text::Tokenizer& tokenizer = *server().runtime->files().tokenizer;
    const auto count = [&](const char* marker) {
        return std::count(tokens.begin(), tokens.end(), Json(*tokenizer.id_of(marker)));
    };
    EXPECT_EQ(count("<｜tool▁sep｜>"), 1);
    EXPECT_EQ(count("<think>"), 0);
    EXPECT_EQ(count("</think>"), 1);
}

// ---- reasoning ----------------------------------------------------------------------------------

TEST(Constrained, AGrammarBeginsWhereReasoningEnds) {
    for (const char* name : {"thinking", "enable_thinking"}) {
        const Answer answer = post({{"chat_template_kwargs", {{name, true}}},
                                    {"thinking_token_budget", 12},
                                    {"regex", "[0-9]{4}"}});
        ASSERT_EQ(answer.status, 200) << answer.body;
        const Json whole = answer.json();
        const Json& message = whole["choices"][0]["message"];
        EXPECT_TRUE(
            std::regex_match(message["content"].get<std::string>(), std::regex("[0-9]{4}")));
        EXPECT_FALSE(message["reasoning_content"].get<std::string>().empty());
        const Json& details = whole["usage"]["completion_tokens_details"];
        EXPECT_LE(details["reasoning_tokens"], 12);
        EXPECT_GT(details["reasoning_tokens"], 0);
    }
    // Closed by the template: all is answer.
    const Json closed = choice({{"regex", "[0-9]{4}"}, {"thinking_token_budget", 12}});
    EXPECT_FALSE(closed["message"].contains("reasoning_content"));
    EXPECT_EQ(closed["message"]["content"].get<std::string>().size(), 4u);
}

TEST(Constrained, ABudgetOfNothingClosesTheReasoningAtOnce) {
    const Json made = choice({{"chat_template_kwargs", {{"thinking", true}}},
                              {"max_reasoning_tokens", 0},
                              {"tools", tools()},
                              {"tool_choice", "required"},
                              {"parallel_tool_calls", false}});
    EXPECT_EQ(made["message"]["reasoning_content"], "");
    ASSERT_EQ(made["message"]["tool_calls"].size(), 1u) << made;
    expect_valid_call(made["message"]["tool_calls"][0]);
}

}  // namespace
}  // namespace espalier::server::test
