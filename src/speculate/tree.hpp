// SPDX-License-Identifier: Apache-2.0
// A draft tree: at most 64 nodes in a fixed place, so that trees are made and thrown away in the
// step loop without touching the heap. Node 0 is the root: the last committed token, whose KV is
// not written yet. Pure; used by drafters, merging, the batch builder and the walk.
//
// Invariants, held by construction: parent[i] < i (so slots, which go by index, list ancestors
// before descendants); no two children of a node share a token (so a drawn token names at most one
// child).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "base/limits.hpp"

namespace espalier::speculate {

constexpr std::int32_t kNoNode = -1;

class Tree {
  public:
    explicit Tree(TokenId root) { reset(root); }
    // The first `nodes` nodes of the other. Always connected, because parents come first.
    Tree(const Tree& other, std::int32_t nodes);
    // Memory behind the last node is not copied: most trees are small, and a step copies
    // hundreds.
    Tree(const Tree& other) { *this = other; }
    Tree& operator=(const Tree& other) { return assign(other, other.size_); }

    // A root alone.
    void reset(TokenId root);

    // A tree that came from outside (a trace, a request, a test): parents[0] must be -1. An error
    // names the node and the two numbers that contradict each other.
    static Expected<Tree> from(std::span<const TokenId> tokens,
                               std::span<const std::int32_t> parents, std::int64_t vocabulary);

    std::int32_t size() const { return size_; }
    bool full() const { return size_ == kMaxNodes; }

    // All of length size().
    std::span<const TokenId> tokens() const { return view(tokens_); }
    std::span<const std::int32_t> parents() const { return view(parents_); }
    std::span<const std::int32_t> depths() const { return view(depths_); }
    // Bit j of words()[i] is set when j is i itself or an ancestor of i.
    std::span<const std::uint64_t> words() const { return view(words_); }

    TokenId token(std::int32_t node) const;
    std::int32_t parent(std::int32_t node) const;
    std::int32_t depth(std::int32_t node) const;

    // The child of `node` with this token, or kNoNode.
    std::int32_t child(std::int32_t node, TokenId token) const;

    // The child of `parent` with this token, added if it is not there yet. A full tree may only be
    // asked for children it has (programmer error otherwise).
    std::int32_t add(std::int32_t parent, TokenId token);
    // add() for a child that the caller knows is not there.
    std::int32_t add_new(std::int32_t parent, TokenId token);

    // Every node's parent is the node before it: the row's mask is causal and needs no words.
    bool is_chain() const;

  private:
    Tree& assign(const Tree& other, std::int32_t nodes);

    template <typename T>
    std::span<const T> view(const std::array<T, kMaxNodes>& values) const {
        return {values.data(), static_cast<std::size_t>(size_)};
    }

    std::int32_t size_ = 1;
    std::array<TokenId, kMaxNodes> tokens_;
    std::array<std::int32_t, kMaxNodes> parents_;
    std::array<std::int32_t, kMaxNodes> depths_;
    std::array<std::uint64_t, kMaxNodes> words_;
};

}  // namespace espalier::speculate
