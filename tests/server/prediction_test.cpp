// SPDX-License-Identifier: Apache-2.0
// OpenAI's predicted outputs over HTTP: the text is what it is without, and a right prediction
// saves steps. Beside it vLLM's token ids and logprobs of the prompt.
#include <gtest/gtest.h>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

Json predicted_chat(int seed, const std::string& prediction = {}) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "write " + std::to_string(seed)}}}},
                 {"max_tokens", 60},
                 {"temperature", seed % 2 == 0 ? 0.0 : 0.9},
                 {"seed", seed},
                 {"ignore_eos", true},
                 {"draft_depth", 15},  // whatever it costs here
                 {"draft_nodes", 15},
                 {"speculation_report", true}};
    if (!prediction.empty()) body["prediction"] = {{"type", "content"}, {"content", prediction}};
    return body;
}

TEST(Prediction, ChangesNoTextAndSavesStepsWhereItIsRight) {
    RunningServer server;
    Client client = server.client();
    std::int64_t without = 0, with = 0, accepted = 0;
    for (int seed = 1; seed <= 8; ++seed) {
        const auto ask = [&](const std::string& prediction) {
            const Answer answer =
                client.post("/v1/chat/completions", predicted_chat(seed, prediction));
            EXPECT_EQ(answer.status, 200) << answer.body;
            return answer.json();
        };
        const Json plain = ask({});
        const std::string text = plain["choices"][0]["message"]["content"];
        const Json right = ask(text);
        std::string half = text.substr(0, text.size() / 2);
        while (!half.empty() && (static_cast<unsigned char>(half.back()) & 0x80) != 0)
            half.pop_back();
        for (const Json& other : {right, ask(half + " something else"), ask("<｜User｜> no\n")})
            EXPECT_EQ(other["choices"][0]["message"]["content"], text) << seed;
        without += plain["choices"][0]["speculation"]["steps"].get<std::int64_t>();
        with += right["choices"][0]["speculation"]["steps"].get<std::int64_t>();
        accepted += right["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
                        .get<std::int64_t>();
    }
    EXPECT_LT(3 * with, 2 * without);
    EXPECT_GT(accepted, 8 * 20);
}

TEST(Prediction, OneThatCannotBeTheOutputIsRefused) {
    RunningServer server;
    Json body = predicted_chat(1, std::string(1'000'000, 'x'));
    const Answer answer = server.client().post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.param(), "prediction.content");
}

TEST(TokenIds, AreThoseOfTokenizeAndOfTheText) {
    RunningServer server;
    Client client = server.client();
    Json body = predicted_chat(3);
    const Json prompt = client.post("/tokenize", body).json()["tokens"];
    body["return_token_ids"] = true;
    body["prompt_logprobs"] = 2;
    const Json chat = client.post("/v1/chat/completions", body).json();
    EXPECT_EQ(chat["prompt_token_ids"], prompt);
    const Json ids = chat["choices"][0]["token_ids"];
    EXPECT_EQ(ids.size(), 60u);
    const Json same = {
        {"prompt", prompt},   {"max_tokens", 60},         {"temperature", 0.9},   {"seed", 3},
        {"ignore_eos", true}, {"return_token_ids", true}, {"prompt_logprobs", 2}, {"echo", true},
        {"logprobs", 1}};
    const Json completion = client.post("/v1/completions", same).json()["choices"][0];
    EXPECT_EQ(completion["token_ids"], ids);
    EXPECT_EQ(completion["prompt_token_ids"], prompt);
    EXPECT_EQ(completion["prompt_logprobs"], chat["prompt_logprobs"]);
    ASSERT_EQ(chat["prompt_logprobs"].size(), prompt.size());
    for (std::size_t i = 1; i < prompt.size(); ++i) {
        const Json own = chat["prompt_logprobs"][i][prompt[i].dump()];
        EXPECT_EQ(own["logprob"], completion["logprobs"]["token_logprobs"][i]);
        EXPECT_LE(chat["prompt_logprobs"][i].size(), 3u);
        EXPECT_GE(chat["prompt_logprobs"][i].size(), 2u);
    }
    Json streamed = same;
    streamed.erase("prompt_logprobs");
    streamed["stream"] = true;
    Json told = Json::array();
    for (const std::string& data : client.post("/v1/completions", streamed).events()) {
        if (data == "[DONE]") break;
        const Json event = Json::parse(data);
        for (const Json& id : event["choices"][0]["token_ids"]) told.push_back(id);
    }
    EXPECT_EQ(told, ids);
}

}  // namespace
}  // namespace espalier::server::test
