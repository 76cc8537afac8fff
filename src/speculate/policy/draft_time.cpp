// SPDX-License-Identifier: Apache-2.0
#include "speculate/policy/draft_time.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"

namespace espalier::speculate {

DraftTime::DraftTime() { calls_.reserve(kMostCalls + 1); }

void DraftTime::observe(std::int32_t levels, std::int64_t tokens, double seconds) {
    CHECK(levels >= 1 && tokens >= 1, "{} tokens in {} levels", tokens, levels);
    if (!std::isfinite(seconds) || seconds <= 0) return;
    const auto level_count = static_cast<double>(levels), token_count = static_cast<double>(tokens);
    keep({.levels = level_count,
          .tokens = token_count,
          .seconds = seconds,
          .kind = static_cast<int>(std::lround(std::log2(token_count / level_count)))});
    fit();
}

Numbers DraftTime::save() const {
    Numbers numbers;
    for (const Call& call : calls_)
        for (const double number : {call.levels, call.tokens, call.seconds})
            numbers.push_back(number);
    return numbers;
}

bool DraftTime::restore(std::span<const double> numbers) {
    constexpr double kMost = 1e6;  // levels, tokens, seconds
    if (numbers.size() % 3 != 0 || numbers.size() > 3 * kMostCalls) return false;
    const auto is_possible = [&](std::size_t i) {
        return i % 3 == 2 ? numbers[i] > 0 && numbers[i] <= kMost
                          : numbers[i] >= 1 && numbers[i] <= kMost;  // false for NaN
    };
    for (std::size_t i = 0; i < numbers.size(); ++i)
        if (!is_possible(i)) return false;
    for (std::size_t i = 0; i < numbers.size(); i += 3)
        observe(static_cast<std::int32_t>(numbers[i]), static_cast<std::int64_t>(numbers[i + 1]),
                numbers[i + 2]);
    return true;
}

// In place of the oldest of its kind, or of all.
void DraftTime::keep(const Call& call) {
    const auto alike = [&](const Call& one) { return one.kind == call.kind; };
    if (std::ranges::count_if(calls_, alike) == static_cast<std::ptrdiff_t>(kOfAKind))
        calls_.erase(std::ranges::find_if(calls_, alike));
    else if (calls_.size() == kMostCalls)
        calls_.erase(calls_.begin());
    calls_.push_back(call);
}

// Error of each call relative to its time, so that one which took ten times as long as it should
// counts as one that is off by nine tenths. What is put down to tokens counts too: with two or
// three calls it would explain their noise.
double DraftTime::error(const Costs& costs) const {
    constexpr double kTokens = 0.1;
    double sum = 0;
    for (const Call& call : calls_) {
        const double tokens = call.tokens * costs.token;
        sum += std::abs((call.levels * costs.level + tokens) / call.seconds - 1) +
               kTokens * tokens / call.seconds;
    }
    return sum;
}

// The least sum of absolute errors of two unknowns is met where two calls are explained exactly, or
// one and a split that is given: 3 % for tokens, since no level is as wide as one likes.
void DraftTime::fit() {
    constexpr double kOfTokens = 0.03;
    double least = std::numeric_limits<double>::infinity();
    Costs best;
    const auto weigh = [&](const Costs& costs) {
        if (!(costs.level >= 0 && costs.token >= 0)) return;
        if (const double sum = error(costs); sum < least) {
            least = sum;
            best = costs;
        }
    };
    for (std::size_t i = 0; i < calls_.size(); ++i) {
        const Call& a = calls_[i];
        weigh({.level = (1 - kOfTokens) * a.seconds / a.levels,
               .token = kOfTokens * a.seconds / a.tokens});
        weigh({.level = 0, .token = a.seconds / a.tokens});
        for (std::size_t j = i + 1; j < calls_.size(); ++j) {
            const Call& b = calls_[j];
            const double area = a.levels * b.tokens - b.levels * a.tokens;
            if (area == 0) continue;
            weigh({.level = (a.seconds * b.tokens - b.seconds * a.tokens) / area,
                   .token = (b.seconds * a.levels - a.seconds * b.levels) / area});
        }
    }
    costs_ = best;
}

}  // namespace espalier::speculate
