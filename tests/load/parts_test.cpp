// SPDX-License-Identifier: Apache-2.0
// When a load is sent, what it asks for, and what its drafts did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.hpp"
#include "load/figures.hpp"
#include "load/prompts.hpp"
#include "load/schedule.hpp"
#include "load/speculation.hpp"
#include "text/utf8.hpp"

namespace espalier::load {
namespace {

using Json = nlohmann::json;

TEST(Arrivals, HaveTheRateAndTheSpreadOfAGammaDistribution) {
    for (const double burstiness : {0.3, 1.0, 5.0}) {
        const std::vector<double> times =
            arrival_times({.requests = 40'000, .rate = 50, .burstiness = burstiness, .seed = 3});
        EXPECT_TRUE(std::ranges::is_sorted(times));
        EXPECT_NEAR(times.back(), 40'000 / 50.0, 1e-6);
        std::vector<double> intervals;
        for (std::size_t i = 1; i < times.size(); ++i) intervals.push_back(times[i] - times[i - 1]);
        // Variance over mean² is 1/shape; its error over 40,000 draws stays below 6 % for 0.3.
        const double spread = deviation(intervals) / mean(intervals);
        EXPECT_NEAR(spread * spread * burstiness, 1.0, 0.06) << burstiness;
    }
}

TEST(Arrivals, FollowFromTheSeedAlone) {
    const LoadOptions options{.requests = 100, .rate = 7, .seed = 11};
    LoadOptions other = options;
    other.seed = 12;
    EXPECT_EQ(arrival_times(options), arrival_times(options));
    EXPECT_NE(arrival_times(options), arrival_times(other));
    EXPECT_EQ(arrival_times({.requests = 3}), std::vector<double>(3, 0.0));  // rate inf
}

// Requests of random lengths on a clock of their own: none is sent early or out of order, never
// too many at a time, and none waits that need not.
TEST(Pacer, KeepsTimesAndConcurrencyOnRandomLoads) {
    for (int seed = 0; seed < 300; ++seed) {
        Random random(static_cast<std::uint64_t>(seed));
        const int concurrency = random.between(0, 4), count = random.between(1, 30);
        std::vector<double> arrivals;
        double time = 0;
        for (int i = 0; i < count; ++i) arrivals.push_back(time += random.between(0, 3));
        Pacer pacer(arrivals, concurrency);
        const int gives_up_at = random.chance(0.2) ? random.between(0, count) : count;
        std::multiset<double> ends;
        std::size_t sent = 0;
        for (double now = 0;;) {
            if (std::ssize(arrivals) > gives_up_at && static_cast<int>(sent) == gives_up_at)
                pacer.give_up();
            const Pacer::Step step = pacer.next(now);
            if (const auto* send = std::get_if<Pacer::Send>(&step)) {
                ASSERT_EQ(send->request, sent);
                ASSERT_LE(arrivals[sent++], now);
                ends.insert(now + random.between(1, 5));
                ASSERT_TRUE(concurrency == 0 || std::ssize(ends) <= concurrency);
                continue;
            }
            ASSERT_EQ(pacer.under_way(), std::ssize(ends));
            if (std::holds_alternative<Pacer::Finished>(step)) break;
            if (const auto* wait = std::get_if<Pacer::WaitUntil>(&step);
                wait != nullptr && (ends.empty() || wait->seconds < *ends.begin())) {
                ASSERT_GT(wait->seconds, now);
                ASSERT_EQ(wait->seconds, arrivals[sent]);
                now = wait->seconds;
                continue;
            }
            ASSERT_FALSE(ends.empty());
            now = std::max(now, *ends.begin());
            ends.erase(ends.begin());
            pacer.ended();
        }
        EXPECT_TRUE(ends.empty());
        EXPECT_EQ(static_cast<int>(sent), std::min(count, gives_up_at));
    }
}

TEST(Prompts, AreIdsOfTheirRange) {
    const LoadOptions options{.model = "m",
                              .input_tokens = 50,
                              .output_tokens = 9,
                              .vocabulary = 120,
                              .ignore_eos = true};
    std::set<int> seen;
    for (std::size_t i = 0; i < 40; ++i) {
        const Json body = Json::parse(request_body(options, i));
        EXPECT_EQ(body["prompt"].size(), 50u);
        for (const int id : body["prompt"]) seen.insert(id);
        EXPECT_EQ(body["max_tokens"], 9);
        EXPECT_EQ(body["ignore_eos"], true);
        EXPECT_EQ(body["stream_options"]["include_usage"], true);
        EXPECT_EQ(request_body(options, i), request_body(options, i));
        EXPECT_NE(request_body(options, i), request_body(options, i + 1));
    }
    EXPECT_EQ(*seen.begin(), 100);
    EXPECT_EQ(*seen.rbegin(), 119);
}

// Common parts of two prompts would be found by a prefix cache or an n-gram drafter.
TEST(Prompts, HaveNothingInCommon) {
    const LoadOptions options{.input_tokens = 200, .vocabulary = 1 << 24};
    std::set<int> seen;
    for (std::size_t i = 0; i < 50; ++i) {
        const Json body = Json::parse(request_body(options, i));
        for (const int id : body["prompt"]) seen.insert(id);
    }
    EXPECT_GT(seen.size(), 9'950u);  // of 10,000; about 3 pairs are equal by chance
}

TEST(Prompts, AreCutFromATextAtWholeCodePoints) {
    LoadOptions options{.input_tokens = 6, .text = "Ünïcödé – “wörds” 漢字 of a text"};
    for (std::size_t i = 0; i < 200; ++i) {
        const std::string prompt = Json::parse(request_body(options, i))["prompt"];
        EXPECT_EQ(text::valid_utf8_prefix(prompt), prompt.size());
        EXPECT_EQ(prompt.find("\xef\xbf\xbd"), std::string::npos) << prompt;
        EXPECT_LE(prompt.size(), 24u);
        EXPECT_GT(prompt.size(), 20u);
    }
    options.input_tokens = 100;  // longer than the text: it goes round
    EXPECT_GT(Json::parse(request_body(options, 0))["prompt"].get<std::string>().size(), 396u);
}

TEST(Prompts, OfAFileComeInTurnAndChatsHaveMessages) {
    LoadOptions options{.api = Api::chat};
    options.prompts = *parse_prompts("{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"x\":1}", "f");
    for (std::size_t i = 0; i < 4; ++i) {
        const Json messages = Json::parse(request_body(options, i))["messages"];
        EXPECT_EQ(messages[0]["content"], i % 2 == 0 ? "a" : "b");
    }
    EXPECT_TRUE(check_prompts(options));
    EXPECT_FALSE(check_prompts({.api = Api::chat}));
    EXPECT_FALSE(check_prompts({.vocabulary = 100}));
    for (const char* wrong : {"", "x", "{}", "{\"prompt\":7}", "{\"prompt\":\"a\"}\n\n"})
        EXPECT_FALSE(parse_prompts(wrong, "f")) << wrong;
}

TEST(Prompts, OfConversationsAreTheFirstMessages) {
    const auto prompts = parse_conversations(
        R"([{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]},
            {"conversations":[{"from":"human","value":"alone"}]}, {"id":1}, 7,
            {"conversations":[{"from":"human","value":"c"},{"from":"gpt","value":"d"}]}])",
        "f");
    ASSERT_TRUE(prompts) << prompts.error().message;
    EXPECT_EQ(*prompts, (std::vector<std::string>{"a", "c"}));
    for (const char* wrong : {"", "{}", "[]", "[[]]", "[{\"conversations\":[1,2]}]"})
        EXPECT_FALSE(parse_conversations(wrong, "f")) << wrong;
}

const std::string kMetrics =
    "# HELP vllm:spec_decode_num_drafts_total x\n"
    "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a } b\"} 4\n"
    "vllm:spec_decode_num_drafts_total{engine=\"1\"} 6.0\n"
    "vllm:spec_decode_num_draft_tokens_total 30\n"
    "vllm:spec_decode_num_accepted_tokens_total 1.2e1\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 8\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 4\n";

TEST(Speculation, IsReadFromMetricsOfAnyPrefix) {
    std::string other = kMetrics;
    for (std::size_t at; (at = other.find("vllm:")) != std::string::npos;)
        other.replace(at, 5, "espalier:");
    // A server that tells the same twice counts once.
    for (const std::string& text : {kMetrics, other, other + kMetrics}) {
        const auto counts = speculation_of_metrics(text);
        ASSERT_TRUE(counts);
        EXPECT_EQ(counts->drafts, 10);
        EXPECT_EQ(counts->draft_tokens, 30);
        EXPECT_EQ(counts->accepted_tokens, 12);
        EXPECT_EQ(counts->accepted_by_position, (std::map<std::int64_t, double>{{0, 8}, {1, 4}}));
        EXPECT_DOUBLE_EQ(counts->length(), 2.2);
        EXPECT_DOUBLE_EQ(counts->rate_percent(), 40);
    }
}

TEST(Speculation, OfSpoiltMetricsIsNothingOrWhatIsRight) {
    for (const char* text : {"", "x", "x{", "spec_decode_num_drafts_total", "\n\n\n",
                             "spec_decode_num_drafts_total nan", "spec_decode_num_drafts_total{ 4",
                             "spec_decode_num_drafts_total inf"})
        EXPECT_FALSE(speculation_of_metrics(text)) << text;
    const auto counts = speculation_of_metrics(
        kMetrics +
        "x:spec_decode_num_accepted_tokens_per_pos_total{position=\"-1\"} 4\n"
        "x:spec_decode_num_accepted_tokens_per_pos_total{position=\"99999\"} 4\n"
        "x:spec_decode_num_accepted_tokens_per_pos_total 4\n");
    EXPECT_EQ(counts->accepted_by_position.size(), 2u);
}

TEST(Speculation, OfARunIsTheDifferenceOrTheUsage) {
    const auto before = speculation_of_metrics(kMetrics);
    SpeculationCounts after = *before;
    after.drafts += 5;
    after.draft_tokens += 10;
    after.accepted_tokens += 4;
    after.accepted_by_position[0] += 4;
    const auto run = speculation_of_run(before, after, {});
    ASSERT_TRUE(run);
    EXPECT_EQ(run->drafts, 5);
    EXPECT_EQ(run->accepted_by_position, (std::map<std::int64_t, double>{{0, 4}}));
    EXPECT_FALSE(speculation_of_run(before, before, {}));  // nothing was drafted
    EXPECT_FALSE(speculation_of_run(after, before, {}));   // the server was started again
    RequestRecord record{.output_tokens = 10, .accepted_tokens = 6, .rejected_tokens = 2};
    const auto usage = speculation_of_run(before, std::nullopt, {record, record});
    ASSERT_TRUE(usage);
    EXPECT_EQ(usage->drafts, 8);
    EXPECT_DOUBLE_EQ(usage->length(), 2.5);
    EXPECT_DOUBLE_EQ(usage->rate_percent(), 75);
    record.failure = client::Failure{};
    EXPECT_FALSE(speculation_of_run({}, {}, {record}));
}

}  // namespace
}  // namespace espalier::load
