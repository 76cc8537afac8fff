// SPDX-License-Identifier: Apache-2.0
// Answers with scripted times, and the figures that follow: no clock but the test's.
#include "load/figures.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.hpp"
#include "load/recorder.hpp"

namespace espalier::load {
namespace {

using client::FailureKind;
using client::Verdict;

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }
const std::string kPiece = event(R"({"choices":[{"text":"x"}]})");
const std::string kUsage =
    event(R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}})");
const std::string kDone = event("[DONE]");

TEST(Recorder, TimesAreThoseOfWholeEventsWithText) {
    Recorder recorder(0.5, 1.0, 77, 10);
    recorder.status(200);
    EXPECT_EQ(recorder.bytes(1.1, ": ping\n\n"), Verdict::waiting);
    EXPECT_EQ(recorder.bytes(1.2, kPiece.substr(0, 10)), Verdict::waiting);
    EXPECT_EQ(recorder.bytes(1.5, kPiece.substr(10)), Verdict::progress);
    EXPECT_EQ(recorder.bytes(1.75, kPiece + kPiece), Verdict::progress);
    EXPECT_EQ(recorder.bytes(2.0, kUsage), Verdict::waiting);
    EXPECT_EQ(recorder.bytes(2.25, kDone), Verdict::enough);
    recorder.end(2.5, std::nullopt);
    const RequestRecord& record = recorder.record();
    EXPECT_FALSE(record.failure);
    EXPECT_EQ(record.due, 0.5);
    EXPECT_EQ(record.sent, 1.0);
    EXPECT_EQ(record.first_piece, 1.5);
    EXPECT_EQ(record.gaps, (std::vector<double>{0.25, 0}));
    EXPECT_EQ(record.ended, 2.5);
    EXPECT_EQ(record.input_tokens, 3);
    EXPECT_EQ(record.output_tokens, 9);
    EXPECT_TRUE(record.counted_by_server);
}

TEST(Recorder, GuessesWhatTheServerDoesNotCount) {
    Recorder recorder(0, 0, 77, 10);
    recorder.status(200);
    recorder.bytes(1, kPiece + kPiece + kPiece + kDone);
    recorder.end(1, std::nullopt);
    EXPECT_EQ(recorder.record().input_tokens, 77);
    EXPECT_EQ(recorder.record().output_tokens, 3);
    EXPECT_FALSE(recorder.record().counted_by_server);
}

TEST(Recorder, FailuresKeepTheirKind) {
    const auto failure_of = [](int status, const std::string& body,
                               std::optional<client::Failure> end) {
        Recorder recorder(0, 0, 1, 10);
        recorder.status(status);
        recorder.bytes(1, body);
        recorder.end(2, std::move(end));
        return recorder.record().failure ? recorder.record().failure->kind : FailureKind::connect;
    };
    EXPECT_EQ(failure_of(429, "{}", std::nullopt), FailureKind::status);
    EXPECT_EQ(failure_of(200, kPiece, std::nullopt), FailureKind::closed);
    EXPECT_EQ(failure_of(200, event("{"), std::nullopt), FailureKind::json);
    EXPECT_EQ(failure_of(200, kPiece + kDone, client::Failure{FailureKind::timeout, ""}),
              FailureKind::timeout);
}

// sent, first and ended in seconds.
RequestRecord made(double sent, double first, double ended, std::vector<double> gaps,
                   std::int64_t tokens) {
    return {.due = sent,
            .sent = sent,
            .first_piece = first,
            .ended = ended,
            .gaps = std::move(gaps),
            .input_tokens = 10,
            .output_tokens = tokens,
            .counted_by_server = true};
}

TEST(Figures, AreThoseOfTheDefinition) {
    std::vector<RequestRecord> records = {made(0, 0.5, 2.5, {0.5, 1.0}, 5),
                                          made(1, 1.25, 1.25, {}, 1)};
    records.push_back(made(2, 2.5, 3.0, {0.5}, 2));
    records.back().failure = client::Failure{FailureKind::status, "HTTP 429"};
    const Figures figures = figures_of(records, {});
    EXPECT_EQ(figures.completed, 2);
    EXPECT_EQ(figures.failed, 1);
    EXPECT_EQ(figures.failures[static_cast<int>(FailureKind::status)], 1);
    EXPECT_EQ(figures.input_tokens, 20);
    EXPECT_EQ(figures.output_tokens, 6);
    EXPECT_EQ(figures.ttft, (std::vector<double>{250, 500}));
    EXPECT_EQ(figures.tpot, (std::vector<double>{500}));  // 2,000 ms for four; none of a single one
    EXPECT_EQ(figures.itl, (std::vector<double>{500, 1000}));
    EXPECT_EQ(figures.e2el, (std::vector<double>{250, 2500}));
    // Pieces at 0.5, 1.0 and 2.0 share five tokens; one token at 1.25.
    ASSERT_EQ(figures.tokens_by_second.size(), 3u);
    EXPECT_DOUBLE_EQ(figures.tokens_by_second[0], 5.0 / 3);
    EXPECT_DOUBLE_EQ(figures.tokens_by_second[1], 5.0 / 3 + 1);
    EXPECT_DOUBLE_EQ(figures.peak_output, 5.0 / 3 + 1);
    EXPECT_EQ(figures.peak_under_way, 2);
}

TEST(Figures, GoodputCountsRequestsThatKeepEveryLimit) {
    const std::vector<RequestRecord> records = {made(0, 0.5, 2.5, {2}, 5),
                                                made(0, 0.1, 0.1, {}, 1)};
    const auto good = [&](const std::vector<std::string>& words) {
        return figures_of(records, *parse_goodput(words)).good;
    };
    EXPECT_EQ(good({"ttft:500"}), 2);
    EXPECT_EQ(good({"ttft:499"}), 1);
    EXPECT_EQ(good({"tpot:500"}), 2);
    EXPECT_EQ(good({"tpot:499"}), 1);  // a single token has no time per token
    EXPECT_EQ(good({"ttft:499", "e2el:99"}), 0);
    for (const char* wrong :
         {"ttft", "ttft:", "ttft:x", "ttft:-1", "other:1", "ttft:1x", "ttft:inf"})
        EXPECT_EQ(parse_goodput({wrong}).error().field, "goodput") << wrong;
}

TEST(Figures, PeakOfRequestsAgreesWithCountingAtEveryBeginning) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Random random(seed);
        std::vector<RequestRecord> records;
        for (int i = random.between(1, 20); i > 0; --i) {
            const double sent = random.between(0, 10);
            records.push_back(made(sent, sent, sent + random.between(0, 4), {}, 1));
        }
        std::int64_t peak = 0;
        for (const RequestRecord& at : records) {
            std::int64_t level = 0;  // half-open: an end at this time is over
            for (const RequestRecord& other : records)
                level += other.sent <= at.sent && at.sent < other.ended ? 1 : 0;
            peak = std::max(peak, level);
        }
        EXPECT_EQ(figures_of(records, {}).peak_under_way, peak);
        EXPECT_EQ(under_way_over_time(records).back().level, 0);
    }
}

TEST(Figures, PercentilesAreNumpys) {
    EXPECT_EQ(percentile({}, 50), 0);
    EXPECT_EQ(percentile({3}, 99), 3);
    EXPECT_EQ(percentile({1, 2, 3, 4}, 50), 2.5);
    EXPECT_DOUBLE_EQ(percentile({0, 10}, 99), 9.9);
    EXPECT_EQ(percentile({1, 2, 3}, 100), 3);
    EXPECT_EQ(percentile({1, 2, 3}, 0), 1);
    EXPECT_DOUBLE_EQ(deviation({2, 4, 4, 4, 5, 5, 7, 9}), 2);
    EXPECT_EQ(mean({}), 0);
    EXPECT_EQ(deviation({}), 0);
}

}  // namespace
}  // namespace espalier::load
