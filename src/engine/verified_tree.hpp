// SPDX-License-Identifier: Apache-2.0
// The tree that a step verified for one request, as it is told to a request that asks
// (Request::report_trees). Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/draft_origin.hpp"

namespace espalier::engine {

struct VerifiedTree {
    // [nodes], the root first; parents[0] is -1.
    std::vector<std::int32_t> tokens, parents;
    std::vector<DraftOrigin> origins;  // [nodes], the root's means nothing
    std::vector<std::int32_t> path;    // nodes that the walk visited, from the root on
};

// A reader that falls behind gets this many of the last ones, so they take little memory whatever
// it does: 8 trees of 64 nodes are 9 KB.
inline constexpr std::size_t kReportedTrees = 8;

// The last kReportedTrees of both.
inline void append_trees(std::vector<VerifiedTree>& kept, std::span<const VerifiedTree> next) {
    kept.insert(kept.end(), next.begin(), next.end());
    if (kept.size() > kReportedTrees)
        kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(kReportedTrees));
}

}  // namespace espalier::engine
