// SPDX-License-Identifier: Apache-2.0
#include "speculate/measured_rate.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.hpp"

namespace espalier::speculate {

MeasuredRate::Rows& MeasuredRate::rows_like(std::int64_t rows) {
    CHECK(rows >= 1, "{} rows", rows);
    const auto width = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(rows)));
    return rows_[std::min(width, rows_.size()) - 1];
}

// The last ~128 steps count; one wild step tells no more than three.
void MeasuredRate::Way::add(double step_tokens, double step_seconds) {
    constexpr double kKept = 1.0 - 1.0 / 128;
    if (steps >= 3) step_seconds = std::min(step_seconds, 3 * seconds / steps);
    const auto keep = [&](double& sum, double term) { sum = sum * kKept + term; };
    keep(steps, 1);
    keep(tokens, step_tokens);
    keep(seconds, step_seconds);
    keep(tokens2, step_tokens * step_tokens);
    keep(both, step_tokens * step_seconds);
    keep(seconds2, step_seconds * step_seconds);
}

// By how far single steps are off the rate.
double MeasuredRate::Way::error() const {
    const double squares = tokens2 - 2 * rate() * both + rate() * rate() * seconds2;
    return std::sqrt(std::max(squares, 0.0)) / tokens;
}

void MeasuredRate::Way::suspend(std::int64_t now) {
    const std::int64_t next_pause = std::min(2 * pause, kLongestPause);
    *this = {.resumes = now + pause, .pause = next_pause};
}

DraftingWay MeasuredRate::next(std::int64_t rows, const Drafters& drafters) {
    Rows& like = rows_like(rows);
    ++like.steps;
    const std::array<bool, kWays> there = {true, drafters.free, drafters.passes};
    const auto open = [&](std::size_t way) {
        return there[way] && like.ways[way].resumes <= like.steps;
    };
    std::size_t best = kWays - 1;
    while (best > 0 && !open(best)) --best;
    std::size_t way = best;
    for (std::size_t simpler = best; simpler-- > 0;)
        if (open(simpler) && ++like.ways[simpler].since >= kSimplerEvery) way = simpler;
    like.ways[way].since = 0;
    return static_cast<DraftingWay>(way);
}

void MeasuredRate::observe(std::int64_t rows, DraftingWay way, double tokens, double seconds) {
    if (!std::isfinite(seconds) || seconds <= 0) return;
    Rows& like = rows_like(rows);
    const auto index = static_cast<std::size_t>(way);
    like.ways[index].add(tokens, seconds);
    if (index > 0) judge(like, index);
}

void MeasuredRate::judge(Rows& rows, std::size_t way) {
    constexpr double kLeast = 8, kProven = 64;  // steps
    constexpr double kLeastSimpler = 3;
    constexpr double kSure = 1.5;  // errors
    Way& judged = rows.ways[way];
    const Way* best = nullptr;  // of the simpler ways
    for (std::size_t i = 0; i < way; ++i)
        if (rows.ways[i].steps >= kLeastSimpler &&
            (best == nullptr || rows.ways[i].rate() > best->rate()))
            best = &rows.ways[i];
    if (best == nullptr || judged.steps < kLeast) return;
    const double gain = judged.rate() / best->rate();
    if (gain * (1 + kSure * std::hypot(judged.error(), best->error())) < 1)
        judged.suspend(rows.steps);
    else if (judged.steps >= kProven && gain >= 1)
        judged.pause = kFirstPause;
}

}  // namespace espalier::speculate
