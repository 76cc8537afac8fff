// SPDX-License-Identifier: Apache-2.0
// Streams byte by byte, and clients that go in the middle.
#include <gtest/gtest.h>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

std::string joined(const Answer& answer, int index = 0) {
    std::string text;
    for (const std::string& event : answer.events()) {
        if (event == "[DONE]") continue;
        const Json chunk = Json::parse(event);
        for (const Json& choice : chunk["choices"])
            if (choice["index"] == index) text += choice["text"].get<std::string>();
    }
    return text;
}

TEST(Streaming, HasTheHeadersAndTheEndThatClientsWaitFor) {
    RunningServer server;
    Client client = server.client();
    Json body = RunningServer::completion("abc", 12);
    const std::string whole = client.post("/v1/completions", body).json()["choices"][0]["text"];
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const Answer answer = client.post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
    EXPECT_EQ(answer.headers.at("cache-control"), "no-cache");
    EXPECT_EQ(answer.headers.at("x-accel-buffering"), "no");
    EXPECT_EQ(answer.headers.at("transfer-encoding"), "chunked");
    const std::vector<std::string> events = answer.events();
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(joined(answer), whole);
    const Json usage = Json::parse(events[events.size() - 2]);
    EXPECT_EQ(usage["choices"], Json::array());
    EXPECT_EQ(usage["usage"]["completion_tokens"], 12);
    EXPECT_EQ(Json::parse(events[events.size() - 3])["choices"][0]["finish_reason"], "length");
    std::set<std::string> ids;
    for (std::size_t i = 0; i + 1 < events.size(); ++i) ids.insert(Json::parse(events[i])["id"]);
    EXPECT_EQ(ids.size(), 1u);
    // The connection goes on.
    EXPECT_EQ(client.get("/health").status, 200);
}

// With prescribed drafts every step has a tree, whatever a step takes here.
TEST(Streaming, AReportHasTheTreesOfItsSteps) {
    RunningServer server;
    Client client = server.client();
    Json body = RunningServer::completion("abcabcabcabcabc", 40);
    body["temperature"] = 0.0;
    const std::string whole = client.post("/v1/completions", body).json()["choices"][0]["text"];
    body["stream"] = true;
    body["speculation_report"] = true;
    body["draft_depth"] = 3;
    const Answer answer = client.post("/v1/completions", body);
    EXPECT_EQ(joined(answer), whole);
    std::string reported;
    std::size_t trees = 0;
    Json totals;
    for (const std::string& event : answer.events()) {
        if (event == "[DONE]") continue;
        const Json report = Json::parse(event)["choices"][0]["speculation"];
        for (const Json& token : report["tokens"]) reported += token["text"].get<std::string>();
        for (const Json& tree : report["trees"]) {
            ++trees;
            const std::size_t nodes = tree["texts"].size();
            EXPECT_GT(nodes, 1u);
            EXPECT_LE(nodes, 4u);
            EXPECT_EQ(tree["parents"].size(), nodes);
            EXPECT_EQ(tree["sources"].size(), nodes);
            EXPECT_EQ(tree["sources"][0], nullptr);
            EXPECT_EQ(tree["sources"][1], "ngram");
            EXPECT_EQ(tree["path"][0], 0);
            EXPECT_LE(tree["path"].size(), nodes);
        }
        if (report.contains("steps")) totals = report;
    }
    EXPECT_EQ(reported, whole);
    EXPECT_GT(trees, 0u);
    EXPECT_GT(totals["drafted"], 0);
    EXPECT_EQ(totals["drafters"]["ngram"]["drafted"], totals["drafted"]);
}

TEST(Streaming, ChoicesEchoAndLogprobsAddUpToTheWhole) {
    RunningServer server;
    Client client = server.client();
    Json body = RunningServer::completion("abc", 9);
    body["n"] = 3;
    body["echo"] = true;
    body["logprobs"] = 1;
    const Json whole = client.post("/v1/completions", body).json();
    body["stream"] = true;
    const Answer answer = client.post("/v1/completions", body);
    for (int i = 0; i < 3; ++i) {
        const Json& choice = whole["choices"][static_cast<std::size_t>(i)];
        EXPECT_EQ(joined(answer, i), choice["text"].get<std::string>());
        Json tokens = Json::array(), offsets = Json::array();
        for (const std::string& event : answer.events()) {
            if (event == "[DONE]") continue;
            const Json part = Json::parse(event)["choices"][0];
            if (part["index"] != i || part["logprobs"].is_null()) continue;
            for (const Json& token : part["logprobs"]["tokens"]) tokens.push_back(token);
            for (const Json& offset : part["logprobs"]["text_offset"]) offsets.push_back(offset);
        }
        EXPECT_EQ(tokens, choice["logprobs"]["tokens"]);
        EXPECT_EQ(offsets, choice["logprobs"]["text_offset"]);
    }
}

TEST(Streaming, AnOldClientGetsAStreamThatEndsWithTheConnection) {
    RunningServer server;
    Client client = server.client();
    Json body = RunningServer::completion("abc", 3);
    body["stream"] = true;
    const std::string text = body.dump();
    client.send(
        "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: " +
        std::to_string(text.size()) + "\r\n\r\n" + text);
    std::string all;
    for (std::string part; !(part = client.receive_some()).empty();) all += part;
    EXPECT_EQ(all.find("chunked"), std::string::npos);
    EXPECT_TRUE(all.ends_with("data: [DONE]\n\n")) << all;
}

// Far more than is generated before a client's going is noticed.
Json endless(int choices = 4) {
    Json body = RunningServer::completion("abc", 7000);
    body["n"] = choices;
    return body;
}

std::int64_t cancelled(const engine::EngineStatus& status) {
    return status.sums.ends.of(engine::Interruption::cancelled);
}

TEST(Disconnect, EndsAStream) {
    RunningServer server;
    Client client = server.client();
    Json body = endless();
    body["stream"] = true;
    client.send(request_text("POST", "/v1/completions", body.dump()));
    ASSERT_TRUE(client.receive_until("data: "));
    client.close();
    EXPECT_TRUE(server.reaches([](const auto& status) { return cancelled(status) == 4; }));
    EXPECT_TRUE(server.becomes_idle());
    EXPECT_EQ(server.client().get("/health").status, 200);
}

TEST(Disconnect, EndsARequestThatWaitsForItsWholeAnswer) {
    RunningServer server;
    for (const bool hard : {false, true}) {
        const std::int64_t before = cancelled(server.status());
        Client client = server.client();
        client.send(request_text("POST", "/v1/completions", endless().dump()));
        ASSERT_TRUE(server.reaches([](const auto& status) { return status.gauges.running > 0; }));
        // Bytes that were sent ahead do not hide that the client has gone.
        if (hard) client.send("GET /health HTTP/1.1\r\n");
        hard ? client.reset() : client.close();
        EXPECT_TRUE(
            server.reaches([&](const auto& status) { return cancelled(status) == before + 4; }));
        EXPECT_TRUE(server.becomes_idle());
    }
}

TEST(Disconnect, EndsARequestInTheQueue) {
    RunningServer::Setup setup;
    setup.sizes.rows = 1;
    RunningServer server(setup);
    Client running = server.client();
    running.send(request_text("POST", "/v1/completions", endless(1).dump()));
    ASSERT_TRUE(server.reaches([](const auto& status) { return status.gauges.running == 1; }));
    Client queued = server.client();
    queued.send(request_text("POST", "/v1/completions", endless(3).dump()));
    ASSERT_TRUE(server.reaches(
        [](const auto& status) { return status.queued + status.gauges.waiting == 3; }));
    queued.close();
    EXPECT_TRUE(server.reaches([](const auto& status) {
        return cancelled(status) == 3 && status.queued + status.gauges.waiting == 0;
    }));
    running.close();
    EXPECT_TRUE(server.reaches([](const auto& status) { return cancelled(status) == 4; }));
    EXPECT_TRUE(server.becomes_idle());
}

TEST(Pipelining, RequestsThatComeTogetherAreAnsweredInOrder) {
    RunningServer server;
    Client client = server.client();
    std::string all;
    for (int i = 1; i <= 5; ++i)
        all += request_text("POST", "/v1/completions", RunningServer::completion("abc", i).dump()) +
               request_text("GET", "/health");
    client.send(all);
    for (int i = 1; i <= 5; ++i) {
        EXPECT_EQ(client.receive().json()["usage"]["completion_tokens"], i);
        EXPECT_EQ(client.receive().status, 200);
    }
}

}  // namespace
}  // namespace espalier::server::test
