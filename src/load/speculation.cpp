// SPDX-License-Identifier: Apache-2.0
#include "load/speculation.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

namespace espalier::load {
namespace {

// More positions than any server drafts: a hostile one shall not fill the map.
constexpr std::int64_t kMaxPositions = 256;

std::optional<double> number_of(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
    return value;
}

// name{labels} value, as Prometheus writes a sample.
struct Sample {
    std::string_view prefix;  // "vllm:"
    std::string_view name;    // behind it
    std::string_view labels;
    double value;
};

std::optional<Sample> sample_of(std::string_view line) {
    if (line.empty() || line.front() == '#') return std::nullopt;
    const std::size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string_view::npos) return std::nullopt;
    std::string_view name = line.substr(0, name_end);
    std::string_view labels;
    std::size_t value_at = name_end;
    if (line[name_end] == '{') {
        const std::size_t close = line.rfind('}');
        if (close == std::string_view::npos || close < name_end) return std::nullopt;
        labels = line.substr(name_end + 1, close - name_end - 1);
        value_at = close + 1;
    }
    const std::size_t digits = line.find_first_not_of(' ', value_at);
    if (digits == std::string_view::npos) return std::nullopt;
    const auto value = number_of(line.substr(digits));
    if (!value) return std::nullopt;
    const std::size_t stem = name.rfind(':') + 1;
    return Sample{name.substr(0, stem), name.substr(stem), labels, *value};
}

std::optional<std::int64_t> position_of(std::string_view labels) {
    constexpr std::string_view kLabel = "position=\"";
    const std::size_t at = labels.find(kLabel);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view digits = labels.substr(at + kLabel.size());
    std::int64_t position = -1;
    std::from_chars(digits.data(), digits.data() + digits.size(), position);
    if (position < 0 || position >= kMaxPositions) return std::nullopt;
    return position;
}

std::optional<SpeculationCounts> of_usage(const std::vector<RequestRecord>& records) {
    SpeculationCounts counts;
    for (const RequestRecord& record : records) {
        if (record.failure || !record.accepted_tokens || !record.rejected_tokens) continue;
        const auto accepted = static_cast<double>(*record.accepted_tokens);
        counts.accepted_tokens += accepted;
        counts.draft_tokens += accepted + static_cast<double>(*record.rejected_tokens);
        counts.drafts += std::max(0.0, static_cast<double>(record.output_tokens) - accepted);
    }
    return counts;
}

}  // namespace

std::optional<SpeculationCounts> speculation_of_metrics(std::string_view metrics) {
    SpeculationCounts counts;
    bool found = false;
    std::optional<std::string_view> prefix;  // a server may tell the same by several names
    while (!metrics.empty()) {
        const std::size_t end = std::min(metrics.find('\n'), metrics.size());
        const auto sample = sample_of(metrics.substr(0, end));
        metrics.remove_prefix(std::min(end + 1, metrics.size()));
        if (!sample || !sample->name.starts_with("spec_decode_")) continue;
        if (!prefix) prefix = sample->prefix;
        if (sample->prefix != *prefix) continue;
        if (sample->name == "spec_decode_num_drafts_total") {
            counts.drafts += sample->value;
            found = true;
        } else if (sample->name == "spec_decode_num_draft_tokens_total") {
            counts.draft_tokens += sample->value;
        } else if (sample->name == "spec_decode_num_accepted_tokens_total") {
            counts.accepted_tokens += sample->value;
        } else if (sample->name == "spec_decode_num_accepted_tokens_per_pos_total") {
            if (const auto position = position_of(sample->labels))
                counts.accepted_by_position[*position] += sample->value;
        }
    }
    return found ? std::optional(counts) : std::nullopt;
}

std::optional<SpeculationCounts> speculation_of_run(const std::optional<SpeculationCounts>& before,
                                                    const std::optional<SpeculationCounts>& after,
                                                    const std::vector<RequestRecord>& records) {
    std::optional<SpeculationCounts> counts = of_usage(records);
    if (before && after) {
        counts = *after;
        counts->drafts -= before->drafts;
        counts->draft_tokens -= before->draft_tokens;
        counts->accepted_tokens -= before->accepted_tokens;
        for (const auto& [position, count] : before->accepted_by_position)
            counts->accepted_by_position[position] -= count;
    }
    // Counters of a server that was started again meanwhile may have gone down.
    if (!(counts->draft_tokens > 0) || !(counts->drafts > 0) || counts->accepted_tokens < 0)
        return std::nullopt;
    std::erase_if(counts->accepted_by_position, [](const auto& one) { return one.second <= 0; });
    return counts;
}

}  // namespace espalier::load
