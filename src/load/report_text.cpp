// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "load/report.hpp"

namespace espalier::load {
namespace {

// Peers' scripts read this block: names, widths and order are theirs.
constexpr std::size_t kWidth = 50;

std::string heading(const std::string& title, char fill) {
    const std::size_t around = kWidth - std::min(kWidth, title.size());
    return std::string(around / 2, fill) + title + std::string(around - around / 2, fill) + "\n";
}

std::string line(const std::string& name, std::int64_t value) {
    return fmt::format("{:<40} {:<10}\n", name, value);
}
std::string line(const std::string& name, double value) {
    return fmt::format("{:<40} {:<10.2f}\n", name, value);
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string latency_lines(const Report& report, const Latency& latency, const Figures& figures) {
    const std::vector<double>& values = figures.*latency.values;
    std::string out = heading(latency.title, '-');
    out += line(fmt::format("Mean {} (ms):", latency.name), mean(values));
    out += line(fmt::format("Median {} (ms):", latency.name), percentile(values, 50));
    for (const double percent : report.percentiles)
        out += line(fmt::format("P{} {} (ms):", percent_text(percent), latency.name),
                    percentile(values, percent));
    return out;
}

std::string speculation_lines(const SpeculationCounts& counts) {
    std::string out = heading("Speculative Decoding", '-');
    out += line("Acceptance rate (%):", counts.rate_percent());
    out += line("Acceptance length:", counts.length());
    out += line("Drafts:", static_cast<std::int64_t>(counts.drafts));
    out += line("Draft tokens:", static_cast<std::int64_t>(counts.draft_tokens));
    out += line("Accepted tokens:", static_cast<std::int64_t>(counts.accepted_tokens));
    if (!counts.accepted_by_position.empty()) out += "Per-position acceptance (%):\n";
    for (const auto& [position, accepted] : counts.accepted_by_position)
        out += line(fmt::format("  Position {}:", position), 100 * accepted / counts.drafts);
    return out;
}

}  // namespace

double peak_throughput(const Report& report, const Figures& figures) {
    const auto tokens = static_cast<double>(figures.output_tokens);
    return std::max(figures.peak_output, per_second(tokens, report.seconds));
}

std::string goodput_text(const Goodput& goodput) {
    std::string text;
    for (const auto& [name, limit] :
         {std::pair("ttft", goodput.ttft), {"tpot", goodput.tpot}, {"e2el", goodput.e2el}})
        if (limit) text += fmt::format("{}{} {:g}", text.empty() ? "" : ", ", name, *limit);
    return text;
}

std::string percent_text(double percent) { return fmt::format("{:g}", percent); }

bool is_reported(const Report& report, const Latency& latency) {
    return std::ranges::find(report.metrics, latency.key) != report.metrics.end();
}

std::string report_text(const Report& report) {
    const Figures figures = figures_of(report.records, report.goodput);
    const auto rate = [&](std::int64_t count) {
        return per_second(static_cast<double>(count), report.seconds);
    };
    std::string out = heading(" Serving Benchmark Result ", '=');
    out += line("Successful requests:", figures.completed);
    out += line("Failed requests:", figures.failed);
    if (report.options.concurrency > 0)
        out += line("Maximum request concurrency:", report.options.concurrency);
    if (std::isfinite(report.options.rate))
        out += line("Request rate configured (RPS):", report.options.rate);
    out += line("Benchmark duration (s):", report.seconds);
    out += line("Total input tokens:", figures.input_tokens);
    out += line("Total generated tokens:", figures.output_tokens);
    out += line("Request throughput (req/s):", rate(figures.completed));
    if (report.goodput.asked()) {
        out += line("Request goodput (req/s):", rate(figures.good));
        out += fmt::format("{:<40} {}\n", "Goodput limits (ms):", goodput_text(report.goodput));
    }
    out += line("Output token throughput (tok/s):", rate(figures.output_tokens));
    out += line("Peak output token throughput (tok/s):", peak_throughput(report, figures));
    out += line("Peak concurrent requests:", static_cast<double>(figures.peak_under_way));
    out +=
        line("Total token throughput (tok/s):", rate(figures.input_tokens + figures.output_tokens));
    for (const Latency& latency : kLatencies)
        if (is_reported(report, latency)) out += latency_lines(report, latency, figures);
    if (report.speculation) out += speculation_lines(*report.speculation);
    return out + std::string(kWidth, '=') + "\n";
}

std::string failures_text(const Report& report) {
    const Figures figures = figures_of(report.records, {});
    std::string out;
    for (int i = 0; i < client::kFailureKinds; ++i) {
        const auto kind = static_cast<client::FailureKind>(i);
        const std::int64_t count = figures.failures[static_cast<std::size_t>(i)];
        if (count == 0) continue;
        const auto first = std::ranges::find_if(report.records, [&](const RequestRecord& record) {
            return record.failure && record.failure->kind == kind;
        });
        out += fmt::format("{} failed, {}: {}\n", count, client::failure_text(kind),
                           first->failure->message);
    }
    return out;
}

}  // namespace espalier::load
