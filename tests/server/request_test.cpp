// SPDX-License-Identifier: Apache-2.0
// Bodies to typed requests: what each field becomes, and who is named when one is wrong.
#include <gtest/gtest.h>

#include "server/body.hpp"
#include "server/generation_request.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

Expected<GenerationRequest> parse(const Json& body, Api api = Api::completions) {
    const auto ordered = parse_ordered(body.dump(), body);
    if (!ordered) return tl::unexpected<Error>(ordered.error());
    return parse_generation_request(body, *ordered, api, {});
}

Json completion(const Json& more = Json::object()) {
    Json body = {{"prompt", "abc"}};
    body.update(more);
    return body;
}

Json chat(const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return body;
}

std::string fault(const Json& body, Api api = Api::completions) {
    const auto parsed = parse(body, api);
    return parsed ? "accepted" : parsed.error().field;
}

TEST(GenerationRequest, TakesEveryFieldOfACompletion) {
    const auto parsed = parse(completion({{"model", "m"},
                                          {"max_tokens", 5},
                                          {"temperature", 0.5},
                                          {"top_p", 0.9},
                                          {"top_k", 7},
                                          {"min_p", 0.1},
                                          {"repetition_penalty", 1.1},
                                          {"presence_penalty", 0.2},
                                          {"frequency_penalty", -0.3},
                                          {"logit_bias", {{"5", -100}, {"7", 1.5}}},
                                          {"seed", 3},
                                          {"stop", {"a", "b"}},
                                          {"stop_token_ids", {1, 2}},
                                          {"min_tokens", 2},
                                          {"ignore_eos", true},
                                          {"n", 3},
                                          {"best_of", 3},
                                          {"logprobs", 2},
                                          {"echo", true},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}},
                                          {"speculate", false},
                                          {"draft_depth", 3},
                                          {"speculation_report", true},
                                          {"priority", 4},
                                          {"cache_salt", "s"},
                                          {"user", "u"}}));
    ASSERT_TRUE(parsed) << parsed.error().message;
    const engine::Request& engine = parsed->engine;
    EXPECT_EQ(parsed->model, "m");
    EXPECT_EQ(engine.output.max_tokens, 5);
    EXPECT_FLOAT_EQ(engine.sampling.temperature, 0.5f);
    EXPECT_FLOAT_EQ(engine.sampling.top_p, 0.9f);
    EXPECT_EQ(engine.sampling.top_k, 7);
    EXPECT_FLOAT_EQ(engine.sampling.min_p, 0.1f);
    EXPECT_FLOAT_EQ(engine.sampling.repetition_penalty, 1.1f);
    EXPECT_FLOAT_EQ(engine.sampling.presence_penalty, 0.2f);
    EXPECT_FLOAT_EQ(engine.sampling.frequency_penalty, -0.3f);
    ASSERT_EQ(engine.sampling.logit_bias.size(), 2u);
    EXPECT_EQ(engine.sampling.logit_bias[1].token, 7);
    EXPECT_FLOAT_EQ(engine.sampling.logit_bias[1].bias, 1.5f);
    EXPECT_EQ(engine.sampling.seed, 3u);
    EXPECT_TRUE(parsed->seed_given);
    EXPECT_EQ(engine.output.stop, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(engine.output.stop_token_ids, (std::vector<std::int32_t>{1, 2}));
    EXPECT_EQ(engine.output.min_tokens, 2);
    EXPECT_TRUE(engine.output.ignore_eos);
    EXPECT_EQ(engine.choices, 3);
    EXPECT_EQ(engine.output.top_logprobs, 2);
    EXPECT_EQ(engine.output.prompt_top_logprobs, 2);
    EXPECT_TRUE(parsed->logprobs && parsed->echo && parsed->stream && parsed->include_usage);
    EXPECT_FALSE(engine.speculate);
    EXPECT_EQ(engine.draft_depth, 3);
    EXPECT_TRUE(parsed->speculation_report);
    EXPECT_EQ(engine.priority, 4);
    EXPECT_EQ(parsed->cache_salt, "s");
    EXPECT_TRUE(parsed->unknown.empty());
}

TEST(GenerationRequest, DefaultsAreTheCheckpointsAndOpenAis) {
    checkpoint::GenerationDefaults defaults;
    defaults.temperature = 0.6;
    defaults.top_p = 0.95;
    defaults.top_k = 40;
    const auto none = nlohmann::ordered_json::object();
    auto parsed = parse_generation_request(completion(), none, Api::completions, defaults);
    ASSERT_TRUE(parsed);
    EXPECT_FLOAT_EQ(parsed->engine.sampling.temperature, 0.6f);
    EXPECT_FLOAT_EQ(parsed->engine.sampling.top_p, 0.95f);
    EXPECT_EQ(parsed->engine.sampling.top_k, 40);
    EXPECT_EQ(parsed->engine.output.max_tokens, 16);
    EXPECT_FALSE(parsed->engine.logprobs);
    EXPECT_FALSE(parsed->seed_given);
    parsed = parse_generation_request(completion({{"temperature", 1}, {"top_k", nullptr}}), none,
                                      Api::completions, defaults);
    EXPECT_FLOAT_EQ(parsed->engine.sampling.temperature, 1.0f);
    EXPECT_EQ(parsed->engine.sampling.top_k, 40);
    // A chat may use the whole context.
    EXPECT_GT(parse(chat(), Api::chat)->engine.output.max_tokens, 1 << 30);
}

TEST(GenerationRequest, MinusOneIsNoNumber) {
    const auto parsed = parse(completion({{"seed", -1}, {"max_tokens", -1}}));
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_FALSE(parsed->seed_given);
    EXPECT_FALSE(parsed->max_tokens);
    EXPECT_GT(parsed->engine.output.max_tokens, 1 << 30);
    EXPECT_TRUE(parse(completion({{"seed", 0xffffffffffffffffu}}))->seed_given);
    for (const Json& seed : {Json(-2), Json(-1.5), Json("7"), Json(1e30)})
        EXPECT_EQ(fault(completion({{"seed", seed}})), "seed") << seed;
    EXPECT_EQ(fault(completion({{"max_tokens", -2}})), "max_tokens");
}

TEST(GenerationRequest, OfTwoLimitsTheNewerNameCounts) {
    for (const Api api : {Api::completions, Api::chat}) {
        Json body = api == Api::chat ? chat() : completion();
        body.update({{"max_tokens", 3}, {"max_completion_tokens", 9}});
        const auto parsed = parse(body, api);
        ASSERT_TRUE(parsed) << parsed.error().message;
        EXPECT_EQ(parsed->engine.output.max_tokens, 9);
        EXPECT_EQ(parsed->max_tokens_field, std::string("max_completion_tokens"));
    }
    EXPECT_EQ(fault(chat({{"max_completion_tokens", 0}}), Api::chat), "max_completion_tokens");
}

TEST(GenerationRequest, AnAssistantMayHaveSaidNothing) {
    const auto parsed = parse(chat({{"messages",
                                     {{{"role", "assistant"}, {"content", nullptr}},
                                      {{"role", "user"}, {"content", "x"}}}}}),
                              Api::chat);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->chat.messages[0]["content"], "");
    EXPECT_EQ(fault(chat({{"messages", {{{"role", "user"}, {"content", nullptr}}}}}), Api::chat),
              "messages[0].content");
}

TEST(GenerationRequest, PicturesAreRefusedInWords) {
    const Json part = {{"type", "image_url"}, {"image_url", {{"url", "data:,"}}}};
    const auto parsed = parse(
        chat({{"messages", {{{"role", "user"}, {"content", Json::array({part})}}}}}), Api::chat);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().field, "messages[0].content[0]");
    EXPECT_NE(parsed.error().message.find("'image_url': this model takes text alone"),
              std::string::npos)
        << parsed.error().message;
}

TEST(GenerationRequest, PromptsComeInFourForms) {
    const auto prompts = [](const Json& prompt) { return parse({{"prompt", prompt}})->prompts; };
    EXPECT_EQ(prompts("x"), (std::vector<PromptInput>{"x"}));
    EXPECT_EQ(prompts({1, 2}), (std::vector<PromptInput>{std::vector<std::int32_t>{1, 2}}));
    EXPECT_EQ(prompts({"a", "b"}), (std::vector<PromptInput>{"a", "b"}));
    EXPECT_EQ(
        prompts(Json::parse("[[1],[2,3]]")),
        (std::vector<PromptInput>{std::vector<std::int32_t>{1}, std::vector<std::int32_t>{2, 3}}));
    EXPECT_EQ(fault(Json::object()), "prompt");
    for (const char* wrong :
         {"3", "true", "{}", "[1.5]", "[-1]", "[3000000000]", "[true]", "[null]"})
        EXPECT_EQ(fault({{"prompt", Json::parse(wrong)}}), "prompt") << wrong;
    EXPECT_EQ(fault({{"prompt", Json::parse(R"(["a", 3])")}}), "prompt[1]");
    EXPECT_EQ(fault({{"prompt", Json::parse(R"([[1], [2, "x"]])")}}), "prompt[1]");
    EXPECT_EQ(fault({{"prompt", Json(std::vector<std::string>(129, "x"))}}), "prompt");
    EXPECT_EQ(fault({{"prompt", Json(std::vector<std::string>(65, "x"))}, {"n", 2}}), "n");
}

TEST(GenerationRequest, EveryFieldRefusesEveryWrongType) {
    const std::vector<std::pair<const char*, std::set<std::string>>> fields = {
        {"model", {"string"}},
        {"max_tokens", {"integer"}},
        {"temperature", {"number"}},
        {"top_p", {"number"}},
        {"top_k", {"integer"}},
        {"min_p", {"number"}},
        {"repetition_penalty", {"number"}},
        {"presence_penalty", {"number"}},
        {"frequency_penalty", {"number"}},
        {"logit_bias", {"object"}},
        {"seed", {"integer"}},
        {"stop", {"string", "array"}},
        {"stop_token_ids", {"array"}},
        {"min_tokens", {"integer"}},
        {"ignore_eos", {"boolean"}},
        {"n", {"integer"}},
        {"best_of", {"integer"}},
        {"logprobs", {"integer"}},
        {"echo", {"boolean"}},
        {"stream", {"boolean"}},
        {"stream_options", {"object"}},
        {"speculate", {"boolean"}},
        {"priority", {"integer"}},
        {"cache_salt", {"string"}},
        {"skip_special_tokens", {"boolean"}},
        {"include_stop_str_in_output", {"boolean"}},
    };
    const std::pair<const char*, Json> values[] = {
        {"boolean", true}, {"string", "x"},          {"integer", 1},
        {"number", 1.5},   {"array", Json::array()}, {"object", Json::object()},
    };
    for (const auto& [name, right] : fields)
        for (const auto& [kind, value] : values) {
            if (right.contains(kind) ||
                (kind == std::string("integer") && right.contains("number")))
                continue;
            EXPECT_EQ(fault(completion({{name, value}})), name) << kind;
        }
}

TEST(GenerationRequest, NumbersOutOfRangeAreNamed) {
    for (const auto& [name, value] :
         std::vector<std::pair<const char*, Json>>{{"max_tokens", -2},
                                                   {"max_tokens", 0},
                                                   {"max_tokens", 3e9},
                                                   {"max_tokens", 1e20},
                                                   {"n", 0},
                                                   {"n", 129},
                                                   {"n", -1},
                                                   {"logprobs", 21},
                                                   {"logprobs", -1},
                                                   {"priority", -1},
                                                   {"priority", 1001},
                                                   {"temperature", 1e300},
                                                   {"top_k", -2},
                                                   {"top_k", 1e15},
                                                   {"min_tokens", -1},
                                                   {"seed", -2},
                                                   {"seed", 1.5},
                                                   {"seed", 1e30},
                                                   {"best_of", 2},
                                                   {"logit_bias", {{"x", 1}}},
                                                   {"logit_bias", {{"-1", 1}}},
                                                   {"logit_bias", {{"1", "x"}}},
                                                   {"logit_bias", {{"1e3", 1}}},
                                                   {"stop_token_ids", {-1}},
                                                   {"stop", std::vector<std::string>(17, "x")},
                                                   {"stop_token_ids", std::vector<int>(65, 1)}}) {
        const std::string field = fault(completion({{name, value}}));
        EXPECT_TRUE(field.starts_with(name)) << name << " " << value << ": " << field;
    }
    EXPECT_EQ(fault(completion({{"max_tokens", 2.0}, {"n", 1.0}})), "accepted");
    EXPECT_EQ(fault(completion({{"seed", 18446744073709551615u}})), "accepted");
    EXPECT_EQ(fault(completion({{"stop", {"a", 3}}})), "stop[1]");
}

TEST(GenerationRequest, WhatIsNotBuiltIsRefusedByName) {
    for (const char* name : {"tools", "tool_choice", "thinking_token_budget", "functions",
                             "guided_json", "grammar", "suffix", "continue_final_message"})
        EXPECT_EQ(fault(completion({{name, {{"x", 1}}}})), name);
    EXPECT_EQ(fault(completion({{"stream_options", {{"include_usage", true}}}})), "stream_options");
    EXPECT_EQ(parse(completion({{"frobnicate", 1}, {"user", "u"}}))->unknown,
              (std::vector<std::string>{"frobnicate"}));
}

TEST(GenerationRequest, APredictionIsATextOrPartsOfOne) {
    const auto predicted = [](const Json& content) {
        return chat({{"prediction", {{"type", "content"}, {"content", content}}}});
    };
    EXPECT_EQ(parse(predicted("x = 1"), Api::chat)->prediction, "x = 1");
    EXPECT_EQ(
        parse(predicted({{{"type", "text"}, {"text", "x"}}, {{"type", "text"}, {"text", "y"}}}),
              Api::chat)
            ->prediction,
        "x\ny");
    EXPECT_EQ(parse(chat({{"prediction", nullptr}}), Api::chat)->prediction, "");
    EXPECT_EQ(fault(predicted(7), Api::chat), "prediction.content");
    EXPECT_EQ(fault(predicted({{{"type", "image_url"}}}), Api::chat), "prediction.content[0]");
    EXPECT_EQ(fault(chat({{"prediction", "x"}}), Api::chat), "prediction");
    EXPECT_EQ(fault(chat({{"prediction", {{"type", "content"}}}}), Api::chat),
              "prediction.content");
    EXPECT_EQ(fault(chat({{"prediction", {{"type", "tokens"}, {"content", "x"}}}}), Api::chat),
              "prediction.type");
}

TEST(GenerationRequest, LogprobsOfThePromptGoWithNoStream) {
    const auto parsed = parse(completion({{"prompt_logprobs", 3}}));
    EXPECT_EQ(parsed->prompt_logprobs, 3);
    EXPECT_EQ(parsed->engine.output.prompt_top_logprobs, 3);
    const auto both = parse(completion({{"prompt_logprobs", 1}, {"echo", true}, {"logprobs", 4}}));
    EXPECT_EQ(both->prompt_logprobs, 1);
    EXPECT_EQ(both->engine.output.prompt_top_logprobs, 4);
    const auto scored = parse(completion({{"prompt_logprobs", 0}, {"max_tokens", 0}}));
    ASSERT_TRUE(scored);
    EXPECT_EQ(scored->engine.output.prompt_top_logprobs, 0);
    EXPECT_EQ(fault(completion({{"prompt_logprobs", 21}})), "prompt_logprobs");
    EXPECT_EQ(fault(completion({{"prompt_logprobs", -1}})), "prompt_logprobs");
    EXPECT_EQ(fault(completion({{"prompt_logprobs", 1}, {"stream", true}})), "prompt_logprobs");
}

TEST(GenerationRequest, NoTokensAreTakenWithEchoAlone) {
    EXPECT_EQ(fault(completion({{"max_tokens", 0}})), "max_tokens");
    const auto scored = parse(completion({{"max_tokens", 0}, {"echo", true}, {"logprobs", 1}}));
    ASSERT_TRUE(scored);
    EXPECT_EQ(scored->engine.output.max_tokens, 0);
    EXPECT_EQ(scored->engine.output.prompt_top_logprobs, 1);
    EXPECT_TRUE(parse(completion({{"max_tokens", 0}, {"echo", true}})));
}

TEST(ChatRequest, MessagesAreBroughtIntoOneForm) {
    const auto parsed = parse(
        {{"messages",
          {{{"role", "developer"}, {"content", "be kind"}},
           {{"role", "user"},
            {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}},
           {{"role", "assistant"}, {"content", "c"}, {"tool_calls", nullptr}, {"name", "bot"}}}},
         {"max_completion_tokens", 9},
         {"logprobs", true},
         {"top_logprobs", 3},
         {"chat_template_kwargs", {{"thinking", true}}}},
        Api::chat);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->chat.messages, Json::parse(R"([{"role":"system","content":"be kind"},
                              {"role":"user","content":"a\nb"},
                              {"role":"assistant","content":"c","name":"bot"}])"));
    EXPECT_EQ(parsed->chat.arguments, Json({{"thinking", true}}));
    EXPECT_EQ(parsed->engine.output.max_tokens, 9);
    EXPECT_EQ(parsed->engine.output.top_logprobs, 3);
    EXPECT_TRUE(parsed->engine.logprobs);
}

TEST(ChatRequest, ArgumentsOfEarlierCallsBecomeObjects) {
    auto messages = nlohmann::ordered_json::parse(
        R"([{"role": "user"}, {"tool_calls": [{"function": {"arguments": "{\"z\": 1, \"a\": 2}"}}]}])");
    ASSERT_TRUE(parse_call_arguments(messages));
    EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"].dump(), R"({"z":1,"a":2})");
    for (const std::string& bad :
         std::vector<std::string>{"", "[1]", "{", "5", std::string(100, '[')}) {
        messages[1]["tool_calls"][0]["function"]["arguments"] = bad;
        const auto refused = parse_call_arguments(messages);
        ASSERT_FALSE(refused) << bad;
        EXPECT_EQ(refused.error().field, "messages[1].tool_calls[0].function.arguments");
    }
}

TEST(ChatRequest, FaultsAreNamedByTheirPlace) {
    const auto at = [](const char* messages) {
        return fault({{"messages", Json::parse(messages)}}, Api::chat);
    };
    EXPECT_EQ(fault(Json::object(), Api::chat), "messages");
    for (const char* wrong : {"[]", "3", "{}", "\"x\""}) EXPECT_EQ(at(wrong), "messages") << wrong;
    EXPECT_EQ(at("[3]"), "messages[0]");
    EXPECT_EQ(at(R"([{"content":"x"}])"), "messages[0].role");
    EXPECT_EQ(at(R"([{"role":"function","content":"x"}])"), "messages[0].role");
    EXPECT_EQ(at(R"([{"role":"user","content":"x"},{"role":"user"}])"), "messages[1].content");
    EXPECT_EQ(at(R"([{"role":"user","content":3}])"), "messages[0].content");
    EXPECT_EQ(at(R"([{"role":"user","content":[]}])"), "messages[0].content");
    EXPECT_EQ(at(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
              "messages[0].content[0]");
    EXPECT_EQ(fault(chat({{"max_tokens", 0}}), Api::chat), "max_tokens");
    EXPECT_EQ(fault(chat({{"top_logprobs", 3}}), Api::chat), "top_logprobs");
    EXPECT_EQ(fault(chat({{"chat_template_kwargs", 3}}), Api::chat), "chat_template_kwargs");
    for (const char* own : {"messages", "bos_token", "chat_template", "add_generation_prompt"})
        EXPECT_EQ(fault(chat({{"chat_template_kwargs", {{own, 1}}}}), Api::chat),
                  std::string("chat_template_kwargs.") + own);
}

TEST(GenerationRequest, EngineErrorsGetTheRequestsOwnNames) {
    const auto named = [](const char* field, Api api) {
        GenerationRequest request;
        request.api = api;
        return named_as_in_request({ErrorKind::invalid, std::string(field) + ": x", field}, request)
            .message;
    };
    EXPECT_EQ(named("choices", Api::chat), "n: x");
    EXPECT_EQ(named("top_logprobs", Api::completions), "logprobs: x");
    EXPECT_EQ(named("top_logprobs", Api::chat), "top_logprobs: x");
    EXPECT_EQ(named("prompt", Api::chat), "messages: x");
    EXPECT_EQ(named("stop[2]", Api::chat), "stop[2]: x");
}

}  // namespace
}  // namespace espalier::server
