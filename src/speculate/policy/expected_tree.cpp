// SPDX-License-Identifier: Apache-2.0
#include "speculate/policy/expected_tree.hpp"

#include <algorithm>
#include <functional>

namespace espalier::speculate {

namespace {

// Even a drafter that was always right is not certain.
constexpr double kLargestSum = 0.99;
// A level that is reached less often than this decides nothing.
constexpr float kLeastReach = 0.01f;

}  // namespace

ExpectedTree::ExpectedTree(const AcceptanceTable& table, DrafterId drafter, bool coupled,
                           double bias) {
    Chances chances;
    for (std::int32_t depth = 1; depth <= kLevels; ++depth) {
        std::array<double, kRankClasses> one;
        double others = 0;
        for (std::int32_t rank = 0; rank < kRankClasses; ++rank) {
            const double chance = bias * table.expected(drafter, depth, rank, coupled);
            one[static_cast<std::size_t>(rank)] = std::min(chance, kLargestSum);
            others += rank > 0 ? chance : 0;
        }
        // Siblings exclude each other: what the first choice leaves is all there is for the others.
        // (They may never have been seen, and be a guess.)
        const double scale = std::min(1.0, (kLargestSum - one[0]) / std::max(others, 1e-9));
        auto& scaled = chances[static_cast<std::size_t>(depth - 1)];
        for (std::size_t rank = 0; rank < one.size(); ++rank)
            scaled[rank] = static_cast<float>(rank == 0 ? one[0] : one[rank] * scale);
    }
    for (std::size_t width = 0; width < kWidths.size(); ++width)
        grow(chances, kWidths[width], widths_[width]);
}

void ExpectedTree::grow(const Chances& chances, std::int32_t width, Levels& levels) {
    // At most 20 pairs (i, r) have (i + 1)(r + 1) ≤ 8.
    std::array<float, 20> best = {};
    std::array<float, kKept> parents = {1};
    std::int32_t parent_count = 1;
    float parent_sum = 1;
    for (std::int32_t depth = 0; depth < kLevels; ++depth) {
        const auto& chance = chances[static_cast<std::size_t>(depth)];
        std::size_t count = 0;
        for (std::int32_t i = 0; i < parent_count; ++i)
            for (std::int32_t rank = 0; (i + 1) * (rank + 1) <= kKept; ++rank)
                best[count++] = parents[static_cast<std::size_t>(i)] *
                                chance[static_cast<std::size_t>(std::min(rank, kRankClasses - 1))];
        const auto kept = std::min(static_cast<std::size_t>(kKept), count);
        const auto end = best.begin() + static_cast<std::ptrdiff_t>(count);
        std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept), end,
                          std::greater<>());
        Level& level = levels[static_cast<std::size_t>(depth)];
        for (std::size_t i = 0; i < kept; ++i) level.sum += best[i];
        if (level.sum < kLeastReach) {
            level = {};
            return;
        }
        // The rarest ranks share one class, so their sum may be too large by itself.
        const auto most = static_cast<float>(kLargestSum) * parent_sum;
        const float scale = most / std::max(most, level.sum);
        for (std::size_t i = 0; i < kept; ++i) level.survival[i] = scale * best[i];
        level.sum *= scale;
        level.nodes = static_cast<std::int32_t>(kept);
        parent_count = std::min(width, level.nodes);
        parents = level.survival;
        parent_sum = 0;
        for (std::int32_t i = 0; i < parent_count; ++i)
            parent_sum += parents[static_cast<std::size_t>(i)];
    }
}

}  // namespace espalier::speculate
