// SPDX-License-Identifier: Apache-2.0
// The three forms of a report, for a run that is known.
#include "load/report.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include "load/svg.hpp"

namespace espalier::load {
namespace {

Report known_report() {
    Report report{.options = {.model = "m", .requests = 3, .concurrency = 2},
                  .url = "http://127.0.0.1:8000",
                  .date = "20250101-000000",
                  .seconds = 2};
    for (const double first : {0.1, 0.3})
        report.records.push_back({.first_piece = first,
                                  .ended = first + 0.4,
                                  .gaps = {0.2, 0.2},
                                  .input_tokens = 10,
                                  .output_tokens = 5,
                                  .counted_by_server = true});
    report.records.push_back(
        {.sent = 1,
         .ended = 1.5,
         .failure = client::Failure{client::FailureKind::status, "HTTP 429: full"}});
    report.goodput.ttft = 200;
    report.speculation = SpeculationCounts{.drafts = 4,
                                           .draft_tokens = 12,
                                           .accepted_tokens = 6,
                                           .accepted_by_position = {{0, 3}, {1, 1}}};
    return report;
}

TEST(ReportText, IsTheBlockThatPeersPrint) {
    EXPECT_EQ(report_text(known_report()),
              "============ Serving Benchmark Result ============\n"
              "Successful requests:                     2         \n"
              "Failed requests:                         1         \n"
              "Maximum request concurrency:             2         \n"
              "Benchmark duration (s):                  2.00      \n"
              "Total input tokens:                      20        \n"
              "Total generated tokens:                  10        \n"
              "Request throughput (req/s):              1.00      \n"
              "Request goodput (req/s):                 0.50      \n"
              "Goodput limits (ms):                     ttft 200\n"
              "Output token throughput (tok/s):         5.00      \n"
              "Peak output token throughput (tok/s):    10.00     \n"
              "Peak concurrent requests:                2.00      \n"
              "Total token throughput (tok/s):          15.00     \n"
              "---------------Time to First Token----------------\n"
              "Mean TTFT (ms):                          200.00    \n"
              "Median TTFT (ms):                        200.00    \n"
              "P99 TTFT (ms):                           298.00    \n"
              "-----Time per Output Token (excl. 1st token)------\n"
              "Mean TPOT (ms):                          100.00    \n"
              "Median TPOT (ms):                        100.00    \n"
              "P99 TPOT (ms):                           100.00    \n"
              "---------------Inter-token Latency----------------\n"
              "Mean ITL (ms):                           200.00    \n"
              "Median ITL (ms):                         200.00    \n"
              "P99 ITL (ms):                            200.00    \n"
              "----------------End-to-end Latency----------------\n"
              "Mean E2EL (ms):                          600.00    \n"
              "Median E2EL (ms):                        600.00    \n"
              "P99 E2EL (ms):                           698.00    \n"
              "---------------Speculative Decoding---------------\n"
              "Acceptance rate (%):                     50.00     \n"
              "Acceptance length:                       2.50      \n"
              "Drafts:                                  4         \n"
              "Draft tokens:                            12        \n"
              "Accepted tokens:                         6         \n"
              "Per-position acceptance (%):\n"
              "  Position 0:                            75.00     \n"
              "  Position 1:                            25.00     \n"
              "==================================================\n");
}

TEST(ReportText, FollowsItsOptions) {
    Report report = known_report();
    report.options.concurrency = 0;
    report.options.rate = 2.5;
    report.metrics = {"ttft"};
    report.percentiles = {90, 99.9};
    report.goodput = {};
    report.speculation.reset();
    const std::string text = report_text(report);
    EXPECT_NE(text.find("Request rate configured (RPS):           2.50      \n"),
              std::string::npos);
    EXPECT_NE(text.find("P90 TTFT (ms):  "), std::string::npos);
    EXPECT_NE(text.find("P99.9 TTFT (ms):  "), std::string::npos);
    for (const char* absent : {"concurrency:", "goodput", "TPOT", "Speculative"})
        EXPECT_EQ(text.find(absent), std::string::npos) << absent;
    EXPECT_EQ(failures_text(report), "1 failed, HTTP status: HTTP 429: full\n");
}

// A run of half a second has fewer tokens than its rate says.
TEST(Report, ThePeakIsNoLessThanTheMean) {
    Report report{.options = {.model = "m"}, .url = "u", .seconds = 0.5};
    report.records.push_back(
        {.first_piece = 0.1, .ended = 0.5, .gaps = {0.1, 0.1}, .output_tokens = 30});
    EXPECT_NE(report_text(report).find("Output token throughput (tok/s):         60.00     \n"
                                       "Peak output token throughput (tok/s):    60.00     \n"),
              std::string::npos)
        << report_text(report);
    EXPECT_EQ(report_json(report, false)["max_output_tokens_per_s"], 60);
    EXPECT_NE(report_html(report).find("<dt>in the busiest second</dt><dd>60</dd>"),
              std::string::npos);
}

TEST(Report, GoodputNamesItsLimits) {
    Report report = known_report();
    report.goodput = {.ttft = 500, .tpot = 12.5, .e2el = 1e4};
    for (const std::string& text : {report_text(report), report_html(report)})
        EXPECT_NE(text.find("ttft 500, tpot 12.5, e2el 10000"), std::string::npos) << text;
    EXPECT_EQ(report_json(report, false)["goodput_limits_ms"], "ttft 500, tpot 12.5, e2el 10000");
    report.goodput = {};
    EXPECT_TRUE(report_json(report, false)["goodput_limits_ms"].is_null());
}

TEST(ReportJson, HasTheKeysThatPeersWrite) {
    const auto json = report_json(known_report(), true);
    for (const char* key : {"date",
                            "backend",
                            "model_id",
                            "num_prompts",
                            "request_rate",
                            "burstiness",
                            "max_concurrency",
                            "duration",
                            "completed",
                            "failed",
                            "total_input_tokens",
                            "total_output_tokens",
                            "request_throughput",
                            "request_goodput",
                            "output_throughput",
                            "total_token_throughput",
                            "max_output_tokens_per_s",
                            "max_concurrent_requests",
                            "mean_ttft_ms",
                            "median_ttft_ms",
                            "std_ttft_ms",
                            "p99_ttft_ms",
                            "mean_tpot_ms",
                            "p99_itl_ms",
                            "median_e2el_ms",
                            "input_lens",
                            "output_lens",
                            "ttfts",
                            "itls",
                            "latencies",
                            "start_times",
                            "errors",
                            "spec_decode_acceptance_rate",
                            "spec_decode_acceptance_length",
                            "spec_decode_num_drafts",
                            "spec_decode_draft_tokens",
                            "spec_decode_accepted_tokens",
                            "spec_decode_per_position_acceptance_rates"})
        EXPECT_TRUE(json.contains(key)) << key;
    EXPECT_EQ(json["completed"], 2);
    EXPECT_EQ(json["request_rate"], "inf");
    EXPECT_EQ(json["errors"][2], "HTTP 429: full");
    EXPECT_EQ(json["failures_by_kind"]["status"], 1);
    EXPECT_NEAR(json["std_ttft_ms"].get<double>(), 100, 1e-9);
    EXPECT_FALSE(report_json(known_report(), false).contains("itls"));
}

// Tags that open close in order; those without content are known.
void expect_balanced(const std::string& html) {
    std::vector<std::string> open;
    const std::regex tag("<(/?)([a-z0-9]+)[^>]*?(/?)>");
    for (std::sregex_iterator at(html.begin(), html.end(), tag), end; at != end; ++at) {
        const std::string name = (*at)[2];
        if (name == "meta" || (*at)[3] == "/") continue;
        if ((*at)[1] != "/") {
            open.push_back(name);
            continue;
        }
        ASSERT_FALSE(open.empty()) << name;
        ASSERT_EQ(open.back(), name);
        open.pop_back();
    }
    EXPECT_TRUE(open.empty()) << open.back();
}

TEST(ReportHtml, IsWholeAndAsksNobodyForAnything) {
    const std::string html = report_html(known_report());
    expect_balanced(html);
    std::size_t drawings = 0;
    for (std::size_t at = 0; (at = html.find("<svg", at)) != std::string::npos; ++at) ++drawings;
    EXPECT_EQ(drawings, 7u);  // four latencies, two over time, the requests
    for (const char* outside : {"src=", "href=", "@import", "url(", "<script"})
        EXPECT_EQ(html.find(outside), std::string::npos) << outside;
    EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
    EXPECT_EQ(html.find("nan"), std::string::npos);
    EXPECT_NE(html.find("HTTP 429: full"), std::string::npos);
}

TEST(ReportHtml, OfNothingAndOfHostileNamesIsWholeToo) {
    Report report{.options = {.model = "<script>alert(1)</script>"}, .url = "http://\"'>&"};
    expect_balanced(report_html(report));
    report.records.push_back(
        {.failure = client::Failure{client::FailureKind::status, "</pre><img src=x onerror=y>"}});
    const std::string html = report_html(report);
    expect_balanced(html);
    EXPECT_EQ(html.find("<script"), std::string::npos);
    EXPECT_EQ(html.find("<img"), std::string::npos);
    EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(ReportHtml, OfALongRunStaysSmall) {
    Report report{.options = {.model = "m"}, .url = "u", .seconds = 20'000};
    for (int i = 0; i < 20'000; ++i)
        report.records.push_back({.sent = i + 0.0,
                                  .first_piece = i + 0.5,
                                  .ended = i + 2.0,
                                  .gaps = {0.5, 0.5},
                                  .output_tokens = 3});
    EXPECT_LT(report_html(report).size(), 400'000u);
}

TEST(Plot, TicksAreRoundAndReachTheMost) {
    EXPECT_EQ(round_ticks(100), (std::vector<double>{0, 50, 100}));
    for (const double most : {1e-9, 0.3, 1.0, 7.0, 99.0, 101.0, 12345.0, 1e12}) {
        const std::vector<double> ticks = round_ticks(most);
        EXPECT_GE(ticks.back(), most * (1 - 1e-9));
        EXPECT_LE(ticks.back(), most * 2.0) << most;
        EXPECT_GE(ticks.size(), 2u);
        EXPECT_LE(ticks.size(), 6u);
    }
    for (const double odd : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
        EXPECT_EQ(round_ticks(odd).back(), 1);
}

}  // namespace
}  // namespace espalier::load
