// SPDX-License-Identifier: Apache-2.0
#include "speculate/policy/measured_rate.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {
// Steps of a way from which on others are compared with it: three, whose sums fade. A prediction
// counts as two of them, so that one plain step is enough.
constexpr double kLeastSimpler = 2.5;
constexpr int kPredicted = 2;
}  // namespace

std::size_t MeasuredRate::index_of(std::int64_t rows) {
    CHECK(rows >= 1, "{} rows", rows);
    const auto index = static_cast<std::size_t>(std::lround(std::log2(static_cast<double>(rows))));
    return std::min(index, kRowClasses - 1);
}

// The last ~128 steps count; a wild one tells no more than three of its tokens, or of the mean.
void MeasuredRate::Way::add(double step_tokens, double step_seconds) {
    constexpr double kKept = 1.0 - 1.0 / 128, kWild = 3;
    if (steps >= kWild)
        step_seconds =
            std::min(step_seconds, kWild * std::max(seconds / steps, step_tokens / rate()));
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

std::int64_t MeasuredRate::pause(std::int64_t rows, DraftingWay way) const {
    const Rows& like = rows_[index_of(rows)];
    const std::int64_t left = like.ways[static_cast<std::size_t>(way)].resumes - like.steps;
    return std::max<std::int64_t>(left, 0);
}

Numbers MeasuredRate::save() const {
    Numbers numbers;
    for (const Rows& rows : rows_)
        for (const Way& way : rows.ways)
            for (const double sum :
                 {way.steps, way.tokens, way.seconds, way.tokens2, way.both, way.seconds2})
                numbers.push_back(sum);
    return numbers;
}

bool MeasuredRate::restore(std::span<const double> numbers) {
    constexpr std::size_t kSums = 6;
    if (numbers.size() != kRowClasses * kWays * kSums || !are_plausible(numbers)) return false;
    for (std::size_t i = 0; i < numbers.size(); i += kSums)
        if (numbers[i] > 0 && !(numbers[i + 1] > 0 && numbers[i + 2] > 0)) return false;
    std::size_t at = 0;
    for (Rows& rows : rows_)
        for (Way& way : rows.ways) {
            const double steps = numbers[at];
            const double kept = steps > kRemembered ? kRemembered / steps : 1;
            if (steps >= kLeastSimpler) {
                const auto sum = [&](std::size_t i) { return kept * numbers[at + i]; };
                way.steps = sum(0);
                way.tokens = sum(1);
                way.seconds = sum(2);
                way.tokens2 = sum(3);
                way.both = sum(4);
                way.seconds2 = sum(5);
            }
            at += kSums;
        }
    return true;
}

void MeasuredRate::hasten(std::int64_t rows, DraftingWay way, std::int64_t steps) {
    Rows& like = rows_[index_of(rows)];
    std::int64_t& resumes = like.ways[static_cast<std::size_t>(way)].resumes;
    resumes = std::min(resumes, like.steps + steps);
}

DraftingWay MeasuredRate::next(std::int64_t rows, const Question& question) {
    Rows& like = rows_[index_of(rows)];
    ++like.steps;
    Way& plain = like.ways[0];
    if (plain.steps == 0 && question.plain_seconds > 0)
        for (int i = 0; i < kPredicted; ++i)
            plain.add(static_cast<double>(rows), question.plain_seconds);
    const std::array<bool, kWays> there = {true, question.free, question.passes};
    const auto open = [&](std::size_t way) {
        return there[way] && like.ways[way].resumes <= like.steps;
    };
    std::size_t best = kWays - 1;
    while (best > 0 && !open(best)) --best;
    if (!question.counts) return static_cast<DraftingWay>(best);
    std::size_t way = best;
    for (std::size_t simpler = best; simpler-- > 0;)
        if (open(simpler) && ++like.ways[simpler].since >= kSimplerEvery) way = simpler;
    like.ways[way].since = 0;
    return static_cast<DraftingWay>(way);
}

void MeasuredRate::observe(std::int64_t rows, const Step& step) {
    const Upkeep& upkeep = step.upkeep;
    if (!std::isfinite(step.seconds) || step.seconds <= upkeep.reading + upkeep.look_on) return;
    double seconds = step.seconds;
    if (step.way != DraftingWay::passes) seconds -= upkeep.look_on;
    if (step.way == DraftingWay::none) seconds -= upkeep.reading;
    Rows& like = rows_[index_of(rows)];
    const auto way = static_cast<std::size_t>(step.way);
    like.ways[way].add(step.tokens, seconds);
    if (way > 0) judge(like, way);
}

const MeasuredRate::Way* MeasuredRate::best_below(const Rows& rows, std::size_t way) {
    const Way* best = nullptr;
    for (std::size_t i = 0; i < way; ++i)
        if (rows.ways[i].steps >= kLeastSimpler &&
            (best == nullptr || rows.ways[i].rate() > best->rate()))
            best = &rows.ways[i];
    return best;
}

void MeasuredRate::judge(Rows& rows, std::size_t way) {
    constexpr double kLeast = 8, kProven = 64;  // steps
    constexpr double kPays = 1.02;              // a gain that is one
    constexpr double kFewSteps = 8;
    Way& judged = rows.ways[way];
    const Way* best = best_below(rows, way);
    if (best == nullptr || judged.steps < kLeast) return;
    const double gain = judged.rate() / best->rate();
    // The error of few drafting steps is hardly known, and the first plans are the worst. Plain
    // steps commit the same number of tokens.
    const auto error_of = [&](const Way& one) {
        return &one == &rows.ways[0] ? one.error() : one.error() * (1 + kFewSteps / one.steps);
    };
    const double error = std::hypot(error_of(judged), error_of(*best));
    if (gain * (1 + error) < 1)
        judged = {.resumes = rows.steps + judged.pause,
                  .pause = std::min(2 * judged.pause, kLongestPause)};
    else if (judged.steps >= kProven && gain >= kPays)
        judged.pause = kFirstPause;
}

}  // namespace espalier::speculate
