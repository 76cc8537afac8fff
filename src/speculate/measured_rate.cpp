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

// The last ~64 steps count; one wild step tells no more than three.
void MeasuredRate::Way::add(double step_tokens, double step_seconds) {
    constexpr double kKept = 1.0 - 1.0 / 64;
    if (steps >= 3) step_seconds = std::min(step_seconds, 3 * seconds / steps);
    steps = steps * kKept + 1;
    tokens = tokens * kKept + step_tokens;
    seconds = seconds * kKept + step_seconds;
}

void MeasuredRate::Way::suspend(std::int64_t now) {
    resumes = now + pause;
    pause = std::min(2 * pause, kLongestPause);
    steps = tokens = seconds = 0;
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
    constexpr double kEnough = 16, kFew = 6;  // steps
    constexpr double kClearly = 0.75;         // of the simpler way's rate
    constexpr double kSimplerEnough = 3;
    Way& judged = rows.ways[way];
    double best = 0;  // of the simpler ways
    for (std::size_t i = 0; i < way; ++i)
        if (rows.ways[i].steps >= kSimplerEnough) best = std::max(best, rows.ways[i].rate());
    if (best == 0) return;
    const double gain = judged.rate() / best;
    if ((judged.steps >= kEnough && gain < 1) || (judged.steps >= kFew && gain < kClearly))
        judged.suspend(rows.steps);
    else if (judged.steps >= 2 * kEnough)
        judged.pause = kFirstPause;
}

}  // namespace espalier::speculate
