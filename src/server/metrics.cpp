// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "espalier/version.hpp"

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
const Metric kVllmMetrics[] = {
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
    {"prefix_cache_queries_total", MetricKind::counter, "Prompt tokens looked up",
     [](Status s) { return number(s.totals.prompt_tokens); }},
    {"prefix_cache_hits_total", MetricKind::counter, "Prompt tokens found in the prefix index",
     [](Status s) { return number(s.totals.hit_tokens); }},
    {"num_preemptions_total", MetricKind::counter, "Preempted requests",
     [](Status s) { return number(s.totals.preemptions); }},
    {"spec_decode_num_drafts_total", MetricKind::counter,
     "Draws that drafts could have saved a step of",
     [](Status s) { return number(s.sums.drawing_steps()); }},
    {"spec_decode_num_draft_tokens_total", MetricKind::counter, "Draft nodes verified",
     [](Status s) { return number(s.totals.tokens.drafts); }},
    {"spec_decode_num_accepted_tokens_total", MetricKind::counter, "Draft nodes accepted",
     [](Status s) { return number(s.sums.steps.accepted); }},
};

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
          {"time_to_first_token_seconds", "Time from arrival to the first token",
           Histogram(kFirstTokenBounds)},
          {"inter_token_latency_seconds",
           "Time from one token to the next; tokens that come together share the wait",
           Histogram(kTokenBounds)},
          {"request_time_per_output_token_seconds", "The same, averaged over an output",
           Histogram(kTokenBounds)},
          {"e2e_request_latency_seconds", "Time from arrival to the end",
           Histogram(kRequestBounds)},
          {"request_queue_time_seconds", "Time from arrival to the first step",
           Histogram(kRequestBounds)},
          {"request_prefill_time_seconds", "Time from the first step to the first token",
           Histogram(kRequestBounds)},
          {"request_decode_time_seconds", "Time from the first token to the end",
           Histogram(kRequestBounds)},
          {"request_inference_time_seconds", "Time from the first step to the end",
           Histogram(kRequestBounds)},
          {"request_prompt_tokens", "Tokens of a prompt", Histogram(kCountBounds)},
          {"request_generation_tokens", "Tokens of an output", Histogram(kCountBounds)},
          {"request_max_num_generation_tokens", "Tokens of a request's longest output",
           Histogram(kCountBounds)},
          {"request_params_max_tokens", "max_tokens of a request", Histogram(kCountBounds)},
          {"request_params_n", "n of a request", Histogram(kChoiceBounds)},
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

struct Metrics::Writer {
    std::string& text;
    std::string prefix, labels;

    void head(std::string_view name, const char* kind, const char* help) const {
        text += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix, name, help, kind);
    }
    // more: labels beside those of all, with a comma before each.
    void value(std::string_view name, const std::string& more, double value) const {
        const std::string all = labels.empty() && !more.empty() ? more.substr(1) : labels + more;
        text += all.empty() ? fmt::format("{}{} {}\n", prefix, name, value)
                            : fmt::format("{}{}{{{}}} {}\n", prefix, name, all, value);
    }
    void one(std::string_view name, const char* kind, const char* help, double number) const {
        head(name, kind, help);
        value(name, "", number);
    }
    void metric(const Metric& metric, Status status) const {
        one(metric.name, metric.kind == MetricKind::gauge ? "gauge" : "counter", metric.help,
            metric.of(status));
    }
    void family(const engine::MetricFamily& family, Status status) const {
        head(family.name, family.kind == MetricKind::gauge ? "gauge" : "counter", family.help);
        for (std::size_t i = 0; i < family.size(status); ++i)
            value(family.name, fmt::format(",{}=\"{}\"", family.label, family.value(status, i)),
                  family.of(status, i));
    }
    // 1, for its labels' sake.
    void info(std::string_view name, const char* help,
              std::initializer_list<std::pair<const char*, std::string>> facts) const {
        std::string more;
        for (const auto& [label, fact] : facts)
            more += fmt::format(",{}=\"{}\"", label, escaped(fact));
        head(name, "gauge", help);
        value(name, more, 1);
    }
    void ends(Status status) const;
    void positions(Status status) const;
    void grammars(const grammar::CompilerStatus& status) const;
    void process(const ProcessFacts& process) const;
};

void Metrics::Writer::ends(Status status) const {
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
    head("request_success_total", "counter", "Outputs that ended, by how");
    for (const auto& [reason, count] : reasons)
        value("request_success_total", fmt::format(",finished_reason=\"{}\"", reason),
              number(count));
}

void Metrics::Writer::positions(Status status) const {
    const char* name = "spec_decode_num_accepted_tokens_per_pos_total";
    head(name, "counter", "Drafts accepted at each depth below the root, from 0");
    const auto& depths = status.sums.steps.accepted_at_depth;
    for (std::size_t depth = 1; depth < depths.size(); ++depth)
        if (depth == 1 || depths[depth] > 0)
            value(name, fmt::format(",position=\"{}\"", depth - 1), number(depths[depth]));
}

void Metrics::Writer::grammars(const grammar::CompilerStatus& status) const {
    one("grammar_cache_bytes", "gauge", "Compiled grammars that are kept",
        static_cast<double>(status.cached_bytes));
    one("grammar_mask_cache_bytes", "gauge", "Masks of grammars that are kept",
        static_cast<double>(status.masks.bytes));
    one("grammars_compiled_total", "counter", "Specifications that became grammars",
        number(status.compiled));
    one("grammars_refused_total", "counter", "Specifications that were refused",
        number(status.refused));
    one("grammar_cache_hits_total", "counter", "Grammars that were there or under way",
        number(status.hits));
}

// Prometheus' own names, without a prefix.
void Metrics::Writer::process(const ProcessFacts& facts) const {
    one("process_cpu_seconds_total", "counter", "Processor time, user and system",
        facts.cpu_seconds);
    one("process_resident_memory_bytes", "gauge", "Memory that is in RAM", number(facts.resident));
    one("process_virtual_memory_bytes", "gauge", "Address space", number(facts.virtual_memory));
    one("process_open_fds", "gauge", "Open file descriptors", number(facts.open_files));
    one("process_max_fds", "gauge", "Their limit", number(facts.max_files));
    one("process_threads", "gauge", "Threads", number(facts.threads));
    one("process_start_time_seconds", "gauge", "Seconds since 1970 at its start",
        facts.start_seconds);
}

void Metrics::append_vllms(const Writer& out, const EngineStatus* status,
                           const ServerFacts& facts) const {
    if (facts.model)
        out.info("cache_config_info", "The cache, by its labels",
                 {{"block_size", std::to_string(facts.model->page_tokens)},
                  {"num_gpu_blocks", std::to_string(facts.model->pages)},
                  {"cache_dtype", facts.model->kv_format}});
    if (status != nullptr) {
        for (const Metric& metric : kVllmMetrics) out.metric(metric, *status);
        for (const Metric& metric : engine::engine_metrics())
            if (metric.is_vllms) out.metric(metric, *status);
        out.ends(*status);
        out.positions(*status);
    }
    for (const Named& named : histograms_) {
        out.head(named.name, "histogram", named.help);
        named.histogram.append_to(out.text, out.prefix + named.name, out.labels);
    }
}

void Metrics::append_own(const Writer& out, const EngineStatus* status,
                         const ServerFacts& facts) const {
    out.info("build_info", "The program, by its labels",
             {{"version", ESPALIER_VERSION}, {"grammars", grammar::available() ? "yes" : "no"}});
    if (facts.model)
        out.info("model_info", "The served model, by its labels",
                 {{"weights", facts.model->weights},
                  {"kv_format", facts.model->kv_format},
                  {"backend", facts.model->backend},
                  {"variant", facts.model->variant},
                  {"max_model_len", std::to_string(facts.model->max_model_len)}});
    out.one("http_connections", "gauge", "Open connections", number(facts.connections));
    out.head("http_responses_total", "counter", "Answers, by status and path");
    for (const auto& [which, count] : responses_)
        out.value("http_responses_total",
                  fmt::format(",code=\"{}\",path=\"{}\"", which.second, which.first),
                  number(count));
    if (status != nullptr) {
        for (const Metric& metric : engine::engine_metrics())
            if (!metric.is_vllms) out.metric(metric, *status);
        for (const engine::MetricFamily& family : engine::engine_metric_families())
            out.family(family, *status);
    }
    if (facts.grammars) out.grammars(*facts.grammars);
    if (facts.experts) {
        out.one("expert_bytes_needed_total", "counter",
                "Bytes of experts on disk that steps needed", number(facts.experts->needed));
        out.one("expert_bytes_in_memory_total", "counter",
                "Bytes of these in memory when the router chose", number(facts.experts->in_memory));
    }
    if (facts.trace)
        out.one("trace_events_lost_total", "counter",
                "Events that the trace's file does not have, because it could not be written",
                number(facts.trace->lost));
}

MetricsNames metrics_names_of(std::string_view word) {
    if (word == "vllm") return MetricsNames::vllm;
    return word == "espalier" ? MetricsNames::espalier : MetricsNames::both;
}

std::string Metrics::text(MetricsNames names, const EngineStatus* status,
                          const ServerFacts& facts) const {
    std::string made;
    const std::string labels = fmt::format("model_name=\"{}\",engine=\"0\"",
                                           facts.model ? escaped(facts.model->name) : "");
    const Writer ours{made, "espalier:", labels}, theirs{made, "vllm:", labels};
    append_own(ours, status, facts);
    if (names != MetricsNames::vllm) append_vllms(ours, status, facts);
    if (names != MetricsNames::espalier) append_vllms(theirs, status, facts);
    if (facts.process) Writer{made, "", ""}.process(*facts.process);
    return made;
}

}  // namespace espalier::server
