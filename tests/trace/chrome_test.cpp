// SPDX-License-Identifier: Apache-2.0
// The timeline is valid JSON in the form that trace viewers load, and its times nest.
#include "trace/chrome.hpp"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "trace/samples.hpp"

namespace espalier::trace {
namespace {

nlohmann::json timeline_of(const std::string& text) {
    auto reader = read_text(text);
    EXPECT_TRUE(reader) << reader.error().message;
    std::string out;
    StringSink sink(out);
    const auto steps = write_chrome(*reader, sink);
    EXPECT_TRUE(steps) << steps.error().message;
    return nlohmann::json::parse(out);
}

std::vector<nlohmann::json> events_with(const nlohmann::json& timeline, const char* phase) {
    std::vector<nlohmann::json> found;
    for (const auto& event : timeline["traceEvents"])
        if (event["ph"] == phase) found.push_back(event);
    return found;
}

TEST(Chrome, StepsHoldTheirPhases) {
    Step second = sample_step();
    second.number = 13;
    second.begin = 5'000;
    second.ended.clear();
    const auto timeline =
        timeline_of(file_of(sample_header(), {sample_submission(), sample_step(), second}));
    const auto spans = events_with(timeline, "X");
    ASSERT_EQ(spans.size(), 26u);  // two steps of twelve phases
    double end_of_last = -1;
    for (std::size_t step = 0; step < 2; ++step) {
        const auto& whole = spans[step * 13];
        EXPECT_EQ(whole["name"], step == 0 ? "step 12" : "step 13");
        const double begin = whole["ts"], end = begin + whole["dur"].get<double>();
        EXPECT_GE(begin, end_of_last);
        EXPECT_NEAR(whole["dur"].get<double>(), 0.615, 1e-9);
        double at = begin;
        for (std::size_t i = 1; i <= 12; ++i) {
            const auto& phase = spans[step * 13 + i];
            EXPECT_NEAR(phase["ts"].get<double>(), at, 1e-9) << phase;
            at += phase["dur"].get<double>();
            EXPECT_LE(at, end + 1e-9);
        }
        EXPECT_NEAR(at, end, 1e-9);
        end_of_last = end;
    }
    // Times count from the first line: it was submitted at 500, the step began at 1,000 ns.
    EXPECT_NEAR(spans[0]["ts"].get<double>(), 0.5, 1e-9);
}

TEST(Chrome, AStepTellsWhereItsAcceptedDraftsCameFrom) {
    Step hostile = sample_step();
    hostile.outcomes[0].path = {0, 64};  // no such node
    hostile.trees[0].from = {200, 200, 200, 200};
    hostile.outcomes.push_back({4, {0, 1}, {1, 1}});
    const auto spans = events_with(
        timeline_of(file_of(sample_header(), {sample_submission(), sample_step(), hostile})), "X");
    const auto& drafters = sample_header().settings.drafters;
    const std::string name = drafters.size() > 1 ? drafters[1] : "drafter 1";
    EXPECT_EQ(spans[0]["args"]["accepted from " + name], 1) << spans[0];
    EXPECT_EQ(spans[13]["args"]["accepted from drafter 200"], 1) << spans[13];
}

TEST(Chrome, RequestsBeginAndEndOnce) {
    Step more = sample_step();
    more.begin = 3'000;
    const auto timeline = timeline_of(file_of(
        sample_header(), {sample_submission(), sample_step(), Cancellation{5, 2'000}, more}));
    std::map<int, std::string> reasons;
    for (const auto& event : events_with(timeline, "e"))
        EXPECT_TRUE(reasons.emplace(event["id"], event["args"]["reason"]).second);
    EXPECT_EQ(events_with(timeline, "b").size(), 2u);
    EXPECT_EQ(reasons, (std::map<int, std::string>{{4, "stop_token"}, {5, "cancelled"}}));
    const auto open = timeline_of(file_of(sample_header(), {sample_submission()}));
    EXPECT_EQ(events_with(open, "e").size(), 2u);
    EXPECT_EQ(events_with(open, "e")[0]["args"]["reason"], "trace ends");
}

TEST(Chrome, CountersShowTheMix) {
    const auto timeline = timeline_of(file_of(sample_header(), {sample_step()}));
    const auto counters = events_with(timeline, "C");
    ASSERT_EQ(counters.size(), 3u);
    EXPECT_EQ(
        counters[0]["args"],
        (nlohmann::json{
            {"roots", 1}, {"drafts", 2}, {"prompt absorbed", 0}, {"prompt decompressed", 64}}));
    EXPECT_EQ(counters[1]["args"], (nlohmann::json{{"owned", 10}, {"cached", 4}, {"free", 50}}));
    EXPECT_EQ(counters[2]["args"],
              (nlohmann::json{{"running", 1}, {"prefilling", 1}, {"waiting", 1}}));
    EXPECT_EQ(events_with(timeline, "M")[0]["args"]["name"], "tiny \"quoted\" (avx2, 3 threads)");
}

TEST(Chrome, ChangedFilesGiveValidJsonOrAnError) {
    const std::string text = file_of(sample_header(), sample_events());
    Random random(8);
    int drawn = 0;
    for (int i = 0; i < 3000; ++i) {
        auto reader = read_text(mutated(text, random));
        if (!reader) continue;
        std::string out;
        StringSink sink(out);
        if (!write_chrome(*reader, sink)) continue;
        ASSERT_TRUE(nlohmann::json::accept(out)) << out;
        ++drawn;
    }
    EXPECT_GT(drawn, 300);
}

}  // namespace
}  // namespace espalier::trace
