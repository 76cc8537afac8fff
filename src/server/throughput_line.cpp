// SPDX-License-Identifier: Apache-2.0
#include "server/throughput_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace espalier::server {
namespace {

using engine::EngineStatus;

double share(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::optional<std::string> draft_line(const EngineStatus& now, const EngineStatus& last) {
    const std::int64_t draws = now.sums.drawing_steps() - last.sums.drawing_steps();
    const std::int64_t accepted = now.sums.steps.accepted - last.sums.steps.accepted;
    const std::int64_t drafted = now.totals.tokens.drafts - last.totals.tokens.drafts;
    if (drafted == 0) return std::nullopt;
    std::vector<std::string> rates;
    for (std::size_t depth = 1; depth <= 4; ++depth)
        rates.push_back(fmt::format("{:.2f}", share(now.sums.steps.accepted_at_depth[depth] -
                                                        last.sums.steps.accepted_at_depth[depth],
                                                    draws)));
    return fmt::format(
        "Drafts: mean acceptance length: {:.2f}, accepted {} of {} nodes, per position: {}",
        1.0 + share(accepted, draws), accepted, drafted, fmt::join(rates, ", "));
}

}  // namespace

std::vector<std::string> ThroughputLine::lines(const EngineStatus& status, double seconds) {
    const std::int64_t prompt = status.totals.prompt_tokens - last_.totals.prompt_tokens;
    const std::int64_t hits = status.totals.hit_tokens - last_.totals.hit_tokens;
    const std::int64_t output = status.sums.steps.committed - last_.sums.steps.committed;
    const std::int64_t running = status.gauges.running + status.gauges.prefilling;
    const std::int64_t waiting = status.queued + status.gauges.waiting;
    const bool idle = prompt + output + running + waiting == 0;
    std::vector<std::string> made;
    if (!idle || !was_idle_) {
        made.push_back(fmt::format(
            "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
            "Running: {} reqs, Waiting: {} reqs, KV cache usage: {:.1f}%, Prefix cache hit rate: "
            "{:.1f}%",
            static_cast<double>(prompt) / seconds, static_cast<double>(output) / seconds, running,
            waiting, 100.0 * share(status.gauges.pages.owned, status.gauges.pages.total),
            100.0 * share(hits, prompt)));
        if (auto drafts = draft_line(status, last_)) made.push_back(std::move(*drafts));
    }
    was_idle_ = idle;
    last_ = status;
    return made;
}

}  // namespace espalier::server
