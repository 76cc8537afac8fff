// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace espalier::server {
namespace {

using accept::FinishReason;
using engine::EngineStatus;
using engine::Interruption;
using engine::Metric;
using MetricKind = Metric::Kind;

constexpr double kFirstTokenBounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
// vLLM's begin at 10 ms, which is too coarse here: ours have three more below.
constexpr double kTokenBounds[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                   .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
constexpr double kRequestBounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kCountBounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                   1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
constexpr double kChoiceBounds[] = {1, 2, 5, 10, 20};

double number(std::int64_t value) { return static_cast<double>(value); }
using Status = const EngineStatus&;

// vLLM's names for what the engine counts, beside its own list (engine/status.hpp).
const Metric kPeerMetrics[] = {
    {"num_requests_running", MetricKind::gauge, "Requests in steps",
     [](Status s) { return number(s.gauges.running + s.gauges.prefilling); }},
    {"num_requests_waiting", MetricKind::gauge, "Requests in the queue",
     [](Status s) { return number(s.queued + s.gauges.waiting); }},
    {"kv_cache_usage_perc", MetricKind::gauge, "Share of the cache that requests hold, 0 to 1",
     [](Status s) {
         return s.gauges.pages.total > 0
                    ? number(s.gauges.pages.owned) / number(s.gauges.pages.total)
                    : 0.0;
     }},
    {"generation_tokens_total", MetricKind::counter, "Tokens of outputs",
     [](Status s) { return number(s.sums.steps.committed); }},
    {"prefix_cache_queries_total", MetricKind::counter, "Tokens of prompts that were looked up",
     [](Status s) { return number(s.totals.prompt_tokens); }},
    {"prefix_cache_hits_total", MetricKind::counter, "Of these, found",
     [](Status s) { return number(s.totals.hit_tokens); }},
    {"num_preemptions_total", MetricKind::counter, "Requests that made way",
     [](Status s) { return number(s.totals.preemptions); }},
    {"spec_decode_num_drafts_total", MetricKind::counter,
     "Draws that drafts could have saved a step of",
     [](Status s) { return number(s.sums.drawing_steps()); }},
    {"spec_decode_num_draft_tokens_total", MetricKind::counter, "Draft nodes verified",
     [](Status s) { return number(s.totals.tokens.drafts); }},
    {"spec_decode_num_accepted_tokens_total", MetricKind::counter, "Of these, accepted",
     [](Status s) { return number(s.sums.steps.accepted); }},
};

struct Writer {
    std::string& text;
    std::string prefix, labels;

    void head(const std::string& name, const char* kind, const char* help) const {
        text += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix, name, help, kind);
    }
    void value(const std::string& name, const std::string& more, double value) const {
        text += fmt::format("{}{}{{{}{}}} {}\n", prefix, name, labels, more, value);
    }
    void metric(const Metric& metric, Status status) const {
        head(metric.name, metric.kind == MetricKind::gauge ? "gauge" : "counter", metric.help);
        value(metric.name, "", metric.of(status));
    }
};

void append_family(const Writer& out, const engine::MetricFamily& family, Status status) {
    out.head(family.name, family.kind == MetricKind::gauge ? "gauge" : "counter", family.help);
    for (std::size_t i = 0; i < family.size(status); ++i)
        out.value(family.name, fmt::format(",{}=\"{}\"", family.label, family.value(status, i)),
                  family.of(status, i));
}

void append_ends(const Writer& out, Status status) {
    const engine::EndCounts& ends = status.sums.ends;
    const std::pair<const char*, std::int64_t> reasons[] = {
        {"stop", ends.of(FinishReason::eos) + ends.of(FinishReason::stop_token) +
                     ends.of(FinishReason::stop_string)},
        {"length", ends.of(FinishReason::length)},
        {"abort", ends.of(Interruption::cancelled) + ends.of(Interruption::deadline) +
                      ends.of(Interruption::stopped)},
        {"error", ends.of(FinishReason::bad_numbers) + ends.of(FinishReason::nothing_left) +
                      ends.of(Interruption::step_failed) + ends.of(Interruption::grammar_failed)},
    };
    out.head("request_success_total", "counter", "Outputs that ended, by how");
    for (const auto& [reason, count] : reasons)
        out.value("request_success_total", fmt::format(",finished_reason=\"{}\"", reason),
                  number(count));
}

void append_positions(const Writer& out, Status status) {
    const char* name = "spec_decode_num_accepted_tokens_per_pos_total";
    out.head(name, "counter", "Drafts accepted at each depth below the root, from 0");
    const auto& depths = status.sums.steps.accepted_at_depth;
    for (std::size_t depth = 1; depth < depths.size(); ++depth)
        if (depth == 1 || depths[depth] > 0)
            out.value(name, fmt::format(",position=\"{}\"", depth - 1), number(depths[depth]));
}

void append_experts(const Writer& out, const ExpertBytes& experts) {
    out.head("expert_bytes_needed_total", "counter",
             "Bytes of experts on disk that steps needed, a layer's each time");
    out.value("expert_bytes_needed_total", "", number(experts.needed));
    out.head("expert_bytes_in_memory_total", "counter",
             "Of these, in memory when the router chose");
    out.value("expert_bytes_in_memory_total", "", number(experts.in_memory));
}

std::string escaped(std::string_view label) {
    std::string made;
    for (const char c : label) {
        if (c == '\\' || c == '"') made += '\\';
        if (c == '\n')
            made += "\\n";
        else
            made += c;
    }
    return made;
}

}  // namespace

void Histogram::observe(double value, std::int64_t times) {
    const auto at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
    counts_[static_cast<std::size_t>(at)] += times;
    sum_ += value * static_cast<double>(times);
    count_ += times;
}

void Histogram::append_to(std::string& text, const std::string& name,
                          const std::string& labels) const {
    std::int64_t below = 0;
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
        below += counts_[i];
        text += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
    }
    text += fmt::format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, count_);
    text += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, count_);
}

Metrics::Metrics()
    : histograms_{
          {"time_to_first_token_seconds", "From arrival to the first token",
           Histogram(kFirstTokenBounds)},
          {"inter_token_latency_seconds",
           "From one token to the next; tokens that come together share the wait",
           Histogram(kTokenBounds)},
          {"request_time_per_output_token_seconds", "The same, averaged over an output",
           Histogram(kTokenBounds)},
          {"e2e_request_latency_seconds", "From arrival to the end", Histogram(kRequestBounds)},
          {"request_queue_time_seconds", "From arrival to the first step",
           Histogram(kRequestBounds)},
          {"request_prefill_time_seconds", "From the first step to the first token",
           Histogram(kRequestBounds)},
          {"request_decode_time_seconds", "From the first token to the end",
           Histogram(kRequestBounds)},
          {"request_inference_time_seconds", "From the first step to the end",
           Histogram(kRequestBounds)},
          {"request_prompt_tokens", "Of a prompt", Histogram(kCountBounds)},
          {"request_generation_tokens", "Of an output", Histogram(kCountBounds)},
          {"request_max_num_generation_tokens", "Of a request's longest output",
           Histogram(kCountBounds)},
          {"request_params_max_tokens", "As requests stated it", Histogram(kCountBounds)},
          {"request_params_n", "As requests stated it", Histogram(kChoiceBounds)},
      } {}

void Metrics::observe_choice(const engine::ChoiceUpdate& choice) {
    const engine::RequestTimes& times = choice.times;
    const auto between = [](schedule::Time from, schedule::Time to) {
        return static_cast<double>(to - from) * 1e-9;
    };
    const auto observe = [&](Index index, double value) {
        histograms_[index].histogram.observe(value);
    };
    observe(kPrompt, number(choice.usage.prompt_tokens));
    observe(kOutput, number(choice.usage.completion_tokens));
    if (!times.ended) return;  // it never came to the engine
    observe(kWhole, between(times.arrived, *times.ended));
    observe(kQueue, between(times.arrived, times.planned.value_or(*times.ended)));
    if (!times.planned) return;
    observe(kInference, between(*times.planned, *times.ended));
    if (!times.first_token) return;
    observe(kFirstToken, between(times.arrived, *times.first_token));
    observe(kPrefill, between(*times.planned, *times.first_token));
    const double decode = between(*times.first_token, *times.ended);
    observe(kDecode, decode);
    if (choice.usage.completion_tokens > 1)
        observe(kPerToken, decode / number(choice.usage.completion_tokens - 1));
}

void Metrics::observe_request(const RequestShape& shape, std::int64_t longest) {
    histograms_[kChoices].histogram.observe(number(shape.choices));
    if (shape.max_tokens > 0) histograms_[kMaxTokens].histogram.observe(number(shape.max_tokens));
    histograms_[kLongest].histogram.observe(number(longest));
}

void Metrics::observe_gap(double seconds, std::int64_t tokens) {
    if (tokens > 0) histograms_[kGap].histogram.observe(seconds / number(tokens), tokens);
}

std::string Metrics::text(std::string_view prefix, std::string_view model,
                          const engine::EngineStatus* status, const ServerFacts& facts) const {
    std::string made;
    const Writer out{made, std::string(prefix) + ":",
                     fmt::format("model_name=\"{}\",engine=\"0\"", escaped(model))};
    out.head("http_connections", "gauge", "Open connections");
    out.value("http_connections", "", number(facts.connections));
    out.head("http_responses_total", "counter", "Answers, by status");
    for (const auto& [code, count] : responses_)
        out.value("http_responses_total", fmt::format(",code=\"{}\"", code), number(count));
    if (status != nullptr) {
        for (const Metric& metric : kPeerMetrics) out.metric(metric, *status);
        for (const Metric& metric : engine::engine_metrics()) out.metric(metric, *status);
        for (const engine::MetricFamily& family : engine::engine_metric_families())
            append_family(out, family, *status);
        append_ends(out, *status);
        append_positions(out, *status);
    }
    if (facts.experts) append_experts(out, *facts.experts);
    if (facts.trace) {
        out.head("trace_events_lost_total", "counter",
                 "Events that the trace's file does not have, because it could not be written");
        out.value("trace_events_lost_total", "", number(facts.trace->lost));
    }
    for (const Named& named : histograms_) {
        out.head(named.name, "histogram", named.help);
        named.histogram.append_to(made, out.prefix + named.name, out.labels);
    }
    return made;
}

}  // namespace espalier::server
