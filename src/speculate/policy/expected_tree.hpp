// SPDX-License-Identifier: Apache-2.0
// The tree that a drafter can be expected to grow, before it is asked: its nodes' survival by
// level, for a few widths, from what was measured of the drafter (AcceptanceTable::expected) and of
// the request (RequestBias). Pure; made by DraftPlanner.
//
// A drafter goes on from the best `width` nodes of a level; their siblings cost it nothing, so of
// each level the best kKept are expected. Survival is a product along a path, so of the children of
// nodes with survivals s_0 ≥ s_1 ≥ …, by rank with chances p_0 ≥ p_1 ≥ …, the best n have
// (i + 1)(r + 1) ≤ n: for any other there are as many that are no worse.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "speculate/policy/acceptance.hpp"

namespace espalier::speculate {

class ExpectedTree {
  public:
    // Twice as wide each time: acceptance falls off fast with rank.
    static constexpr std::array<std::int32_t, 4> kWidths = {1, 2, 4, 8};
    static constexpr std::int32_t kKept = 8;
    // Deeper places share one class of the table, and no text was right so far for long.
    static constexpr std::int32_t kLevels = kDepthClasses;

    ExpectedTree() = default;
    ExpectedTree(const AcceptanceTable& table, DrafterId drafter, bool coupled, double bias);

    // The survivals of a level's nodes, not increasing. level ≥ 1; empty beyond levels().
    std::span<const float> level(std::size_t width, std::int32_t level) const {
        const Level& one = widths_[width][static_cast<std::size_t>(level - 1)];
        return {one.survival.data(), static_cast<std::size_t>(one.nodes)};
    }
    // Their sum: the chance that a draft is accepted so deep.
    float reach(std::size_t width, std::int32_t level) const {
        return widths_[width][static_cast<std::size_t>(level - 1)].sum;
    }

  private:
    struct Level {
        std::array<float, kKept> survival = {};
        std::int32_t nodes = 0;
        float sum = 0;
    };
    using Levels = std::array<Level, kLevels>;
    using Chances = std::array<std::array<float, kRankClasses>, kLevels>;
    static void grow(const Chances& chances, std::int32_t width, Levels& levels);

    std::array<Levels, kWidths.size()> widths_;
};

}  // namespace espalier::speculate
