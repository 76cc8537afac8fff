// SPDX-License-Identifier: Apache-2.0
// The text through HTTP is the engine's own, for the same seed, whoever else is being served and
// whether drafts are used.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.hpp"
#include "server/engine_texts.hpp"
#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

Json mixed_request(int number) {
    Random random(static_cast<std::uint64_t>(number) + 100);
    std::string prompt;
    for (int i = random.between(1, 60); i > 0; --i)
        prompt += static_cast<char>('a' + random.between(0, 5));
    if (number % 3 == 0) prompt = "shared beginning " + prompt;
    Json body = RunningServer::completion(prompt, random.between(1, 24));
    body["seed"] = number;
    body["temperature"] = number % 4 == 0 ? 0.0 : 0.9;
    body["n"] = random.between(1, 3);
    body["stream"] = number % 2 == 0;
    body["speculate"] = number % 5 != 0;
    if (number % 7 == 0) body["repetition_penalty"] = 1.2;
    if (number % 6 == 0) body["stop"] = {"a", "zz"};
    if (number % 8 == 0) body["logprobs"] = 2;
    if (number % 3 != 1) body["speculation_report"] = true;
    if (number % 9 == 2 && number % 5 != 0) body["draft_depth"] = 4;
    return body;
}

TEST(Equality, SixtyFourMixedRequestsAtOnceEachGetTheEnginesOwnText) {
    constexpr int kRequests = 64;
    RunningServer server;
    std::vector<Answer> answers(kRequests);
    std::vector<std::thread> clients;
    for (int i = 0; i < kRequests; ++i)
        clients.emplace_back([&, i] {
            answers[static_cast<std::size_t>(i)] =
                server.client().post("/v1/completions", mixed_request(i));
        });
    for (std::thread& client : clients) client.join();
    EXPECT_TRUE(server.becomes_idle());

    RunningServer::Setup plain;
    plain.speculate = {"off"};
    RunningServer alone(plain);
    for (int i = 0; i < kRequests; ++i) {
        const Json body = mixed_request(i);
        const Answer& answer = answers[static_cast<std::size_t>(i)];
        ASSERT_EQ(answer.status, 200) << answer.body;
        engine::Stream expected = submit_body(*alone.runtime, body);
        EXPECT_EQ(texts_of(answer, body["n"].get<std::size_t>()), texts_of(expected)) << body;
    }
}

TEST(Equality, HundredsOfStreamsAreNeitherLostNorMixedUp) {
    constexpr int kStreams = 200;
    RunningServer::Setup setup;
    setup.sizes.max_waiting = 1000;
    RunningServer server(setup);
    Json body = RunningServer::completion("", 6);
    body["stream"] = true;
    const auto prompt = [](int i) { return "stream " + std::to_string(i % 10); };
    std::vector<Client> clients;
    for (int i = 0; i < kStreams; ++i) {
        body["prompt"] = prompt(i);
        body["seed"] = i % 10;
        clients.push_back(server.client());
        clients.back().send(request_text("POST", "/v1/completions", body.dump()));
    }
    std::map<int, std::vector<std::string>> texts;
    for (int i = 0; i < kStreams; ++i) {
        const Answer answer = clients[static_cast<std::size_t>(i)].receive();
        ASSERT_EQ(answer.status, 200);
        texts[i % 10].push_back(texts_of(answer, 1)[0]);
    }
    for (const auto& [key, all] : texts)
        for (const std::string& text : all) EXPECT_EQ(text, all[0]) << key;
    EXPECT_NE(texts[0][0], texts[1][0]);
    EXPECT_TRUE(server.becomes_idle());
}

}  // namespace
}  // namespace espalier::server::test
