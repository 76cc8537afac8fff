// SPDX-License-Identifier: Apache-2.0
#include "draft/growth.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::draft {

void Growth::start(TokenId root, const speculate::DraftShape& shape, std::int32_t places,
                   std::int32_t width) {
    shape_ = shape;
    places_ = std::min(places, kMaxNodes);
    width_ = std::min(shape.width, width);
    nodes_.clear();
    kept_.clear();
    frontier_.clear();
    depth_ = 0;
    used_ = 0;
    nodes_.push_back({.token = root, .place = 0, .word = 1});
    if (shape.depth < 1 || shape.width < 1 || shape.nodes < 2 || places_ < 1) return;
    frontier_.push_back(0);
    used_ = 1;
}

std::span<const TokenId> Growth::path(std::int32_t index, std::span<TokenId> out) const {
    const auto depth = static_cast<std::size_t>(node(index).depth);
    CHECK(depth <= out.size(), "a path of {} tokens, room for {}", depth, out.size());
    for (std::size_t i = depth; i > 0; --i) {
        out[i - 1] = node(index).token;
        index = node(index).parent;
    }
    return out.first(depth);
}

void Growth::add_children(std::int32_t parent, std::span<const Child> children) {
    for (const Child& child : children) {
        const Node above = node(parent);
        nodes_.push_back({.token = child.token,
                          .parent = parent,
                          .depth = above.depth + 1,
                          .score = child.score,
                          .path = above.path * static_cast<double>(child.score)});
        kept_.push_back(static_cast<std::int32_t>(nodes_.size()) - 1);
    }
}

void Growth::next_level() {
    // A node's path is at most its parent's, and among equals the parent comes first: each prefix
    // of this order is a tree.
    std::sort(kept_.begin(), kept_.end(), [this](std::int32_t a, std::int32_t b) {
        const Node &left = node(a), &right = node(b);
        if (left.path != right.path) return left.path > right.path;
        return left.depth != right.depth ? left.depth < right.depth : a < b;
    });
    kept_.resize(std::min(kept_.size(), static_cast<std::size_t>(shape_.nodes - 1)));
    frontier_.clear();
    if (++depth_ >= shape_.depth) return;
    for (const std::int32_t index : kept_) {
        Node& one = node(index);
        if (one.depth != depth_ || one.path < kLeastPath) continue;
        if (std::ssize(frontier_) >= width_ || used_ >= places_) return;
        one.place = used_++;
        one.word = node(one.parent).word | std::uint64_t{1} << one.place;
        frontier_.push_back(index);
    }
}

void Growth::finish(speculate::Proposal& proposal) {
    tree_node_.assign(nodes_.size(), speculate::kNoNode);
    tree_node_[0] = 0;
    for (const std::int32_t index : kept_) {
        const Node& one = node(index);
        const std::int32_t parent = tree_node_[static_cast<std::size_t>(one.parent)];
        CHECK(parent != speculate::kNoNode, "node {} is kept without its parent", index);
        tree_node_[static_cast<std::size_t>(index)] = proposal.add(parent, one.token, one.score);
    }
}

}  // namespace espalier::draft
