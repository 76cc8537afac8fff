// SPDX-License-Identifier: Apache-2.0
#include "speculate/draft_time.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace espalier::speculate {

void DraftTime::observe(std::int32_t levels, std::int64_t tokens, double seconds) {
    CHECK(levels >= 1 && tokens >= 1, "{} tokens in {} levels", tokens, levels);
    if (!std::isfinite(seconds) || seconds <= 0) return;
    const auto level_count = static_cast<double>(levels), token_count = static_cast<double>(tokens);
    if (++calls_ == 1) {  // half for each, until other shapes tell them apart
        per_level_ = seconds / 2 / level_count;
        per_token_ = seconds / 2 / token_count;
        return;
    }
    const double predicted = this->seconds(levels, tokens);
    // The first calls find memory cold and a prompt's tokens waiting: the cheapest of them counts.
    if (constexpr std::int64_t kCold = 4; calls_ <= kCold && seconds < predicted) {
        per_level_ *= seconds / predicted;
        per_token_ *= seconds / predicted;
        return;
    }
    const double rate = std::max(0.1, 1 / static_cast<double>(calls_));
    const double step = rate * std::clamp(seconds / predicted - 1, -1.0, 1.0);
    const double of_levels = level_count * per_level_ / predicted;
    per_level_ *= 1 + step * of_levels;
    per_token_ *= 1 + step * (1 - of_levels);
}

}  // namespace espalier::speculate
