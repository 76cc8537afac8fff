// SPDX-License-Identifier: Apache-2.0
// Merges the proposals of several drafters into one tree and ranks its nodes by measured
// acceptance. Pure. One Candidates per request lives from proposal to walk: what was proposed but
// not verified is still compared with what the target drew, so a small budget does not blind the
// ranking.
//
// survival(node) = the chance that the node is accepted = product of the conditional estimates
// along its path, so it never exceeds its parent's. Hence the nodes sorted by survival, parents
// first among equals, are a tree in each prefix, and the first n are the n-node connected subtree
// with the largest sum of survival: any n nodes sum to at most the n largest values. So pruning is
// cutting, and the scheduler grants a plain number of nodes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "speculate/drafter.hpp"
#include "speculate/policy/acceptance.hpp"
#include "speculate/tree.hpp"

namespace espalier::speculate {

// The first `tree.size()` entries count. survival[0] = 1; survival does not increase with the
// index.
struct RankedTree {
    explicit RankedTree(TokenId root) : tree(root) { reset(root); }
    // A tree of the root alone.
    void reset(TokenId root) {
        tree.reset(root);
        survival[0] = 1;
        origins[0] = {};
    }

    // The drafts' survival in order, by which nodes are granted.
    std::span<const double> drafts() const {
        return {survival.data() + 1, static_cast<std::size_t>(tree.size() - 1)};
    }

    Tree tree;
    std::array<double, kMaxNodes> survival;
    std::array<DraftOrigin, kMaxNodes> origins;  // the root's: all who proposed
};

// At most `width` nodes of each level, the first in the proposal's own order: a chain for width 1.
Proposal narrowed(const Proposal& proposal, std::int32_t width);

// Nodes of all proposals for one request: the root, and 63 drafts of each drafter.
inline constexpr std::size_t kMaxCandidates = kMaxDrafters * (kMaxNodes - 1) + 1;

class Candidates {
  public:
    explicit Candidates(TokenId root = 0) { reset(root); }

    // Forgets everything; keeps its memory (at most kMaxDrafters · 63 + 1 nodes).
    void reset(TokenId root);

    // Adds a proposal: the same path is one node, whichever drafter proposed it. Refused whole,
    // with this left as it was, when its root is another token, a token lies outside the
    // vocabulary, or the drafter has already proposed.
    Expected<void> add(const Proposal& proposal, std::int64_t vocabulary);

    // The best `max_nodes` nodes (root included).
    void rank(const AcceptanceTable& table, const RequestBias& bias, std::int32_t max_nodes,
              RankedTree& ranked) const;
    RankedTree rank(const AcceptanceTable& table, const RequestBias& bias,
                    std::int32_t max_nodes) const {
        RankedTree ranked(nodes_[0].token);
        rank(table, bias, max_nodes, ranked);
        return ranked;
    }

    // Compares the candidates with what the target drew below the root, the accepted tokens and the
    // one after them: each child of a node on that path was right or wrong, other nodes say
    // nothing. Ends with the draws, so a stop string or token limit counts against no node.
    void compare(std::span<const TokenId> drawn, std::vector<Comparison>& comparisons) const;

    std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }

  private:
    struct Node {
        TokenId token = 0;
        std::int32_t parent = kNoNode;
        std::int32_t depth = 0;
        std::int32_t first_child = kNoNode, last_child = kNoNode, next_sibling = kNoNode;
        std::uint8_t sources = 0;
        // Valid where sources has the bit.
        std::array<Place, kMaxDrafters> places = {};
        std::array<std::uint8_t, kMaxDrafters> ranks = {};  // the places' own stop at a class
    };

    std::int32_t find_or_add(std::int32_t parent, TokenId token);
    Expected<void> check(const Proposal& proposal, std::int64_t vocabulary) const;
    std::int32_t child(std::int32_t parent, TokenId token) const;
    // The chance that the node is accepted given its parent, and whose estimate that is.
    struct Estimate {
        double chance = 0;
        DrafterId drafter = 0;
    };
    static Estimate conditional(const Node& node, const AcceptanceTable& table,
                                const RequestBias& bias);

    std::vector<Node> nodes_;  // parents before children
};

}  // namespace espalier::speculate
