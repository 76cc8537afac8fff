// SPDX-License-Identifier: Apache-2.0
// One request's draft tree while it grows. A level's *frontier* are the nodes that the draft model
// runs next; the children it finds compete with all that were found before, by the product of
// scores along their paths, for the shape's nodes. So a tree holds the likeliest nodes that were
// seen: a frontier's siblings too, which cost no pass. Pure; used by ModelDrafter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculate/drafter.hpp"

namespace espalier::draft {

class Growth {
  public:
    // A node that is less likely than this, with all on its path, is not drafted below: a pass
    // costs a fifth of a step, and it would bring a fiftieth of a token.
    static constexpr double kLeastPath = 0.02;

    struct Node {
        TokenId token = 0;
        std::int32_t parent = speculate::kNoNode;
        std::int32_t depth = 0;
        float score = 1;          // that it is right, given that its parent is
        double path = 1;          // product of the scores from the root on
        std::int32_t place = -1;  // among the nodes that have draft KV: its slot behind the root's
        std::int32_t row = -1;    // in the batch of its level
        std::uint64_t word = 0;   // places of itself and its ancestors
    };
    struct Child {
        TokenId token = 0;
        float score = 0;
    };

    // places: slots for draft KV from the root's on. width: at most so many in a frontier.
    void start(TokenId root, const speculate::DraftShape& shape, std::int32_t places,
               std::int32_t width);
    // The nodes to run, in the order of their places; empty: it is done.
    std::span<const std::int32_t> frontier() const { return frontier_; }
    Node& node(std::int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }
    const Node& node(std::int32_t index) const { return nodes_[static_cast<std::size_t>(index)]; }
    std::int32_t places_used() const { return used_; }
    // Tokens from depth 1 to the node, into out, which has room for its depth.
    std::span<const TokenId> path(std::int32_t index, std::span<TokenId> out) const;

    // What the model found below a node of the frontier: scores not increasing.
    void add_children(std::int32_t parent, std::span<const Child> children);
    // After the children of the whole frontier: the next one.
    void next_level();
    // The kept nodes, likeliest first, into a proposal that holds the root.
    void finish(speculate::Proposal& proposal);

  private:
    speculate::DraftShape shape_;
    std::int32_t places_ = 0;
    std::int32_t width_ = 0;
    std::int32_t used_ = 0;           // places
    std::int32_t depth_ = 0;          // of the frontier
    std::vector<Node> nodes_;         // node 0 is the root
    std::vector<std::int32_t> kept_;  // likeliest first, the root left out
    std::vector<std::int32_t> frontier_;
    std::vector<std::int32_t> tree_node_;  // by node, in finish()
};

}  // namespace espalier::draft
