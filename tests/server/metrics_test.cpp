// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "server/throughput_line.hpp"

namespace espalier::server {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::stringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

ModelFacts facts_of(const std::string& name) {
    ModelFacts facts;
    facts.name = name;
    facts.page_tokens = 64;
    facts.pages = 99;
    return facts;
}

TEST(Histogram, CountsWhatIsAtABoundBelowIt) {
    constexpr double kBounds[] = {1, 2, 5};
    Histogram histogram(kBounds);
    for (const double value : {0.5, 1.0, 1.5, 5.0, 7.0}) histogram.observe(value);
    histogram.observe(2, 3);
    std::string text;
    histogram.append_to(text, "h", "a=\"b\"");
    EXPECT_EQ(text,
              "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2\"} 6\n"
              "h_bucket{a=\"b\",le=\"5\"} 7\nh_bucket{a=\"b\",le=\"+Inf\"} 8\n"
              "h_sum{a=\"b\"} 21\nh_count{a=\"b\"} 8\n");
}

// Prometheus' reading: each family once, HELP and TYPE before its samples, names and labels of
// the allowed form, counters ending in _total.
TEST(Metrics, TheTextIsWellFormedAndEveryFamilyIsThereOnce) {
    Metrics metrics;
    metrics.count_response(200, "/v1/completions");
    engine::EngineStatus status;
    status.sums.steps.accepted_at_depth[3] = 5;
    const std::string text = metrics.text(MetricsNames::both, &status,
                                          {.connections = 3,
                                           .model = facts_of("a \"quoted\\\" name\n"),
                                           .experts = ExpertBytes{},
                                           .trace = trace::WriterStatus{},
                                           .grammars = grammar::CompilerStatus{},
                                           .process = process_facts()});
    const std::regex sample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{((\w+="([^"\\\n]|\\.)*",?)+)\})? (\S+))re");
    std::map<std::string, std::string> types;
    for (const std::string& line : lines_of(text)) {
        if (line.starts_with("# HELP ")) continue;
        if (line.starts_with("# TYPE ")) {
            const std::string rest = line.substr(7);
            const std::string name = rest.substr(0, rest.find(' '));
            EXPECT_TRUE(types.emplace(name, rest.substr(name.size() + 1)).second) << name;
            continue;
        }
        std::smatch match;
        ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
        std::string name = match[1];
        EXPECT_NO_THROW(std::stod(match[6])) << line;
        for (const char* suffix : {"_bucket", "_sum", "_count"})
            if (name.ends_with(suffix) && !types.contains(name))
                name = name.substr(0, name.size() - std::string_view(suffix).size());
        ASSERT_TRUE(types.contains(name)) << line;
        EXPECT_EQ(types[name] == "counter", name.ends_with("_total")) << name;
    }
    // Families that vLLM's stock board asks for.
    for (const char* name :
         {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
          "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total",
          "prefix_cache_hits_total", "num_preemptions_total", "request_success_total",
          "time_to_first_token_seconds", "inter_token_latency_seconds",
          "e2e_request_latency_seconds", "request_queue_time_seconds",
          "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
          "request_generation_tokens", "request_max_num_generation_tokens",
          "spec_decode_num_accepted_tokens_per_pos_total"})
        EXPECT_TRUE(types.contains(std::string("espalier:") + name)) << name;
    EXPECT_NE(text.find("position=\"2\"} 5"), std::string::npos);
}

TEST(Metrics, ExpertsOnDiskAreCountedWhereThereAreAny) {
    const Metrics metrics;
    const engine::EngineStatus status;
    EXPECT_EQ(metrics.text(MetricsNames::espalier, &status, {}).find("expert_bytes"),
              std::string::npos);
    const std::string text =
        metrics.text(MetricsNames::espalier, &status,
                     {.experts = ExpertBytes{.needed = 4000, .in_memory = 3000}});
    for (const char* line :
         {"# TYPE espalier:expert_bytes_needed_total counter\n",
          "espalier:expert_bytes_needed_total{model_name=\"\",engine=\"0\"} 4000\n",
          "espalier:expert_bytes_in_memory_total{model_name=\"\",engine=\"0\"} 3000\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

TEST(Metrics, LostEventsOfATraceAreCountedWhereThereIsOne) {
    const Metrics metrics;
    EXPECT_EQ(metrics.text(MetricsNames::espalier, nullptr, {}).find("trace_events"),
              std::string::npos);
    const std::string text =
        metrics.text(MetricsNames::espalier, nullptr, {.trace = trace::WriterStatus{"full", 12}});
    EXPECT_NE(text.find("espalier:trace_events_lost_total{model_name=\"\",engine=\"0\"} 12\n"),
              std::string::npos)
        << text;
}

// Names of the families behind a prefix.
std::set<std::string> families(const std::string& text, const std::string& prefix) {
    std::set<std::string> found;
    for (const std::string& line : lines_of(text))
        if (const std::string begin = "# TYPE " + prefix; line.starts_with(begin))
            found.insert(line.substr(begin.size(), line.rfind(' ') - begin.size()));
    return found;
}

// Everything is told in each way, vLLM's numbers by its names where these are asked for, and no
// number twice by one name.
TEST(Metrics, NamesAreOursVllmsOrBoth) {
    const Metrics metrics;
    const engine::EngineStatus status;
    const ServerFacts facts{.model = facts_of("")};
    const std::string ours = metrics.text(MetricsNames::espalier, &status, facts),
                      theirs = metrics.text(MetricsNames::vllm, &status, facts),
                      both = metrics.text(MetricsNames::both, &status, facts);
    const std::set<std::string> all = families(ours, "espalier:"), vllms = families(both, "vllm:");
    EXPECT_TRUE(families(ours, "vllm:").empty());
    EXPECT_EQ(families(both, "espalier:"), all);
    EXPECT_EQ(families(theirs, "vllm:"), vllms);
    std::set<std::string> rest = families(theirs, "espalier:");
    for (const std::string& name : rest) EXPECT_FALSE(vllms.contains(name)) << name;
    rest.insert(vllms.begin(), vllms.end());
    EXPECT_EQ(rest, all);
    // Lines that the Gateway API's inference extension, llm-d and Dynamo read.
    for (const char* line :
         {"vllm:num_requests_waiting{model_name=\"\",engine=\"0\"} 0\n",
          "vllm:num_requests_running{model_name=\"\",engine=\"0\"} 0\n",
          "vllm:kv_cache_usage_perc{model_name=\"\",engine=\"0\"} 0\n",
          "vllm:cache_config_info{model_name=\"\",engine=\"0\",block_size=\"64\",num_gpu_blocks="
          "\"99\",cache_dtype=\"\"} 1\n"})
        EXPECT_NE(both.find(line), std::string::npos) << line;
    EXPECT_NE(metrics.text(MetricsNames::both, nullptr, {}).find("http_connections"),
              std::string::npos);
}

TEST(Metrics, AProcessIsWhatProcSays) {
    const auto facts = process_facts();
    ASSERT_TRUE(facts);
    EXPECT_GT(facts->resident, 1 << 20);
    EXPECT_GT(facts->virtual_memory, facts->resident);
    EXPECT_GE(facts->open_files, 3);
    EXPECT_GT(facts->max_files, facts->open_files);
    EXPECT_GE(facts->threads, 1);
    EXPECT_GT(facts->start_seconds, 1.7e9);  // 2023 and later
    EXPECT_LE(facts->start_seconds, static_cast<double>(std::time(nullptr)) + 1);
    EXPECT_GE(process_facts()->cpu_seconds, facts->cpu_seconds);
}

TEST(Metrics, AChoicesTimesAreTheEngines) {
    Metrics metrics;
    engine::ChoiceUpdate choice;
    choice.usage.prompt_tokens = 10;
    choice.usage.completion_tokens = 5;
    choice.times = {.arrived = 0,
                    .planned = 1'000'000'000,
                    .first_token = 3'000'000'000,
                    .ended = 11'000'000'000};
    metrics.observe_choice(choice);
    metrics.observe_gap(0.5, 5);
    metrics.observe_request({.choices = 2, .max_tokens = 7}, 5);
    const std::string text = metrics.text(MetricsNames::espalier, nullptr, {});
    for (const char* line :
         {"espalier:time_to_first_token_seconds_sum{model_name=\"\",engine=\"0\"} 3\n",
          "espalier:request_queue_time_seconds_sum{model_name=\"\",engine=\"0\"} 1\n",
          "espalier:request_prefill_time_seconds_sum{model_name=\"\",engine=\"0\"} 2\n",
          "espalier:request_decode_time_seconds_sum{model_name=\"\",engine=\"0\"} 8\n",
          "espalier:request_inference_time_seconds_sum{model_name=\"\",engine=\"0\"} 10\n",
          "espalier:e2e_request_latency_seconds_sum{model_name=\"\",engine=\"0\"} 11\n",
          "espalier:request_time_per_output_token_seconds_sum{model_name=\"\",engine=\"0\"} 2\n",
          "espalier:inter_token_latency_seconds_count{model_name=\"\",engine=\"0\"} 5\n",
          "espalier:request_params_n_sum{model_name=\"\",engine=\"0\"} 2\n",
          "espalier:request_params_max_tokens_sum{model_name=\"\",engine=\"0\"} 7\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line;
}

TEST(ThroughputLine, TellsRatesSinceTheLastOneAndThenIsQuiet) {
    ThroughputLine line;
    engine::EngineStatus status;
    EXPECT_TRUE(line.lines(status, 10).empty());
    status.totals.prompt_tokens = 100;
    status.totals.hit_tokens = 25;
    status.sums.steps.committed = 300;
    status.sums.steps.accepted = 100;
    status.totals.tokens.drafts = 400;
    status.gauges.running = 2;
    const auto lines = line.lines(status, 10);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(
        lines[0],
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 30.0 tokens/s, "
        "Running: 2 reqs, Waiting: 0 reqs, KV cache usage: 0.0%, Prefix cache hit rate: 25.0%");
    EXPECT_TRUE(lines[1].starts_with("Drafts: mean acceptance length: 1.50, accepted 100 of 400"))
        << lines[1];
    status.gauges.running = 0;
    EXPECT_EQ(line.lines(status, 10).size(), 1u);
    EXPECT_TRUE(line.lines(status, 10).empty());
}

}  // namespace
}  // namespace espalier::server
