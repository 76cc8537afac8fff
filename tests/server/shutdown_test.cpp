// SPDX-License-Identifier: Apache-2.0
// The way down: what finishes and what is ended. (tests/cli/serve_test.cpp has the signals.)
#include <gtest/gtest.h>

#include <future>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

Json streamed(int tokens, int choices = 1) {
    Json body = RunningServer::completion("abc", tokens);
    body["stream"] = true;
    body["n"] = choices;
    return body;
}

TEST(ShutDown, WhatRunsFinishesAndNothingNewIsTaken) {
    RunningServer server;
    Client idle = server.client();
    EXPECT_EQ(idle.get("/health").status, 200);
    Client client = server.client();
    client.send(request_text("POST", "/v1/completions", streamed(1500, 2).dump()));
    ASSERT_TRUE(client.receive_until("data: "));
    auto down = std::async(std::launch::async, [&] { return server.server->shut_down(); });
    // Connections of before and new ones are told, for as long as requests run.
    Answer health = idle.get("/health");
    while (health.status == 200) health = idle.get("/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_EQ(server.client().get("/health").status, 503);
    EXPECT_EQ(server.client().get("/livez").status, 200);
    EXPECT_EQ(server.client().post("/v1/completions", streamed(1)).status, 503);
    EXPECT_TRUE(client.receive_until("data: [DONE]\n\n"));
    EXPECT_TRUE(down.get());
}

TEST(ShutDown, WhatDoesNotFinishInTimeEndsWithAnError) {
    RunningServer::Setup setup;
    setup.server.drain_seconds = 0.1;
    RunningServer server(setup);
    Client streaming = server.client(), whole = server.client();
    streaming.send(request_text("POST", "/v1/completions", streamed(8000, 4).dump()));
    Json body = streamed(8000, 4);
    body["stream"] = false;
    whole.send(request_text("POST", "/v1/completions", body.dump()));
    ASSERT_TRUE(server.reaches([](const auto& status) { return status.gauges.running == 8; }));
    EXPECT_FALSE(server.server->shut_down());
    const std::vector<std::string> events = streaming.receive().events();
    ASSERT_GE(events.size(), 2u);
    EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["message"],
              "the server is shutting down");
    EXPECT_EQ(whole.receive().status, 503);
}

TEST(Start, APortThatIsTakenIsNamed) {
    RunningServer::Setup setup;
    setup.load = false;
    RunningServer server(setup);
    ServerOptions options = test_options();
    options.port = server.port();
    Log log(Log::Format::text, server.log_file);
    const auto second = Server::start(options, log);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().field, "port");
}

}  // namespace
}  // namespace espalier::server::test
