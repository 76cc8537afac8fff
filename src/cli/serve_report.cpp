// SPDX-License-Identifier: Apache-2.0
#include "cli/serve_report.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace espalier::cli {
namespace {

constexpr std::size_t kWidth = 50;

// All of the run that is counted, in milliseconds.
struct Figures {
    std::int64_t completed = 0, failed = 0, good = 0, input_tokens = 0, output_tokens = 0;
    std::vector<double> ttft, tpot, itl, e2el;
    double peak_output = 0;  // tokens in the busiest second
};

bool is_good(const Goodput& goodput, double ttft, double tpot, double e2el) {
    return ttft <= goodput.ttft.value_or(ttft) && tpot <= goodput.tpot.value_or(tpot) &&
           e2el <= goodput.e2el.value_or(e2el);
}

// Pieces of text by the second in which they came, each with its share of the tokens.
void count_by_second(const ServeOutcome& outcome, std::vector<double>& seconds) {
    const double share =
        static_cast<double>(outcome.output_tokens) / static_cast<double>(outcome.gaps.size() + 1);
    double time = outcome.began + outcome.first_token;
    for (std::size_t i = 0; i <= outcome.gaps.size(); ++i) {
        const auto second = static_cast<std::size_t>(time);
        if (seconds.size() <= second) seconds.resize(second + 1);
        seconds[second] += share;
        if (i < outcome.gaps.size()) time += outcome.gaps[i];
    }
}

Figures figures_of(const ServeReport& report) {
    Figures figures;
    std::vector<double> seconds;
    for (const ServeOutcome& outcome : report.run.outcomes) {
        if (!outcome.error.empty()) {
            ++figures.failed;
            continue;
        }
        ++figures.completed;
        figures.input_tokens += outcome.input_tokens;
        figures.output_tokens += outcome.output_tokens;
        figures.ttft.push_back(1e3 * outcome.first_token);
        figures.e2el.push_back(1e3 * outcome.whole);
        for (const double gap : outcome.gaps) figures.itl.push_back(1e3 * gap);
        const double tpot = outcome.output_tokens < 2
                                ? 0
                                : 1e3 * (outcome.whole - outcome.first_token) /
                                      static_cast<double>(outcome.output_tokens - 1);
        if (outcome.output_tokens > 1) figures.tpot.push_back(tpot);
        if (is_good(report.goodput, figures.ttft.back(), tpot, figures.e2el.back())) ++figures.good;
        count_by_second(outcome, seconds);
    }
    for (const double tokens : seconds) figures.peak_output = std::max(figures.peak_output, tokens);
    return figures;
}

double mean(const std::vector<double>& values) {
    return values.empty() ? 0
                          : std::accumulate(values.begin(), values.end(), 0.0) /
                                static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
    const double middle = mean(values);
    double sum = 0;
    for (const double value : values) sum += (value - middle) * (value - middle);
    return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string heading(const std::string& title, char fill) {
    const std::size_t around = kWidth - std::min(kWidth, title.size());
    return std::string(around / 2, fill) + title + std::string(around - around / 2, fill) + "\n";
}

template <typename Value>
std::string line(const char* name, Value value) {
    if constexpr (std::is_floating_point_v<Value>)
        return fmt::format("{:<40} {:<10.2f}\n", name, value);
    else
        return fmt::format("{:<40} {:<10}\n", name, value);
}

struct Latency {
    const char* title;
    const char* name;  // "TTFT"
    const char* key;   // "ttft"
    std::vector<double> Figures::*values;
};
constexpr Latency kLatencies[] = {
    {"Time to First Token", "TTFT", "ttft", &Figures::ttft},
    {"Time per Output Token (excl. 1st token)", "TPOT", "tpot", &Figures::tpot},
    {"Inter-token Latency", "ITL", "itl", &Figures::itl},
    {"End-to-end Latency", "E2EL", "e2el", &Figures::e2el},
};

}  // namespace

double percentile(std::vector<double> values, double percent) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    const double place = percent / 100 * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

Expected<Goodput> parse_goodput(const std::vector<std::string>& words) {
    Goodput goodput;
    for (const std::string& word : words) {
        const std::size_t colon = word.find(':');
        const std::string name = word.substr(0, colon);
        std::optional<double>* place = name == "ttft"   ? &goodput.ttft
                                       : name == "tpot" ? &goodput.tpot
                                       : name == "e2el" ? &goodput.e2el
                                                        : nullptr;
        char* end = nullptr;
        const std::string number = colon == std::string::npos ? "" : word.substr(colon + 1);
        const double value = std::strtod(number.c_str(), &end);
        if (place == nullptr || number.empty() || *end != '\0' || !(value > 0))
            return fail_field(ErrorKind::invalid, "goodput",
                              "'{}' is not of the form ttft:MS, tpot:MS or e2el:MS", word);
        *place = value;
    }
    return goodput;
}

std::string ServeReport::text() const {
    const Figures figures = figures_of(*this);
    const double seconds = run.seconds;
    const auto input = static_cast<double>(figures.input_tokens);
    const auto output = static_cast<double>(figures.output_tokens);
    std::string out = heading(" Serving Benchmark Result ", '=');
    out += line("Successful requests:", figures.completed);
    out += line("Failed requests:", figures.failed);
    if (load.concurrency > 0) out += line("Maximum request concurrency:", load.concurrency);
    if (load.rate > 0) out += line("Request rate configured (RPS):", load.rate);
    out += line("Benchmark duration (s):", seconds);
    out += line("Total input tokens:", figures.input_tokens);
    out += line("Total generated tokens:", figures.output_tokens);
    out += line("Request throughput (req/s):",
                per_second(static_cast<double>(figures.completed), seconds));
    if (goodput.asked())
        out += line("Request goodput (req/s):",
                    per_second(static_cast<double>(figures.good), seconds));
    out += line("Output token throughput (tok/s):", per_second(output, seconds));
    out += line("Peak output token throughput (tok/s):", figures.peak_output);
    out += line("Peak concurrent requests:", run.most_under_way);
    out += line("Total token throughput (tok/s):", per_second(input + output, seconds));
    for (const Latency& latency : kLatencies) {
        const std::vector<double>& values = figures.*latency.values;
        out += heading(latency.title, '-');
        out += line(fmt::format("Mean {} (ms):", latency.name).c_str(), mean(values));
        out += line(fmt::format("Median {} (ms):", latency.name).c_str(), percentile(values, 50));
        out += line(fmt::format("P99 {} (ms):", latency.name).c_str(), percentile(values, 99));
    }
    if (speculation && speculation->drafts > 0) {
        out += heading("Speculative Decoding", '-');
        out += line("Acceptance rate (%):",
                    speculation->draft_tokens > 0
                        ? 100 * speculation->accepted_tokens / speculation->draft_tokens
                        : 0.0);
        out += line("Acceptance length:", 1 + speculation->accepted_tokens / speculation->drafts);
        out += line("Drafts:", static_cast<std::int64_t>(speculation->drafts));
        out += line("Draft tokens:", static_cast<std::int64_t>(speculation->draft_tokens));
        out += line("Accepted tokens:", static_cast<std::int64_t>(speculation->accepted_tokens));
    }
    return out + std::string(kWidth, '=') + "\n";
}

nlohmann::ordered_json ServeReport::json(bool detailed) const {
    using Json = nlohmann::ordered_json;
    const Figures figures = figures_of(*this);
    const double seconds = run.seconds;
    const auto input = static_cast<double>(figures.input_tokens);
    const auto output = static_cast<double>(figures.output_tokens);
    Json json = {
        {"date", date},
        {"backend", "openai"},
        {"model_id", run.model},
        {"num_prompts", load.requests},
        {"request_rate", load.rate > 0 ? Json(load.rate) : Json("inf")},
        {"burstiness", load.burstiness},
        {"max_concurrency", load.concurrency > 0 ? Json(load.concurrency) : Json()},
        {"duration", seconds},
        {"completed", figures.completed},
        {"failed", figures.failed},
        {"total_input_tokens", figures.input_tokens},
        {"total_output_tokens", figures.output_tokens},
        {"request_throughput", per_second(static_cast<double>(figures.completed), seconds)},
        {"request_goodput",
         goodput.asked() ? Json(per_second(static_cast<double>(figures.good), seconds)) : Json()},
        {"output_throughput", per_second(output, seconds)},
        {"total_token_throughput", per_second(input + output, seconds)},
        {"max_output_tokens_per_s", figures.peak_output},
        {"max_concurrent_requests", run.most_under_way}};
    for (const Latency& latency : kLatencies) {
        const std::vector<double>& values = figures.*latency.values;
        json[fmt::format("mean_{}_ms", latency.key)] = mean(values);
        json[fmt::format("median_{}_ms", latency.key)] = percentile(values, 50);
        json[fmt::format("std_{}_ms", latency.key)] = deviation(values);
        json[fmt::format("p99_{}_ms", latency.key)] = percentile(values, 99);
    }
    if (speculation && speculation->drafts > 0) {
        json["spec_decode_num_drafts"] = speculation->drafts;
        json["spec_decode_draft_tokens"] = speculation->draft_tokens;
        json["spec_decode_accepted_tokens"] = speculation->accepted_tokens;
        json["spec_decode_acceptance_length"] =
            1 + speculation->accepted_tokens / speculation->drafts;
    }
    if (!detailed) return json;
    for (const char* name : {"input_lens", "output_lens", "start_times", "ttfts", "itls", "errors"})
        json[name] = Json::array();
    for (const ServeOutcome& outcome : run.outcomes) {
        json["input_lens"].push_back(outcome.input_tokens);
        json["output_lens"].push_back(outcome.output_tokens);
        json["start_times"].push_back(outcome.began);
        json["ttfts"].push_back(outcome.first_token);
        json["itls"].push_back(outcome.gaps);
        json["errors"].push_back(outcome.error);
    }
    return json;
}

}  // namespace espalier::cli
