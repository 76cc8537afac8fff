// SPDX-License-Identifier: Apache-2.0
// Small parts: errors, the log, options, workers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "server/api_error.hpp"
#include "server/log.hpp"
#include "server/options.hpp"
#include "server/workers.hpp"

namespace espalier::server {
namespace {

TEST(ApiError, HasTheFormThatClientsKnow) {
    EXPECT_EQ(
        error_json({.message = "no \"x\"", .param = "seed"}),
        R"({"error":{"message":"no \"x\"","type":"invalid_request_error","param":"seed","code":null}})");
    const HttpResponse full = error_response(api_error({ErrorKind::exhausted, "full"}));
    EXPECT_EQ(full.status, 429);
    EXPECT_EQ(full.headers.at(0).first, "Retry-After");
    EXPECT_EQ(api_error({ErrorKind::unsupported, "x"}).status, 400);
    EXPECT_EQ(unavailable("x").status, 503);
    // Neither a megabyte nor broken UTF-8 of a client's comes back.
    const std::string large = error_json({.message = std::string(1 << 20, 'x') + "\xff"});
    EXPECT_LT(large.size(), 1000u);
    EXPECT_TRUE(nlohmann::json::accept(error_json({.message = "\xff\xfe"})));
}

TEST(Log, ALineIsALineWhateverItHolds) {
    EXPECT_EQ(Log::line(Log::Format::text, Log::Level::info, "a\nb\x1b[1m", 0),
              "1970-01-01T00:00:00Z info    a\\x0ab\\x1b[1m");
    EXPECT_EQ(Log::line(Log::Format::json, Log::Level::warning, "a\n\"b\"", 86400),
              R"({"time":"1970-01-02T00:00:00Z","level":"warning","message":"a\n\"b\""})");
}

TEST(Log, FactsStandBesideTheMessage) {
    const std::vector<Log::Field> fields = {{"path", "/a\nb\""}, {"status", "200", true}};
    EXPECT_EQ(Log::line(Log::Format::text, Log::Level::debug, "request", 0, fields),
              "1970-01-01T00:00:00Z debug   request path=/a\\x0ab\" status=200");
    EXPECT_EQ(
        Log::line(Log::Format::json, Log::Level::error, "request", 0, fields),
        R"({"time":"1970-01-01T00:00:00Z","level":"error","message":"request","path":"/a\nb\"","status":200})");
}

TEST(Log, LinesBelowTheLevelAreNotWritten) {
    std::FILE* file = std::tmpfile();
    Log log(Log::Format::text, file, level_of("warning"));
    log.info("no");
    log.warning("yes");
    log.error("yes");
    EXPECT_EQ(std::ftell(file), 2 * std::ssize("1970-01-01T00:00:00Z warning yes"));
    std::fclose(file);
    EXPECT_EQ(level_of("debug"), Log::Level::debug);
    EXPECT_EQ(level_of("error"), Log::Level::error);
}

// The writer of a log is the thread of all connections: a reader that sleeps must not hold it up.
TEST(Log, APipeThatIsNotReadLosesLinesAndSaysSo) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::FILE* out = fdopen(ends[1], "w");
    Log log(Log::Format::text, out);
    for (int i = 0; i < 5000; ++i) log.info(std::string(100, 'x'));
    std::string text(1 << 20, '\0');
    const auto before = ::read(ends[0], text.data(), text.size());
    ASSERT_GT(before, 0);
    log.info("after");
    const auto bytes = ::read(ends[0], text.data(), text.size());
    ASSERT_GT(bytes, 0);
    text.resize(static_cast<std::size_t>(bytes));
    EXPECT_NE(text.find("lines were lost: the log was not read"), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("info    after\n")) << text;
    std::fclose(out);
    ::close(ends[0]);
}

TEST(Log, WarningsThatClientsCauseAreBounded) {
    std::FILE* file = std::tmpfile();
    Log log(Log::Format::text, file);
    for (int round = 0; round < 2; ++round)
        for (int i = 0; i < 1000; ++i) log.warn_once("field " + std::to_string(i));
    std::rewind(file);
    std::size_t lines = 0;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) lines += c == '\n' ? 1 : 0;
    std::fclose(file);
    EXPECT_EQ(lines, Log::kMaxOnce);
}

TEST(ServerOptions, LimitsAreNamed) {
    EXPECT_TRUE(check_options({}));
    const auto refusal = [](const std::function<void(ServerOptions&)>& change) {
        ServerOptions options;
        change(options);
        const auto checked = check_options(options);
        return checked ? "accepted" : checked.error().message;
    };
    EXPECT_EQ(refusal([](auto& o) { o.port = 70000; }), "port: 70000, not within 0…65535");
    EXPECT_EQ(refusal([](auto& o) { o.log_format = "xml"; }),
              "log_format: xml, not one of text, json");
    EXPECT_EQ(refusal([](auto& o) { o.api_key = {""}; }), "api_key: is empty");
    EXPECT_EQ(refusal([](auto& o) { o.drain_seconds = -1; }),
              "drain_seconds: -1, not within 0…86400");
    EXPECT_EQ(refusal([](auto& o) { o.metrics_names = "ours"; }),
              "metrics_names: ours, not one of espalier, vllm, both");
}

TEST(Workers, RunEveryJobAndStop) {
    std::atomic<int> done = 0;
    Workers workers(3);
    for (int i = 0; i < 100; ++i) workers.run([&] { ++done; });
    while (done < 100) std::this_thread::yield();
    workers.stop();
    workers.run([&] { ++done; });
    EXPECT_EQ(done, 100);
}

}  // namespace
}  // namespace espalier::server
