// SPDX-License-Identifier: Apache-2.0
// Updates of the engine to bytes: the order of a stream's events, what each holds, and the same
// as one object.
#include "server/reply.hpp"

#include <gtest/gtest.h>

#include "checkpoint/synthetic.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using accept::FinishReason;

const text::Tokenizer& tokenizer() {
    static const text::Tokenizer made = [] {
        const auto json = checkpoint::synthetic_tokenizer_json(300);
        return std::move(text::Tokenizer::from_tokenizer_json(
                             *json, checkpoint::synthetic_tokenizer_config_json(), "test")
                             .value());
    }();
    return made;
}

std::int32_t token_of(unsigned char byte) {
    return *tokenizer().id_of(std::string(1, static_cast<char>(byte)));
}

struct Sketch {
    std::string text;
    std::optional<FinishReason> finish = {};
    engine::Interruption interruption = engine::Interruption::none;
};

// One token per byte of text, each with one alternative.
engine::ChoiceUpdate update(const Sketch& sketch, std::int64_t before = 0) {
    engine::ChoiceUpdate made;
    made.emission.text = sketch.text;
    for (const char c : sketch.text) {
        const auto byte = static_cast<unsigned char>(c);
        made.emission.tokens.push_back({token_of(byte), -0.5f, before++});
        made.emission.top.push_back({token_of('z'), -0.25f});
    }
    made.usage.prompt_tokens = 3;
    made.usage.completion_tokens = before;
    made.usage.drafted = 4;
    made.usage.accepted = 1;
    made.cached_tokens = 2;
    made.ended = sketch.finish.has_value();
    if (sketch.finish) made.finish.reason = *sketch.finish;
    made.interruption = sketch.interruption;
    return made;
}

engine::Updates updates(std::vector<engine::ChoiceUpdate> choices) {
    return {.choices = std::move(choices), .prompt_logprobs = std::nullopt};
}

ReplyOptions options(Api api, bool stream) {
    ReplyOptions made;
    made.api = api;
    made.id = "id-1";
    made.created = 17;
    made.model = "m";
    made.stream = stream;
    made.seed = 5;
    return made;
}

std::vector<Json> events(const std::string& bytes) {
    std::vector<Json> made;
    std::string_view rest = bytes;
    while (!rest.empty()) {
        const std::size_t end = rest.find("\n\n");
        EXPECT_EQ(rest.substr(0, 6), "data: ");
        const std::string data(rest.substr(6, end - 6));
        made.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
        rest.remove_prefix(end + 2);
    }
    return made;
}

TEST(Reply, AChatStreamHasItsEventsInOrder) {
    ReplyOptions wanted = options(Api::chat, true);
    wanted.include_usage = true;
    Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(1));
    std::string out;
    reply.add(0, updates({update({""})}), out);
    EXPECT_EQ(out, "");  // no event before the first output: clients time it as the first token
    reply.add(0, updates({update({"ab"})}), out);
    reply.add(0, updates({update({"c", FinishReason::eos}, 2)}), out);
    EXPECT_TRUE(reply.complete());
    reply.end(out);
    EXPECT_TRUE(out.starts_with(
        R"(data: {"id":"id-1","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null})"
        "\n\n"))
        << out;
    const std::vector<Json> all = events(out);
    ASSERT_EQ(all.size(), 6u) << out;
    EXPECT_EQ(all[1]["choices"][0]["delta"], Json({{"content", "ab"}}));
    EXPECT_EQ(all[2]["choices"][0]["delta"], Json({{"content", "c"}}));
    EXPECT_TRUE(all[2]["choices"][0]["finish_reason"].is_null());
    EXPECT_EQ(all[3]["choices"][0]["delta"], Json::object());
    EXPECT_EQ(all[3]["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(all[4]["choices"], Json::array());
    EXPECT_EQ(all[4]["usage"]["prompt_tokens"], 3);
    EXPECT_EQ(all[4]["usage"]["completion_tokens"], 3);
    EXPECT_EQ(all[4]["usage"]["total_tokens"], 6);
    EXPECT_EQ(all[4]["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    EXPECT_EQ(all[4]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 1);
    EXPECT_EQ(all[4]["usage"]["completion_tokens_details"]["rejected_prediction_tokens"], 3);
    EXPECT_EQ(all[5], "[DONE]");
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(all[i]["id"], "id-1");
        EXPECT_TRUE(all[i]["usage"].is_null());
    }
}

TEST(Reply, ACompletionStreamSaysItsEndWithTheLastText) {
    Reply reply(options(Api::completions, true), tokenizer(), std::vector<EchoedPrompt>(1));
    std::string out;
    EXPECT_EQ(out, "");
    reply.add(0, updates({update({"a\"\n"})}), out);
    EXPECT_EQ(
        out,
        R"(data: {"id":"id-1","object":"text_completion","created":17,"model":"m","choices":[{"index":0,"text":"a\"\n","logprobs":null,"finish_reason":null}]})"
        "\n\n");
    reply.add(0, updates({update({"", FinishReason::length}, 3)}), out);
    reply.end(out);
    const std::vector<Json> all = events(out);
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[1]["choices"][0]["text"], "");
    EXPECT_EQ(all[1]["choices"][0]["finish_reason"], "length");
    EXPECT_FALSE(all[1].contains("usage"));
}

TEST(Reply, WholeAnswersHoldWhatStreamsAddUpTo) {
    for (const Api api : {Api::completions, Api::chat}) {
        std::string streamed[2], whole;
        for (const bool stream : {true, false}) {
            ReplyOptions wanted = options(api, stream);
            wanted.choices = 2;
            Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(1));
            std::string out;
            reply.add(0, updates({update({"he"}), update({"wor"})}), out);
            reply.add(0,
                      updates({update({"llo", FinishReason::stop_string}, 2), update({"", {}}, 3)}),
                      out);
            EXPECT_FALSE(reply.complete());
            // Ended choices come again with the others' updates, and count once.
            reply.add(0,
                      updates({update({"", FinishReason::stop_string}, 5),
                               update({"ld", FinishReason::length}, 3)}),
                      out);
            EXPECT_TRUE(reply.complete());
            reply.end(out);
            if (!stream) {
                whole = out;
                continue;
            }
            for (const Json& event : events(out)) {
                if (event == "[DONE]") continue;
                const Json& choice = event["choices"][0];
                const Json& text =
                    api == Api::chat ? choice["delta"].value("content", Json("")) : choice["text"];
                streamed[choice["index"].get<std::size_t>()] += text.get<std::string>();
            }
        }
        const Json json = Json::parse(whole);
        EXPECT_EQ(json["object"], api == Api::chat ? "chat.completion" : "text_completion");
        ASSERT_EQ(json["choices"].size(), 2u);
        for (std::size_t i = 0; i < 2; ++i) {
            const Json& choice = json["choices"][i];
            EXPECT_EQ(api == Api::chat ? choice["message"]["content"] : choice["text"],
                      streamed[i]);
        }
        EXPECT_EQ(streamed[0], "hello");
        EXPECT_EQ(streamed[1], "world");
        EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
        EXPECT_EQ(json["choices"][1]["finish_reason"], "length");
        EXPECT_EQ(json["usage"]["prompt_tokens"], 3);  // once for both
        EXPECT_EQ(json["usage"]["completion_tokens"], 10);
        EXPECT_EQ(json["seed"], 5);
    }
}

TEST(Reply, SeveralPromptsAreNumberedOn) {
    ReplyOptions wanted = options(Api::completions, false);
    wanted.choices = 2;
    Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(2));
    std::string out;
    reply.add(1, updates({update({"c", FinishReason::eos}), update({"d", FinishReason::eos})}),
              out);
    reply.add(0, updates({update({"a", FinishReason::eos}), update({"b", FinishReason::eos})}),
              out);
    EXPECT_TRUE(reply.complete());
    reply.end(out);
    const Json json = Json::parse(out);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(json["choices"][i]["index"], i);
        EXPECT_EQ(json["choices"][i]["text"], std::string(1, static_cast<char>('a' + i)));
    }
    EXPECT_EQ(json["usage"]["prompt_tokens"], 6);
}

TEST(Reply, CompletionLogprobsCountCodePoints) {
    ReplyOptions wanted = options(Api::completions, false);
    wanted.logprobs = true;
    Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(1));
    std::string out;
    reply.add(0, updates({update({"é"})}), out);
    reply.add(0, updates({update({"x", FinishReason::eos}, 2)}), out);
    reply.end(out);
    const Json logprobs = Json::parse(out)["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs["tokens"], Json({"bytes:\\xc3", "bytes:\\xa9", "x"}));
    EXPECT_EQ(logprobs["token_logprobs"], Json({-0.5, -0.5, -0.5}));
    EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 1}));
    EXPECT_EQ(logprobs["top_logprobs"][2], Json({{"z", -0.25}, {"x", -0.5}}));
}

TEST(Reply, AnEchoedPromptComesFirstWithItsLogprobs) {
    ReplyOptions wanted = options(Api::completions, false);
    wanted.logprobs = wanted.echo = true;
    wanted.top_logprobs = 1;
    const std::vector<std::int32_t> tokens = {0, token_of('h'), token_of('i')};
    accept::PromptLogprobs known(tokens, 1);
    const float logprobs[] = {-1.0f, -2.0f};
    const accept::TokenLogprob tops[] = {{token_of('q'), -0.1f}, {token_of('i'), -2.0f}};
    known.add(0, logprobs, tops);
    Reply reply(wanted, tokenizer(), {{.tokens = tokens, .text = "hi", .added = 1}});
    std::string out;
    engine::Updates first = updates({update({"!", FinishReason::length})});
    first.prompt_logprobs = known;
    reply.add(0, first, out);
    reply.end(out);
    const Json choice = Json::parse(out)["choices"][0];
    EXPECT_EQ(choice["text"], "hi!");
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 4u);
    EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -1.0, -2.0, -0.5}));
    EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 0, 1, 2}));
    EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].size(), 2u);
}

TEST(Reply, TokensAndLogprobsOfThePromptAreTold) {
    const std::vector<std::int32_t> tokens = {0, token_of('h'), token_of('i')};
    accept::PromptLogprobs known(tokens, 2);
    const float logprobs[] = {-1.0f, -2.0f};
    const accept::TokenLogprob tops[] = {
        {token_of('q'), -0.1f}, {token_of('r'), -0.2f}, {token_of('i'), -2.0f}, {-1, 0.0f}};
    known.add(0, logprobs, tops);
    const auto told = [&](Api api, bool stream) {
        ReplyOptions wanted = options(api, stream);
        wanted.token_ids = true;
        wanted.prompt_logprobs = 1;
        Reply reply(wanted, tokenizer(), {{.tokens = tokens, .text = "hi", .added = 1}});
        std::string out;
        engine::Updates first = updates({update({"!"})});
        first.prompt_logprobs = known;
        reply.add(0, first, out);
        reply.add(0, updates({update({"?", FinishReason::length})}), out);
        reply.end(out);
        return out;
    };
    const Json completion = Json::parse(told(Api::completions, false))["choices"][0];
    EXPECT_EQ(completion["prompt_token_ids"], Json(tokens));
    EXPECT_EQ(completion["token_ids"], Json({token_of('!'), token_of('?')}));
    const Json list = completion["prompt_logprobs"];
    ASSERT_EQ(list.size(), 3u);
    EXPECT_TRUE(list[0].is_null());
    const Json own = list[1][std::to_string(token_of('h'))];
    EXPECT_EQ(own, Json({{"logprob", -1.0}, {"rank", nullptr}, {"decoded_token", "h"}}));
    EXPECT_EQ(list[1].size(), 2u);
    EXPECT_EQ(list[1][std::to_string(token_of('q'))]["rank"], 1);
    EXPECT_EQ(list[2].size(), 1u);
    EXPECT_EQ(list[2][std::to_string(token_of('i'))]["rank"], 1);
    const Json chat = Json::parse(told(Api::chat, false));
    EXPECT_EQ(chat["prompt_token_ids"], Json(tokens));
    EXPECT_EQ(chat["prompt_logprobs"], list);
    EXPECT_EQ(chat["choices"][0]["token_ids"], completion["token_ids"]);
    EXPECT_FALSE(chat["choices"][0].contains("prompt_token_ids"));
    for (const Api api : {Api::completions, Api::chat}) {
        Json ids = Json::array();
        int prompts = 0;
        for (const Json& event : events(told(api, true))) {
            if (event == "[DONE]") continue;
            for (const Json& id : event["choices"][0].value("token_ids", Json::array()))
                ids.push_back(id);
            prompts += event.contains("prompt_token_ids") ||
                               event["choices"][0].contains("prompt_token_ids")
                           ? 1
                           : 0;
        }
        EXPECT_EQ(ids, completion["token_ids"]);
        EXPECT_EQ(prompts, 1);
    }
}

TEST(Reply, ChatLogprobsAreObjects) {
    ReplyOptions wanted = options(Api::chat, true);
    wanted.logprobs = true;
    Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(1));
    std::string out;
    reply.add(0, updates({update({"a", FinishReason::eos})}), out);
    const Json content = events(out)[1]["choices"][0]["logprobs"]["content"];
    ASSERT_EQ(content.size(), 1u);
    EXPECT_EQ(content[0]["token"], "a");
    EXPECT_EQ(content[0]["bytes"], Json({97}));
    EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "z");
}

TEST(Reply, AReportTellsWhoEachPieceOfTextCameFrom) {
    for (const bool stream : {true, false})
        for (const Api api : {Api::completions, Api::chat}) {
            ReplyOptions wanted = options(api, stream);
            wanted.speculation = true;
            wanted.drafters = {"ngram", "mtp"};
            wanted.drafter_states = {"drafting", "slower"};
            Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(1));
            std::string out;
            engine::ChoiceUpdate first = update({"aéb"});  // four bytes, one token each
            first.emission.tokens[1].origin = {.drafters = 2, .drafter = 1, .depth = 1, .rank = 0};
            first.trees = {{.tokens = {token_of('a'), token_of(0xC3), token_of('x')},
                            .parents = {-1, 0, 0},
                            .origins = {{}, {.drafters = 2, .drafter = 1}, {.drafters = 1}},
                            .path = {0, 1}}};
            engine::ChoiceUpdate last = update({"c", FinishReason::eos}, 4);
            last.usage.steps = 3;
            last.usage.accepted_at_depth[1] = 2;
            last.usage.accepted_at_depth[2] = 1;
            last.usage.drafted_from = {0, 4};
            last.usage.accepted_from = {0, 3};
            reply.add(0, updates({first}), out);
            reply.add(0, updates({last}), out);
            reply.end(out);
            Json tokens = Json::array(), trees = Json::array(), totals;
            for (const Json& event : stream ? events(out) : std::vector{Json::parse(out)}) {
                if (event == "[DONE]") continue;
                if (event["choices"][0].value("delta", Json()).contains("role")) continue;
                const Json report = event["choices"][0]["speculation"];
                for (const Json& token : report["tokens"]) tokens.push_back(token);
                for (const Json& tree : report["trees"]) trees.push_back(tree);
                if (report.contains("steps")) totals = report;
            }
            EXPECT_EQ(tokens, Json::parse(R"([{"text":"a","source":"target"},
                                              {"text":"é","source":"mtp"},
                                              {"text":"b","source":"target"},
                                              {"text":"c","source":"target"}])"));
            EXPECT_EQ(trees, Json::parse(R"([{"texts":["a","bytes:\\xc3","x"],
                                              "parents":[-1,0,0],
                                              "sources":[null,"mtp","ngram"],
                                              "path":[0,1]}])"));
            EXPECT_EQ(totals["steps"], 3);
            EXPECT_EQ(totals["accepted_at_depth"], Json({2, 1}));
            EXPECT_EQ(totals["drafters"]["mtp"],
                      Json({{"drafted", 4}, {"accepted", 3}, {"state", "slower"}}));
        }
}

TEST(Reply, InterruptionsAreFailures) {
    const auto failure = [](const Sketch& sketch) {
        Reply reply(options(Api::chat, true), tokenizer(), std::vector<EchoedPrompt>(1));
        std::string out;
        reply.add(0, updates({update(sketch)}), out);
        return reply.failure() ? reply.failure()->status : 0;
    };
    using engine::Interruption;
    EXPECT_EQ(failure({"x", FinishReason::eos}), 0);
    EXPECT_EQ(failure({"x", FinishReason::interrupted, Interruption::deadline}), 504);
    EXPECT_EQ(failure({"x", FinishReason::interrupted, Interruption::stopped}), 503);
    EXPECT_EQ(failure({"x", FinishReason::interrupted, Interruption::step_failed}), 500);
    EXPECT_EQ(failure({"x", FinishReason::bad_numbers}), 500);
    EXPECT_EQ(failure({"x", FinishReason::nothing_left}), 400);
}

}  // namespace
}  // namespace espalier::server
