// SPDX-License-Identifier: Apache-2.0
// How the draft trees of all requests grow, level by level, in a device's memory: the next level
// needs nothing of the host.
//
// A tree's *frontier* are the nodes that the draft model runs next; at first it is the root. What
// is found below it competes with all that was found before, by the product of scores along the
// path from the root (`path`), for the rule's nodes: so a tree holds the likeliest nodes that were
// seen, a frontier's siblings too, which cost no pass.
//
// grow_trees, for every tree with a frontier:
// - A node of the frontier has the children that draft_children found for its row, at most
//   `children` of them. A child's score is its probability; where drafting is coupled, its share of
//   exp(s) among these children, which says more: s has the noise in it that the target will draw
//   with. Rounding raises no score above that of the child before it. A child's path is its
//   parent's × its score, in double.
// - The nodes kept so far, in their order, and behind them the children, by the frontier's order
//   and then by rank, are ordered by path, descending and stable; the first nodes − 1 are kept. A
//   path is at most its parent's and a parent stands before its child, so what is kept is a tree,
//   and each prefix of it.
// - The next frontier are the kept nodes of the next level, in that order, whose path is at least
//   kLeastPath: at most `width`, and no more than there are places. Each takes the next place. It
//   is empty where the level would be the rule's depth.
//
// lay_frontiers makes of all frontiers the batch that the model runs next and the draws by which
// its children are chosen: trees in their order, each a row with the tree as its tail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.hpp"
#include "ops/draft_children.hpp"
#include "ops/sampling_batch.hpp"

namespace espalier::ops {

// A node that is less likely than this, with all on its path, is not drafted below: a pass costs a
// fifth of a step, and it would bring a fiftieth of a token.
inline constexpr double kLeastPath = 0.02;

// Limits of one request's growing tree. A request without a row in the first batch has depth 0.
struct GrowthRule {
    std::int32_t depth = 0;     // levels below the root: passes
    std::int32_t width = 0;     // of a frontier
    std::int32_t nodes = 1;     // of the tree, root included, at most kMaxNodes
    std::int32_t places = 0;    // slots for draft KV from the root's on, at most kMaxNodes
    std::int32_t children = 0;  // of a node that are looked at, at most the search's width
    std::int32_t coupled = 0;   // 1: of the coupled search
    std::int32_t root_row = 0;  // of the first batch and its draws
    std::int32_t root_position = 0;
    std::int32_t root_token = 0;
    std::int32_t table_row = 0;      // of its block table
    std::int32_t banned_levels = 0;  // its bans hold for nodes of a smaller depth
};

// Extent of a grown tree; the defaults are the root alone. With depth 0 the frontier is empty.
struct GrowthState {
    std::int32_t nodes = 1;     // root included
    std::int32_t places = 1;    // that are used
    std::int32_t frontier = 1;  // nodes of it: those of the last places
    std::int32_t level = 0;     // its depth
};

struct GrowingNode {
    double path = 1;         // product of the scores from the root on
    std::uint64_t word = 1;  // places of itself and its ancestors
    std::int32_t token = 0;
    std::int32_t parent = -1;
    std::int32_t depth = 0;
    std::int32_t place = -1;  // of its draft KV behind the root's slot; -1: it has none
    std::int32_t row = -1;    // in the batch of its level
    float score = 1;          // that it is right, given that its parent is
};

// A node as it comes down; parent: in the same tree, whose root is 0.
struct DraftedNode {
    std::int32_t token = 0;
    std::int32_t parent = 0;
    float score = 0;
};

// Head of what the host uploads in one piece; behind it `trees` GrowthTrees.
struct GrowthHead {
    SamplingBatch roots;     // the draws of the first batch
    std::int64_t trees = 0;  // there are
};
struct GrowthTree {
    GrowthRule rule;
    GrowthState state;
};

// All of it in memory of the device.
struct DraftGrowth {
    std::int32_t capacity = 0;  // of trees
    const GrowthHead* head = nullptr;
    GrowthTree* trees = nullptr;     // [capacity]
    GrowingNode* nodes = nullptr;    // [capacity, kMaxNodes], the root first
    DraftedNode* drafted = nullptr;  // [capacity, kMaxDrafts]: a tree's nodes without the root
};

// Children that draft_children found for the last batch, [rows, width] each; null: not searched.
struct FoundChildren {
    const DraftChild* plain = nullptr;
    const DraftChild* coupled = nullptr;
    std::int32_t width = 0;
};

// Arrays of a batch (batch/batch_view.hpp) in the device's memory, into which frontiers are laid;
// pads as defined there.
struct FrontierBatch {
    std::int64_t capacity = 0;           // tokens
    std::int64_t rows = 0;               // capacity
    std::int32_t* tokens = nullptr;      // [capacity]
    std::int32_t* position = nullptr;    // [capacity]
    std::int64_t* slot = nullptr;        // [capacity]
    std::int32_t* row_of = nullptr;      // [capacity]
    std::uint64_t* words = nullptr;      // [capacity]
    std::int32_t* parent_row = nullptr;  // [capacity] of the last batch; -1: pad
    std::int32_t* q_indptr = nullptr;    // [rows + 1]
    std::int32_t* kv_len = nullptr;      // [rows]
    std::int32_t* tail_len = nullptr;    // [rows]
    std::int32_t* table_row = nullptr;   // [rows]
    std::uint8_t* mask = nullptr;        // [rows] one of the next two
    std::uint8_t tree_mask = 0, pad_mask = 0;
    const std::int32_t* block_tables = nullptr;  // [.., block_stride]
    std::int64_t block_stride = 0;
    std::int64_t page_tokens = 0;
};

// The draws of that batch. `batch` has arrays of its own and shares the memory of the first batch's
// lists. Token counts along the path of node g are written at word changed + g · kMaxDrafts · 3 of
// the lists.
struct FrontierDraws {
    SamplingBatch batch;
    std::uint32_t changed = 0;
};

// The definitions in plain loops on the host, which all CPU backends run.
void grow_trees(const DraftGrowth& growth, const FoundChildren& found);
void lay_frontiers(const DraftGrowth& growth, const FrontierBatch& batch,
                   const FrontierDraws& draws);

}  // namespace espalier::ops
