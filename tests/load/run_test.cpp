// SPDX-License-Identifier: Apache-2.0
// Loads against stand-ins for servers, good and bad: each run ends, and its records say how.
#include "load/run.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "load/figures.hpp"
#include "support/stand_in_server.hpp"

namespace espalier::load {
namespace {

using client::FailureKind;
using test::http_answer;
using test::http_chunked;
using test::ScriptedAnswer;
using test::StandInServer;
using test::streamed_completion;

RunResult run_against(const std::string& url, const LoadOptions& options,
                      double timeout_seconds = 600) {
    const auto client = client::HttpClient::open(
        {.url = *client::parse_url(url), .api_key = "k", .timeout_seconds = timeout_seconds});
    EXPECT_TRUE(client);
    return run_load(**client, options, [](const Progress&) {});
}

std::int64_t failed(const RunResult& run, FailureKind kind) {
    return figures_of(run.records, {}).failures[static_cast<std::size_t>(kind)];
}

TEST(Run, SendsItsLoadAndCountsWhatComesBack) {
    std::atomic<int> number = 0;
    const StandInServer server([&](const std::string& request) {
        EXPECT_TRUE(request.starts_with("POST /v1/completions HTTP/1.1\r\n"));
        const auto body = nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4));
        EXPECT_EQ(body["model"], "m");
        EXPECT_EQ(body["prompt"].size(), 12u);
        const bool refuse = ++number % 4 == 0;
        return ScriptedAnswer{refuse ? http_answer(429, R"({"error":{"message":"full"}})")
                                     : streamed_completion(4)};
    });
    const RunResult run = run_against(
        server.url(),
        {.model = "m", .requests = 20, .concurrency = 3, .input_tokens = 12, .output_tokens = 8});
    EXPECT_EQ(run.end, RunEnd::complete);
    ASSERT_EQ(run.records.size(), 20u);
    EXPECT_EQ(failed(run, FailureKind::status), 5);
    for (const RequestRecord& record : run.records) {
        EXPECT_LE(record.sent, record.ended);
        EXPECT_LE(record.ended, run.seconds);
        if (record.failure) {
            EXPECT_EQ(record.failure->message, "HTTP 429: full");
            continue;
        }
        EXPECT_EQ(record.output_tokens, 8);
        EXPECT_EQ(record.input_tokens, 5);
        EXPECT_EQ(record.pieces(), 4);
        EXPECT_LE(record.sent, *record.first_piece);
        EXPECT_LE(*record.first_piece, record.ended);
    }
    EXPECT_LE(server.most_under_way(), 3);
}

TEST(Run, NothingIsSentBeforeItsTime) {
    const StandInServer server(
        [](const std::string&) { return ScriptedAnswer{streamed_completion(1)}; });
    const RunResult run = run_against(server.url(), {.requests = 40, .rate = 400, .seed = 5});
    ASSERT_EQ(run.records.size(), 40u);
    for (const RequestRecord& record : run.records) {
        EXPECT_FALSE(record.failure);
        EXPECT_GE(record.sent, record.due);
    }
    EXPECT_NEAR(run.records.back().due, 40 / 400.0, 1e-9);
}

TEST(Run, HostileAnswersAreFailuresByKindAndBounded) {
    const std::string piece = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
    const std::string head = "HTTP/1.1 200 OK\r\n\r\n";
    const std::pair<ScriptedAnswer, FailureKind> cases[] = {
        {{""}, FailureKind::closed},
        {{"garbage\r\n\r\n"}, FailureKind::protocol},
        {{head + std::string("\0\xff\x1b[2J", 6)}, FailureKind::events},
        {{head + piece}, FailureKind::closed},
        {{http_chunked({piece, "data: {\"choices\"\n\n"})}, FailureKind::json},
        {{http_chunked({piece, "data: {\"error\":{\"message\":\"x\"}}\n\n"})},
         FailureKind::server_error},
        {{http_answer(429, "{}")}, FailureKind::status},
        {{http_answer(200, "{\"choices\":[{\"text\":\"not streamed\"}]}")}, FailureKind::events},
        // A line without end, and an answer without end.
        {{.bytes = head + "data: " + std::string(1 << 21, 'x'), .at_a_time = 1 << 16},
         FailureKind::events},
        {{.bytes = head +
                   [&] {
                       std::string all;
                       for (int i = 0; i < 4000; ++i) all += piece;
                       return all;
                   }(),
          .at_a_time = 1 << 16,
          .hold = true},
         FailureKind::events},
    };
    for (const auto& [script, kind] : cases) {
        const StandInServer server([&](const std::string&) { return script; });
        const RunResult run = run_against(server.url(), {.requests = 3, .output_tokens = 8});
        EXPECT_EQ(run.end, RunEnd::complete);
        EXPECT_EQ(failed(run, kind), 3)
            << script.bytes.substr(0, 200) << run.records[0].failure->message;
    }
}

TEST(Run, AServerThatIsGoneEndsTheRun) {
    std::string url;
    {
        const StandInServer server([](const std::string&) { return ScriptedAnswer{}; });
        url = server.url();
    }
    const RunResult run = run_against(url, {.requests = 1000, .concurrency = 1});
    EXPECT_EQ(run.end, RunEnd::server_gone);
    EXPECT_EQ(std::ssize(run.records), kGoneAfter);
    EXPECT_EQ(failed(run, FailureKind::connect), kGoneAfter);
}

TEST(Run, AServerThatStallsEndsTheRunToo) {
    const StandInServer server([](const std::string&) {
        return ScriptedAnswer{.bytes = "HTTP/1.1 200 OK\r\n\r\n: ping\n\n", .hold = true};
    });
    const RunResult run = run_against(server.url(), {.requests = 1000, .concurrency = 2}, 0.02);
    EXPECT_EQ(run.end, RunEnd::server_gone);
    EXPECT_EQ(failed(run, FailureKind::timeout), kGoneAfter);
    EXPECT_LE(std::ssize(run.records), kGoneAfter + 1);
}

TEST(Run, CtrlCLeavesWhatWasMeasured) {
    std::atomic<int> number = 0;
    const StandInServer server([&](const std::string&) {
        const int mine = ++number;
        if (mine == 6) ::kill(::getpid(), SIGINT);
        if (mine < 6) return ScriptedAnswer{streamed_completion(2)};
        return ScriptedAnswer{.bytes = "HTTP/1.1 200 OK\r\n\r\n", .hold = true};
    });
    const RunResult run = run_against(server.url(), {.requests = 1000, .concurrency = 1});
    EXPECT_EQ(run.end, RunEnd::interrupted);
    EXPECT_EQ(figures_of(run.records, {}).completed, 5);
    EXPECT_EQ(failed(run, FailureKind::interrupted), 1);
    EXPECT_EQ(run.records.size(), 6u);
}

}  // namespace
}  // namespace espalier::load
