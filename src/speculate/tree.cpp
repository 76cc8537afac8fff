// SPDX-License-Identifier: Apache-2.0
// Tree: building, lookup and the validation of trees from outside.
#include "speculate/tree.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

std::size_t slot(std::int32_t node) { return static_cast<std::size_t>(node); }

}  // namespace

void Tree::reset(TokenId root) {
    size_ = 1;
    tokens_[0] = root;
    parents_[0] = kNoNode;
    depths_[0] = 0;
    words_[0] = 1;
}

Tree& Tree::assign(const Tree& other, std::int32_t nodes) {
    if (this == &other) return *this;
    size_ = nodes;
    for (std::size_t i = 0; i < slot(nodes); ++i) {
        tokens_[i] = other.tokens_[i];
        parents_[i] = other.parents_[i];
        depths_[i] = other.depths_[i];
        words_[i] = other.words_[i];
    }
    return *this;
}

Tree::Tree(const Tree& other, std::int32_t nodes) {
    CHECK(nodes >= 1 && nodes <= other.size_, "the first {} of {} nodes", nodes, other.size_);
    assign(other, nodes);
}

Expected<Tree> Tree::from(std::span<const TokenId> tokens, std::span<const std::int32_t> parents,
                          std::int64_t vocabulary) {
    if (tokens.size() != parents.size())
        return fail(ErrorKind::invalid, "tree: {} tokens but {} parents", tokens.size(),
                    parents.size());
    if (tokens.empty()) return fail(ErrorKind::invalid, "tree: 0 nodes, but a root is needed");
    if (tokens.size() > slot(kMaxNodes))
        return fail(ErrorKind::invalid, "tree: {} nodes, at most {} fit a word", tokens.size(),
                    kMaxNodes);
    if (parents[0] != kNoNode)
        return fail(ErrorKind::invalid, "tree: the root's parent is {}, not {}", parents[0],
                    kNoNode);
    for (std::size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] < 0 || tokens[i] >= vocabulary)
            return fail(ErrorKind::invalid, "tree: node {} has token {} of a vocabulary of {}", i,
                        tokens[i], vocabulary);
    Tree tree(tokens[0]);
    for (std::size_t i = 1; i < tokens.size(); ++i) {
        const auto node = static_cast<std::int32_t>(i);
        if (parents[i] < 0 || parents[i] >= node)
            return fail(ErrorKind::invalid,
                        "tree: node {} has parent {}, which is not a node before it", node,
                        parents[i]);
        if (const std::int32_t twin = tree.child(parents[i], tokens[i]); twin != kNoNode)
            return fail(ErrorKind::invalid, "tree: nodes {} and {} are both child {} of node {}",
                        twin, node, tokens[i], parents[i]);
        tree.add(parents[i], tokens[i]);
    }
    return tree;
}

TokenId Tree::token(std::int32_t node) const {
    CHECK(node >= 0 && node < size_, "node {} of {}", node, size_);
    return tokens_[slot(node)];
}

std::int32_t Tree::parent(std::int32_t node) const {
    CHECK(node >= 0 && node < size_, "node {} of {}", node, size_);
    return parents_[slot(node)];
}

std::int32_t Tree::depth(std::int32_t node) const {
    CHECK(node >= 0 && node < size_, "node {} of {}", node, size_);
    return depths_[slot(node)];
}

// A scan of at most 63 pairs beats any index that would have to be kept beside them.
std::int32_t Tree::child(std::int32_t node, TokenId token) const {
    CHECK(node >= 0 && node < size_, "node {} of {}", node, size_);
    for (std::int32_t i = node + 1; i < size_; ++i)
        if (parents_[slot(i)] == node && tokens_[slot(i)] == token) return i;
    return kNoNode;
}

std::int32_t Tree::add(std::int32_t parent, TokenId token) {
    const std::int32_t existing = child(parent, token);
    return existing != kNoNode ? existing : add_new(parent, token);
}

std::int32_t Tree::add_new(std::int32_t parent, TokenId token) {
    CHECK(!full(), "a tree of {} nodes is full", size_);
    CHECK(parent >= 0 && parent < size_, "node {} of {}", parent, size_);
    const std::int32_t node = size_++;
    tokens_[slot(node)] = token;
    parents_[slot(node)] = parent;
    depths_[slot(node)] = depths_[slot(parent)] + 1;
    words_[slot(node)] = words_[slot(parent)] | 1ull << node;
    return node;
}

bool Tree::is_chain() const {
    // Each parent is below its node, so the last node is as deep as it can be only in a chain.
    return depths_[slot(size_ - 1)] == size_ - 1;
}

}  // namespace espalier::speculate
