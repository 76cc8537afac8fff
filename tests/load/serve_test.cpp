// SPDX-License-Identifier: Apache-2.0
// A load against Espalier's own server, in this process.
#include <gtest/gtest.h>

#include "client/models.hpp"
#include "load/report.hpp"
#include "load/run.hpp"
#include "server/running_server.hpp"

namespace espalier::load {
namespace {

using server::test::RunningServer;

struct Ran {
    RunResult run;
    std::optional<SpeculationCounts> speculation;
};

Ran run_against(RunningServer& server, LoadOptions options) {
    const auto client = client::HttpClient::open(
        {.url = {.host = "127.0.0.1", .port = std::to_string(server.port()), .path = {}}});
    EXPECT_TRUE(client);
    const auto model = client::first_model(**client);
    EXPECT_TRUE(model) << model.error().message;
    options.model = *model;
    const auto metrics = [&] {
        return speculation_of_metrics(*client::fetch(**client, {.path = "/metrics"}, 1 << 22));
    };
    const auto before = metrics();
    Ran ran{.run = run_load(**client, options, [](const Progress&) {}), .speculation = {}};
    ran.speculation = speculation_of_run(before, metrics(), ran.run.records);
    return ran;
}

TEST(LoadOfServe, EveryTokenIsCountedAndTheServerIsIdleAfterwards) {
    RunningServer server;
    const Ran ran = run_against(server, {.requests = 24,
                                         .concurrency = 5,
                                         .input_tokens = 20,
                                         .output_tokens = 12,
                                         .vocabulary = 250,
                                         .temperature = 0.7,
                                         .ignore_eos = true});
    EXPECT_EQ(ran.run.end, RunEnd::complete);
    const Figures figures = figures_of(ran.run.records, {});
    EXPECT_EQ(figures.completed, 24) << ran.run.records[0].failure->message;
    EXPECT_EQ(figures.output_tokens, 24 * 12);
    EXPECT_EQ(figures.input_tokens, 24 * 20);
    EXPECT_EQ(figures.guessed, 0);
    EXPECT_LE(figures.peak_under_way, 5);
    EXPECT_TRUE(server.becomes_idle());
}

TEST(LoadOfServe, ChatsOfATextAndDraftsFromRepetition) {
    RunningServer server;
    std::string text;
    for (int i = 0; i < 100; ++i) text += "again and again ";
    const Ran ran = run_against(server, {.api = Api::chat,
                                         .requests = 6,
                                         .input_tokens = 40,
                                         .output_tokens = 40,
                                         .text = text,
                                         .ignore_eos = true});
    const Figures figures = figures_of(ran.run.records, {});
    EXPECT_EQ(figures.completed, 6) << ran.run.records[0].failure->message;
    EXPECT_EQ(figures.output_tokens, 6 * 40);
    const auto usage = speculation_of_run({}, {}, ran.run.records);
    ASSERT_EQ(ran.speculation.has_value(), usage.has_value());
    if (!usage) return;
    EXPECT_EQ(ran.speculation->accepted_tokens, usage->accepted_tokens);
    EXPECT_EQ(ran.speculation->draft_tokens, usage->draft_tokens);
}

TEST(LoadOfServe, AModelThatIsNotThereIsAStatus) {
    RunningServer server;
    const auto client = client::HttpClient::open(
        {.url = {.host = "127.0.0.1", .port = std::to_string(server.port()), .path = {}}});
    const RunResult run =
        run_load(**client, {.model = "another", .requests = 2}, [](const Progress&) {});
    EXPECT_EQ(
        figures_of(run.records, {}).failures[static_cast<std::size_t>(client::FailureKind::status)],
        2);
}

}  // namespace
}  // namespace espalier::load
