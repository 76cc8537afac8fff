// SPDX-License-Identifier: Apache-2.0
// Clients that do everything wrong, at random, while one does everything right: that one's answers
// stay correct, and in the end nobody holds anything. ESPALIER_FAULT_SECONDS runs it longer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/random.hpp"
#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

Json random_value(Random& random) {
    switch (random.between(0, 12)) {
        case 0:
            return nullptr;
        case 1:
            return random.chance(0.5);
        case 2:
            return random.between(-3, 3);
        case 3:
            return 1e308;
        case 4:
            return -9223372036854775807ll;
        case 5:
            return 18446744073709551615ull;
        case 6:
            return std::string(static_cast<std::size_t>(random.between(0, 300)), 'x');
        case 7:
            return Json::array();
        case 8:
            return Json::object();
        case 9:
            return Json{1, "x", nullptr};
        case 10:
            return Json{{"1", -1}, {"include_usage", true}};
        case 11:
            return 0.5;
        default:
            return Json::parse("[[[[1]]]]");
    }
}

constexpr const char* kFields[] = {"model",
                                   "prompt",
                                   "max_tokens",
                                   "temperature",
                                   "top_p",
                                   "top_k",
                                   "min_p",
                                   "seed",
                                   "n",
                                   "stop",
                                   "logprobs",
                                   "echo",
                                   "stream",
                                   "stream_options",
                                   "logit_bias",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "repetition_penalty",
                                   "min_tokens",
                                   "ignore_eos",
                                   "stop_token_ids",
                                   "speculate",
                                   "priority",
                                   "cache_salt",
                                   "best_of",
                                   "suffix",
                                   "max_completion_tokens",
                                   "tools",
                                   "response_format",
                                   "user",
                                   "skip_special_tokens"};

Json wild_body(Random& random) {
    Json body = RunningServer::completion("abc", random.between(1, 20));
    for (int i = random.between(1, 4); i > 0; --i)
        body[random.one_of(kFields)] = random_value(random);
    return body;
}

std::string garbage(Random& random) {
    std::string bytes(static_cast<std::size_t>(random.between(1, 2000)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.between(0, 255));
    if (random.chance(0.5)) bytes = "GET / HTTP/1.1\r\n" + bytes;
    return bytes + "\r\n\r\n";
}

void misbehave(RunningServer& server, Random& random) {
    Client client = server.client();
    const std::string request = request_text("POST", "/v1/completions", wild_body(random).dump());
    Json long_one = RunningServer::completion("abc", 4000);
    const bool streams = random.chance(0.5);
    long_one["stream"] = streams;
    switch (random.between(0, 8)) {
        case 0:  // any field with any value: an answer, whatever it says
            client.send(request);
            EXPECT_NE(client.receive().status, 0) << request;
            break;
        case 1:  // half of it
            client.send(request.substr(0, static_cast<std::size_t>(random.between(
                                              1, static_cast<int>(request.size()) - 1))));
            break;
        case 2:
            client.send(garbage(random));
            client.receive();
            break;
        case 3:
            client.send(request_text("POST", "/v1/completions",
                                     std::string(10'000, '[') + std::string(10'000, ']')));
            EXPECT_EQ(client.receive().status, 400);
            break;
        case 4:
            client.send(request_text("POST", "/v1/completions", "{\"prompt\": \"\xff\xfe\"}"));
            EXPECT_EQ(client.receive().status, 400);
            break;
        case 5:  // gone in the middle
            client.send(request_text("POST", "/v1/completions", long_one.dump()));
            if (streams) client.receive_some();
            random.chance(0.5) ? client.reset() : client.close();
            break;
        case 6:  // gone at once
            client.send(request_text("POST", "/v1/completions", long_one.dump()));
            client.reset();
            break;
        case 7:  // more than is taken
            client.send(
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                "application/json\r\nContent-Length: 104857600\r\n\r\n");
            client.send(std::string(100'000, 'x'));
            EXPECT_EQ(client.receive().status, 413);
            break;
        default:  // byte by byte
            for (const char byte : request_text("GET", "/health"))
                client.send(std::string(1, byte));
            EXPECT_EQ(client.receive().status, 200);
    }
}

TEST(Faults, CorrectClientsNeverNotice) {
    const char* longer = std::getenv("ESPALIER_FAULT_SECONDS");
    const auto time = std::chrono::seconds(longer == nullptr ? 0 : std::atoi(longer));
    RunningServer::Setup setup;
    setup.server.idle_seconds = setup.server.read_seconds = 5;  // for what is never completed
    RunningServer server(setup);
    const Json asked = RunningServer::completion("the correct client", 16);
    const Json expected = server.client().post("/v1/completions", asked).json()["choices"];
    const auto start = std::chrono::steady_clock::now();
    std::atomic<bool> done = false;
    std::vector<std::thread> clients;
    for (int thread = 0; thread < 3; ++thread)
        clients.emplace_back([&, thread] {
            Random random(static_cast<std::uint64_t>(thread) + 1);
            for (int i = 0; i < 40 || std::chrono::steady_clock::now() - start < time; ++i)
                misbehave(server, random);
        });
    std::thread correct([&] {
        while (!done) {
            const Answer answer = server.client().post("/v1/completions", asked);
            ASSERT_EQ(answer.status, 200) << answer.body;
            EXPECT_EQ(answer.json()["choices"], expected);
        }
    });
    for (std::thread& client : clients) client.join();
    done = true;
    correct.join();
    EXPECT_TRUE(server.becomes_idle());
    EXPECT_EQ(server.client().get("/health").status, 200);
}

}  // namespace
}  // namespace espalier::server::test
