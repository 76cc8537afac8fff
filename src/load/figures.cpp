// SPDX-License-Identifier: Apache-2.0
#include "load/figures.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace espalier::load {
namespace {

// A run of more seconds than these is drawn and searched for its peak only so far.
constexpr double kMaxSeconds = 1e6;

bool is_good(const Goodput& goodput, double ttft, double tpot, double e2el) {
    return ttft <= goodput.ttft.value_or(ttft) && tpot <= goodput.tpot.value_or(tpot) &&
           e2el <= goodput.e2el.value_or(e2el);
}

void count_by_second(const RequestRecord& record, std::vector<double>& seconds) {
    const double share =
        static_cast<double>(record.output_tokens) / static_cast<double>(record.pieces());
    double time = *record.first_piece;
    for (std::size_t i = 0; i <= record.gaps.size(); ++i) {
        const auto second = static_cast<std::size_t>(std::clamp(time, 0.0, kMaxSeconds));
        if (seconds.size() <= second) seconds.resize(second + 1);
        seconds[second] += share;
        if (i < record.gaps.size()) time += record.gaps[i];
    }
}

void add_completed(const RequestRecord& record, const Goodput& goodput, Figures& figures) {
    ++figures.completed;
    figures.input_tokens += record.input_tokens;
    figures.output_tokens += record.output_tokens;
    figures.guessed += record.counted_by_server ? 0 : 1;
    const double ttft = 1e3 * (*record.first_piece - record.sent);
    const double e2el = 1e3 * (record.ended - record.sent);
    // A single token counts as 0 for goodput, and for nothing in the mean.
    double tpot = 0;
    if (record.output_tokens > 1) {
        tpot = (e2el - ttft) / static_cast<double>(record.output_tokens - 1);
        figures.tpot.push_back(tpot);
    }
    figures.ttft.push_back(ttft);
    figures.e2el.push_back(e2el);
    for (const double gap : record.gaps) figures.itl.push_back(1e3 * gap);
    if (is_good(goodput, ttft, tpot, e2el)) ++figures.good;
    count_by_second(record, figures.tokens_by_second);
}

}  // namespace

Figures figures_of(const std::vector<RequestRecord>& records, const Goodput& goodput) {
    Figures figures;
    for (const RequestRecord& record : records) {
        if (record.failure) {
            ++figures.failed;
            ++figures.failures[static_cast<std::size_t>(record.failure->kind)];
        } else {
            add_completed(record, goodput, figures);
        }
    }
    for (const Latency& latency : kLatencies) std::ranges::sort(figures.*latency.values);
    for (const double tokens : figures.tokens_by_second)
        figures.peak_output = std::max(figures.peak_output, tokens);
    for (const LevelChange& change : under_way_over_time(records))
        figures.peak_under_way = std::max(figures.peak_under_way, change.level);
    return figures;
}

std::vector<LevelChange> under_way_over_time(const std::vector<RequestRecord>& records) {
    std::vector<LevelChange> changes;
    for (const RequestRecord& record : records) {
        changes.push_back({record.sent, 1});
        changes.push_back({record.ended, -1});
    }
    // At the same time an end comes before a beginning.
    std::ranges::sort(changes, [](const LevelChange& a, const LevelChange& b) {
        return a.seconds != b.seconds ? a.seconds < b.seconds : a.level < b.level;
    });
    std::int64_t level = 0;
    for (LevelChange& change : changes) change.level = level += change.level;
    return changes;
}

double percentile(const std::vector<double>& ascending, double percent) {
    if (ascending.empty()) return 0;
    const double place = percent / 100 * static_cast<double>(ascending.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, ascending.size() - 1);
    return ascending[below] +
           (ascending[above] - ascending[below]) * (place - static_cast<double>(below));
}

double mean(const std::vector<double>& values) {
    if (values.empty()) return 0;
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
    if (values.empty()) return 0;
    const double middle = mean(values);
    double sum = 0;
    for (const double value : values) sum += (value - middle) * (value - middle);
    return std::sqrt(sum / static_cast<double>(values.size()));
}

Expected<Goodput> parse_goodput(const std::vector<std::string>& words) {
    Goodput goodput;
    for (const std::string& word : words) {
        const std::size_t colon = std::min(word.find(':'), word.size());
        const std::string name = word.substr(0, colon);
        std::optional<double>* limit = name == "ttft"   ? &goodput.ttft
                                       : name == "tpot" ? &goodput.tpot
                                       : name == "e2el" ? &goodput.e2el
                                                        : nullptr;
        const std::string number = colon < word.size() ? word.substr(colon + 1) : "";
        double value = 0;
        const auto [end, error] =
            std::from_chars(number.data(), number.data() + number.size(), value);
        if (limit == nullptr || error != std::errc() || end != number.data() + number.size() ||
            !std::isfinite(value) || value <= 0)
            return fail_field(ErrorKind::invalid, "goodput",
                              "'{}' is not of the form ttft:MS, tpot:MS or e2el:MS", word);
        *limit = value;
    }
    return goodput;
}

}  // namespace espalier::load
