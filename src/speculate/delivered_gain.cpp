// SPDX-License-Identifier: Apache-2.0
#include "speculate/delivered_gain.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

std::size_t class_of(std::int64_t rows, std::size_t classes) {
    CHECK(rows >= 1, "{} rows", rows);
    const auto width = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(rows)));
    return std::min(width, classes) - 1;
}

}  // namespace

double DeliveredGain::Mean::value() const {
    constexpr double kPrior = 8;  // steps that count as having kept what they promised
    return (sum + kPrior) / (weight + kPrior);
}

// The last ~64 steps count.
void DeliveredGain::Mean::add(double value) {
    constexpr double kDecay = 1.0 - 1.0 / 64;
    weight = weight * kDecay + 1;
    sum = sum * kDecay + value;
}

// While nothing pays: after some 500 steps drafts are tried once more, and a dozen tell.
void DeliveredGain::Mean::fade() {
    constexpr double kKept = 1.0 - 1.0 / 256;
    weight *= kKept;
    sum *= kKept;
}

double DeliveredGain::factor(std::int64_t rows) const {
    const Class& at = classes_[class_of(rows, classes_.size())];
    const double delivered = at.tokens.value() * at.plain_seconds.value() / at.seconds.value();
    // Plans that promise a fifth more are believed whatever others did: a drafter that was just
    // found to be wrong with chains may be right with wider trees.
    constexpr double kLeast = 0.85;
    return std::clamp(delivered, kLeast, 1.0);
}

void DeliveredGain::observe(std::int64_t rows, const StepPromise& promise, double tokens,
                            double seconds) {
    if (promise.seconds <= 0 || !std::isfinite(seconds) || seconds <= 0) return;
    Class& at = classes_[class_of(rows, classes_.size())];
    const double slower = std::min(seconds / promise.seconds, 2.0);  // one wild step tells no more
    if (!promise.drafts) {
        at.plain_seconds.add(slower);
        at.tokens.fade();
        at.seconds.fade();
        return;
    }
    at.tokens.add(tokens / promise.tokens);
    at.seconds.add(slower);
}

}  // namespace espalier::speculate
