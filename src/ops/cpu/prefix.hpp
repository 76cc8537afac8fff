// SPDX-License-Identifier: Apache-2.0
// Finds how far down the descending order of logits (ties by lower id) a filter reaches, without
// sorting: histograms narrow the range of the logit where the limit is crossed until few enough are
// left to sort.
#pragma once

#include <cstdint>

#include "ops/cpu/node_view.hpp"

namespace espalier::ops {

// A prefix of the order: larger logits, and of equal ones the ids up to last_tie.
struct Prefix {
    float least;
    std::int32_t last_tie;

    bool operator==(const Prefix&) const = default;
    // Without branches: in the middle of a distribution they are coin tosses.
    bool holds(float logit, std::int64_t token) const {
        return static_cast<bool>(
            static_cast<int>(logit > least) |
            (static_cast<int>(logit == least) & static_cast<int>(token <= last_tie)));
    }
};

Prefix everything();  // every logit above -inf
// Tokens that lie no further below the maximum than `least`, a scaled distance ≤ 0.
Prefix distance_prefix(const NodeView& node, double least);
// The first k of `within`.
Prefix top_k_prefix(const NodeView& node, const Prefix& within, std::int64_t k);
// The shortest prefix of `within` that reaches top_p of its weight; whole gets that weight.
Prefix top_p_prefix(const NodeView& node, const Prefix& within, float top_p, std::uint64_t& whole);

}  // namespace espalier::ops
