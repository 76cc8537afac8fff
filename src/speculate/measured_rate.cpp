// SPDX-License-Identifier: Apache-2.0
#include "speculate/measured_rate.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {
constexpr auto kPasses = static_cast<std::size_t>(DraftingWay::passes);
// Steps of a way from which on others are compared with it. They come first: a way that loses half
// of the time would otherwise go on until one step in eight had shown it.
constexpr double kLeastSimpler = 3;
}  // namespace

std::size_t MeasuredRate::index_of(std::int64_t rows) {
    CHECK(rows >= 1, "{} rows", rows);
    const auto index = static_cast<std::size_t>(std::lround(std::log2(static_cast<double>(rows))));
    return std::min(index, kRowClasses - 1);
}

// The last ~128 steps count; one wild step tells no more than three.
void MeasuredRate::Way::add(double step_tokens, double step_seconds, double owed) {
    constexpr double kKept = 1.0 - 1.0 / 128;
    if (steps >= 3) step_seconds = std::min(step_seconds, 3 * seconds / steps);
    step_seconds += owed;
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

void MeasuredRate::Way::suspend(std::int64_t now, double lost_steps) {
    constexpr double kShare = 0.01;  // of the time, for trials
    const auto repay = static_cast<std::int64_t>(
        std::clamp(lost_steps / kShare, 0.0, static_cast<double>(kLongestPause)));
    const std::int64_t length = std::max(pause, repay);
    *this = {.resumes = now + length, .pause = std::min(2 * pause, kLongestPause)};
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

double MeasuredRate::saved_by_passes(std::int64_t rows) const {
    const Rows& like = rows_[index_of(rows)];
    const Way& passes = like.ways[kPasses];
    const Way* best = best_below(like, kPasses);
    if (best == nullptr || !surely_better(passes, *best)) return 0;
    return 1 - best->rate() / passes.rate();
}

bool MeasuredRate::surely_better(const Way& way, const Way& simpler) {
    constexpr double kLeast = 3, kSure = 2;  // steps, errors
    if (way.steps < kLeast || simpler.steps < kLeast) return false;
    return way.rate() > simpler.rate() * (1 + kSure * std::hypot(way.error(), simpler.error()));
}

// A suspension with twice or half as many rows holds here too, until its time is over.
void MeasuredRate::take_over(std::size_t index) {
    constexpr std::int64_t kKnown = 32;  // steps
    for (const std::size_t other : {index + 1, index - 1}) {
        if (other >= kRowClasses || rows_[other].steps < kKnown) continue;
        for (std::size_t way = 0; way < kWays; ++way) {
            const Way& known = rows_[other].ways[way];
            rows_[index].ways[way].resumes =
                std::max<std::int64_t>(known.resumes - rows_[other].steps, 0);
        }
        return;
    }
}

DraftingWay MeasuredRate::next(std::int64_t rows, const Drafters& drafters) {
    Rows& like = rows_[index_of(rows)];
    if (like.steps == 0) take_over(index_of(rows));
    ++like.steps;
    const std::array<bool, kWays> there = {true, drafters.free, drafters.passes};
    const auto open = [&](std::size_t way) {
        return there[way] && like.ways[way].resumes <= like.steps;
    };
    std::size_t best = kWays - 1;
    while (best > 0 && !open(best)) --best;
    std::size_t way = best;
    for (std::size_t simpler = best; simpler-- > 0;) {
        if (!open(simpler)) continue;
        const bool known = like.ways[simpler].steps >= kLeastSimpler;
        const bool sure = surely_better(like.ways[best], like.ways[simpler]);
        if (++like.ways[simpler].since >= (sure ? kSimplerEvery : kUnsureEvery) || !known)
            way = simpler;
    }
    like.ways[way].since = 0;
    return static_cast<DraftingWay>(way);
}

void MeasuredRate::observe(std::int64_t rows, const Step& step) {
    const Upkeep& upkeep = step.upkeep;
    if (!std::isfinite(step.seconds) || step.seconds <= upkeep.reading + upkeep.look_on) return;
    Way& way = rows_[index_of(rows)].ways[static_cast<std::size_t>(step.way)];
    switch (step.way) {
        case DraftingWay::none:
            way.add(step.tokens, step.seconds - upkeep.reading - upkeep.look_on, 0);
            owe(rows, upkeep);
            break;
        case DraftingWay::free:
            way.add(step.tokens, step.seconds - upkeep.look_on, std::exchange(owed_.reading, 0));
            owe(rows, {.look_on = upkeep.look_on});
            break;
        case DraftingWay::passes:
            way.add(step.tokens, step.seconds, charged_look_on(way, upkeep.look_on));
            break;
    }
    if (step.way != DraftingWay::none)
        judge(rows_[index_of(rows)], static_cast<std::size_t>(step.way));
}

// Time that draft models took in steps that went without them. Each passes step bears that of two
// others: one in eight goes each simpler way. What was spent before the first of them, until texts
// had been followed from their beginnings, is no part of its rate (charged to nine steps it would
// condemn every trial but the first), but of what the trial costs.
double MeasuredRate::charged_look_on(Way& way, double own) {
    const double owed = std::exchange(owed_.look_on, 0);
    const double charged = std::min(owed, 2 * own);
    way.sunk += owed - charged;
    return charged;
}

const MeasuredRate::Way* MeasuredRate::best_below(const Rows& rows, std::size_t way) {
    const Way* best = nullptr;
    for (std::size_t i = 0; i < way; ++i)
        if (rows.ways[i].steps >= kLeastSimpler &&
            (best == nullptr || rows.ways[i].rate() > best->rate()))
            best = &rows.ways[i];
    return best;
}

// Debts are a trial's loss too, also where it never comes to draft: no request's text was
// followed from its beginning.
void MeasuredRate::owe(std::int64_t rows, const Upkeep& upkeep) {
    constexpr double kMost = 12;  // steps
    owed_.reading += upkeep.reading;
    owed_.look_on += upkeep.look_on;
    Rows& like = rows_[index_of(rows)];
    const Way* best = best_below(like, kPasses);
    if (best == nullptr || like.ways[kPasses].resumes > like.steps) return;
    const double owed_steps = owed_.look_on * best->steps / best->seconds;
    if (owed_steps < kMost) return;
    like.ways[kPasses].suspend(like.steps, owed_steps);
    owed_.look_on = 0;
}

void MeasuredRate::judge(Rows& rows, std::size_t way) {
    constexpr double kLeast = 8, kProven = 64;   // steps
    constexpr double kSure = 1.5, kPays = 1.02;  // errors; a gain that is one
    // With few steps their error is hardly known, and the first plans are the worst.
    constexpr double kFewSteps = 8;
    Way& judged = rows.ways[way];
    const Way* best = best_below(rows, way);
    if (best == nullptr || judged.steps < kLeast) return;
    const double gain = judged.rate() / best->rate();
    const double error = std::hypot(judged.error(), best->error());
    const double sure = kSure * (1 + kFewSteps / judged.steps);
    if (gain * (1 + sure * error) < 1) {
        const double lost = judged.sunk + judged.seconds - judged.tokens / best->rate();
        judged.suspend(rows.steps, lost * judged.steps / judged.seconds);
    } else if (judged.steps >= kProven && gain >= kPays) {
        judged.pause = kFirstPause;
        judged.sunk = 0;
    }
}

}  // namespace espalier::speculate
