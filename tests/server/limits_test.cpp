// SPDX-License-Identifier: Apache-2.0
// What is bounded: queues, bodies, heads, connections, time.
#include <gtest/gtest.h>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

TEST(Limits, AFullQueueIsToldAtOnce) {
    RunningServer::Setup setup;
    setup.sizes.rows = 1;
    setup.sizes.max_waiting = 2;
    RunningServer server(setup);
    Client running = server.client();
    running.send(
        request_text("POST", "/v1/completions", RunningServer::completion("abc", 7000).dump()));
    ASSERT_TRUE(server.reaches([](const auto& status) { return status.gauges.running == 1; }));
    Json body = RunningServer::completion("abc", 7000);
    body["n"] = 2;
    Client waiting = server.client();
    waiting.send(request_text("POST", "/v1/completions", body.dump()));
    ASSERT_TRUE(server.reaches(
        [](const auto& status) { return status.queued + status.gauges.waiting == 2; }));
    const Answer refused =
        server.client().post("/v1/completions", RunningServer::completion("abc", 1));
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
    // Others are not held up.
    EXPECT_EQ(server.client().get("/health").status, 200);
    EXPECT_EQ(server.client().post("/tokenize", Json{{"prompt", "x"}}).status, 200);
}

TEST(Limits, BodiesAndHeads) {
    RunningServer::Setup setup;
    setup.server.max_body_bytes = 4096;
    setup.server.max_header_bytes = 2048;
    RunningServer server(setup);
    Json body = RunningServer::completion(std::string(5000, 'x'), 1);
    EXPECT_EQ(server.client().post("/v1/completions", body).status, 413);
    // Told by its length alone, before any of it is there.
    Client told = server.client();
    told.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: 104857600\r\n\r\n");
    EXPECT_EQ(told.receive().status, 413);
    // In chunks, its length is not known before.
    Client chunked = server.client();
    chunked.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 8; ++i) chunked.send("400\r\n" + std::string(1024, ' ') + "\r\n");
    EXPECT_EQ(chunked.receive().status, 413);
    EXPECT_EQ(server.client().get("/health", "X: " + std::string(3000, 'x') + "\r\n").status, 431);
    // Chunks that fit are taken.
    Client fine = server.client();
    const std::string small = RunningServer::completion("abc", 1).dump();
    fine.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    char size[16];
    std::snprintf(size, sizeof size, "%zx", small.size());
    fine.send(size + std::string("\r\n") + small + "\r\n0\r\n\r\n");
    EXPECT_EQ(fine.receive().status, 200);
}

TEST(Limits, AClientThatWaitsForALeaveGetsIt) {
    RunningServer server;
    Client client = server.client();
    const std::string body = RunningServer::completion("abc", 1).dump();
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nExpect: 100-continue\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n");
    ASSERT_TRUE(client.receive_until("HTTP/1.1 100 Continue\r\n\r\n"));
    client.send(body);
    EXPECT_EQ(client.receive().status, 200);
}

TEST(Limits, ConnectionsBeyondTheirNumberAreToldSo) {
    RunningServer::Setup setup;
    setup.server.max_connections = 3;
    RunningServer server(setup);
    {
        // The ones that asked for /health while it started may linger for a moment.
        std::vector<Client> held;
        while (held.size() < 3) {
            Client client = server.client();
            if (client.get("/health").status == 200) held.push_back(std::move(client));
        }
        EXPECT_EQ(server.client().receive().status, 503);
        for (Client& client : held) EXPECT_EQ(client.get("/health").status, 200);
    }
    for (;;)
        if (server.client().get("/health").status == 200) break;
}

TEST(Limits, SlowClientsAreCutOff) {
    RunningServer::Setup setup;
    setup.server.idle_seconds = 0.3;
    setup.server.read_seconds = 0.3;
    RunningServer server(setup);
    Client silent = server.client();
    EXPECT_TRUE(silent.at_end());
    Client half_a_head = server.client();
    half_a_head.send("POST /v1/completions HTTP/1.1\r\nHost: localho");
    EXPECT_EQ(half_a_head.receive().status, 408);
    Client half_a_body = server.client();
    const std::string text =
        request_text("POST", "/v1/completions", RunningServer::completion("abc", 1).dump());
    half_a_body.send(text.substr(0, text.size() - 5));
    EXPECT_EQ(half_a_body.receive().status, 408);
    EXPECT_TRUE(half_a_body.at_end());
}

// A reader that takes nothing holds its own output, and not for ever.
TEST(Limits, AReaderThatTakesNothingIsCutOff) {
    RunningServer::Setup setup;
    setup.server.write_seconds = 0.5;
    RunningServer server(setup);
    Client client = server.client();
    Json body = RunningServer::completion("abc", 7000);
    body["n"] = 8;
    body["stream"] = true;
    body["logprobs"] = 20;  // some 2 kB per token, more than sockets hold
    client.send(request_text("POST", "/v1/completions", body.dump()));
    EXPECT_TRUE(server.reaches([](const auto& status) {
        return status.sums.ends.of(engine::Interruption::cancelled) > 0;
    }));
    EXPECT_TRUE(server.becomes_idle());
}

TEST(Limits, ARequestThatTakesTooLongEndsWithAnError) {
    RunningServer::Setup setup;
    setup.server.request_seconds = 0.2;
    RunningServer server(setup);
    Json body = RunningServer::completion("abc", 7000);
    body["n"] = 8;
    const Answer whole = server.client().post("/v1/completions", body);
    EXPECT_EQ(whole.status, 504);
    EXPECT_EQ(whole.json()["error"]["type"], "timeout_error");
    body["stream"] = true;
    const Answer stream = server.client().post("/v1/completions", body);
    EXPECT_EQ(stream.status, 200);
    const std::vector<std::string> events = stream.events();
    ASSERT_GE(events.size(), 2u);
    EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["type"], "timeout_error");
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_TRUE(server.becomes_idle());
}

}  // namespace
}  // namespace espalier::server::test
