// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "load/report.hpp"

namespace espalier::load {
namespace {

using Json = nlohmann::ordered_json;

void add_latencies(const Report& report, const Figures& figures, Json& json) {
    for (const Latency& latency : kLatencies) {
        if (!is_reported(report, latency)) continue;
        const std::vector<double>& values = figures.*latency.values;
        const auto key = [&](const std::string& what) {
            return fmt::format("{}_{}_ms", what, latency.key);
        };
        json[key("mean")] = mean(values);
        json[key("median")] = percentile(values, 50);
        json[key("std")] = deviation(values);
        for (const double percent : report.percentiles)
            json[key(fmt::format("p{}", percent_text(percent)))] = percentile(values, percent);
    }
}

void add_speculation(const SpeculationCounts& counts, Json& json) {
    json["spec_decode_acceptance_rate"] = counts.rate_percent();
    json["spec_decode_acceptance_length"] = counts.length();
    json["spec_decode_num_drafts"] = static_cast<std::int64_t>(counts.drafts);
    json["spec_decode_draft_tokens"] = static_cast<std::int64_t>(counts.draft_tokens);
    json["spec_decode_accepted_tokens"] = static_cast<std::int64_t>(counts.accepted_tokens);
    Json rates = Json::array();
    for (const auto& [position, accepted] : counts.accepted_by_position)
        rates.push_back(accepted / counts.drafts);
    json["spec_decode_per_position_acceptance_rates"] = std::move(rates);
}

void add_requests(const Report& report, Json& json) {
    for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "latencies",
                             "start_times", "queue_times", "errors"})
        json[name] = Json::array();
    for (const RequestRecord& record : report.records) {
        const double first = record.first_piece.value_or(record.sent);
        json["input_lens"].push_back(record.input_tokens);
        json["output_lens"].push_back(record.output_tokens);
        json["ttfts"].push_back(first - record.sent);
        json["itls"].push_back(record.gaps);
        json["latencies"].push_back(record.ended - record.sent);
        json["start_times"].push_back(record.sent);
        json["queue_times"].push_back(record.sent - record.due);
        json["errors"].push_back(record.failure ? record.failure->message : "");
    }
}

}  // namespace

Json report_json(const Report& report, bool detailed) {
    const Figures figures = figures_of(report.records, report.goodput);
    const LoadOptions& options = report.options;
    const auto rate = [&](std::int64_t count) {
        return report.seconds > 0 ? static_cast<double>(count) / report.seconds : 0.0;
    };
    Json json = {
        {"date", report.date},
        {"backend", options.api == Api::chat ? "openai-chat" : "openai"},
        {"model_id", options.model},
        {"num_prompts", options.requests},
        {"request_rate", std::isfinite(options.rate) ? Json(options.rate) : Json("inf")},
        {"burstiness", options.burstiness},
        {"max_concurrency", options.concurrency > 0 ? Json(options.concurrency) : Json()},
        {"duration", report.seconds},
        {"completed", figures.completed},
        {"failed", figures.failed},
        {"total_input_tokens", figures.input_tokens},
        {"total_output_tokens", figures.output_tokens},
        {"request_throughput", rate(figures.completed)},
        {"request_goodput", report.goodput.asked() ? Json(rate(figures.good)) : Json()},
        {"goodput_limits_ms", report.goodput.asked() ? Json(goodput_text(report.goodput)) : Json()},
        {"output_throughput", rate(figures.output_tokens)},
        {"total_token_throughput", rate(figures.input_tokens + figures.output_tokens)},
        {"max_output_tokens_per_s", peak_throughput(report, figures)},
        {"max_concurrent_requests", figures.peak_under_way}};
    if (report.speculation) add_speculation(*report.speculation, json);
    add_latencies(report, figures, json);
    Json kinds = Json::object();
    for (int i = 0; i < client::kFailureKinds; ++i)
        if (const std::int64_t count = figures.failures[static_cast<std::size_t>(i)]; count > 0)
            kinds[std::string(client::failure_name(static_cast<client::FailureKind>(i)))] = count;
    json["failures_by_kind"] = std::move(kinds);
    if (detailed) add_requests(report, json);
    return json;
}

}  // namespace espalier::load
