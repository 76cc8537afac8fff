// SPDX-License-Identifier: Apache-2.0
// The definition in ops/draft_growth.hpp with a list of all candidates and a stable sort.
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "base/portable_math.hpp"
#include "ops/draft_growth.hpp"

namespace espalier::ops {
namespace {

constexpr std::int64_t kCountWords = sizeof(TokenCount) / sizeof(std::uint32_t);

std::span<GrowingNode> nodes_of(const DraftGrowth& growth, std::int32_t tree) {
    return {growth.nodes + std::int64_t{tree} * kMaxNodes,
            static_cast<std::size_t>(growth.trees[tree].state.nodes)};
}

// The frontier's nodes in the order of their places.
std::vector<std::int32_t> frontier_of(const DraftGrowth& growth, std::int32_t tree) {
    const GrowthState& state = growth.trees[tree].state;
    std::vector<std::int32_t> frontier(static_cast<std::size_t>(state.frontier));
    const std::span<const GrowingNode> nodes = nodes_of(growth, tree);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const std::int32_t place = nodes[i].place - (state.places - state.frontier);
        if (place >= 0) frontier[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(i);
    }
    return frontier;
}

GrowingNode root_of(const GrowthRule& rule) {
    GrowingNode root;
    root.token = rule.root_token;
    root.place = 0;
    root.row = rule.root_row;
    return root;
}

// Children found below a node, with their scores.
void add_children(std::span<const DraftChild> found, bool coupled, const GrowingNode& parent,
                  std::int32_t index, std::vector<GrowingNode>& candidates) {
    const auto none = std::find_if(found.begin(), found.end(),
                                   [](const DraftChild& child) { return child.token < 0; });
    found = found.first(static_cast<std::size_t>(none - found.begin()));
    double total = 0;
    for (const DraftChild& child : found)
        total += coupled ? portable_exp(child.score - found.front().score) : 0.0;
    float least = 1.0f;
    for (const DraftChild& child : found) {
        const float score =
            coupled ? static_cast<float>(portable_exp(child.score - found.front().score) / total)
                    : child.probability;
        least = std::min(least, score);
        GrowingNode node;
        node.token = child.token;
        node.parent = index;
        node.depth = parent.depth + 1;
        node.score = least;
        node.path = parent.path * static_cast<double>(least);
        candidates.push_back(node);
    }
}

// The likeliest of the candidates, whose parents are the kept nodes' old places.
void keep_likeliest(std::vector<GrowingNode>& candidates, std::int32_t most,
                    std::span<GrowingNode> nodes) {
    std::vector<std::size_t> order(candidates.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return candidates[a].path > candidates[b].path;
    });
    order.resize(std::min(order.size(), static_cast<std::size_t>(most)));
    std::array<std::int32_t, kMaxNodes> now;  // by the place before
    now.fill(-1);
    now[0] = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::size_t before = order[i] + 1;  // the root is no candidate
        if (before < now.size()) now[before] = static_cast<std::int32_t>(i) + 1;
        GrowingNode& node = nodes[i + 1] = candidates[order[i]];
        node.parent = now[static_cast<std::size_t>(node.parent)];
        CHECK(node.parent >= 0, "a node is kept without its parent");
    }
}

void choose_frontier(const GrowthRule& rule, GrowthState& state, std::span<GrowingNode> nodes) {
    state.frontier = 0;
    if (++state.level >= rule.depth) return;
    for (GrowingNode& node : nodes) {
        if (node.depth != state.level || !(node.path >= kLeastPath)) continue;
        if (state.frontier >= rule.width || state.places >= rule.places) return;
        node.place = state.places++;
        node.word = nodes[static_cast<std::size_t>(node.parent)].word | std::uint64_t{1}
                                                                            << node.place;
        ++state.frontier;
    }
}

void grow(const DraftGrowth& growth, const FoundChildren& found, std::int32_t tree,
          std::vector<GrowingNode>& candidates) {
    const GrowthRule& rule = growth.trees[tree].rule;
    GrowthState& state = growth.trees[tree].state;
    if (state.frontier == 0) return;
    if (state.level == 0) growth.nodes[std::int64_t{tree} * kMaxNodes] = root_of(rule);
    const std::span<GrowingNode> before = nodes_of(growth, tree);
    candidates.assign(before.begin() + 1, before.end());
    for (const std::int32_t index : frontier_of(growth, tree)) {
        const GrowingNode& node = before[static_cast<std::size_t>(index)];
        const DraftChild* children = rule.coupled != 0 ? found.coupled : found.plain;
        add_children({children + std::int64_t{node.row} * found.width,
                      static_cast<std::size_t>(rule.children)},
                     rule.coupled != 0, node, index, candidates);
    }
    const std::int32_t most = rule.nodes - 1;
    keep_likeliest(candidates, most, {before.data(), static_cast<std::size_t>(kMaxNodes)});
    state.nodes = 1 + std::min(static_cast<std::int32_t>(candidates.size()), most);
    choose_frontier(rule, state, nodes_of(growth, tree));
    const std::span<const GrowingNode> kept = nodes_of(growth, tree).subspan(1);
    DraftedNode* drafted = growth.drafted + std::int64_t{tree} * kMaxDrafts;
    for (const GrowingNode& node : kept) *drafted++ = {node.token, node.parent, node.score};
}

// Counts of the tokens on a node's path, as accept::TokenCounts has them.
ListRange lay_counts(std::span<const GrowingNode> nodes, const GrowingNode& node,
                     std::span<const TokenCount> committed, const FrontierDraws& draws,
                     std::int64_t g) {
    const auto first = draws.changed + static_cast<std::uint32_t>(g * kMaxDrafts * kCountWords);
    auto* const entries = reinterpret_cast<TokenCount*>(draws.batch.lists + first);
    TokenCount* end = entries;
    for (const GrowingNode* at = &node; at->parent >= 0;
         at = &nodes[static_cast<std::size_t>(at->parent)]) {
        const auto is_it = [&](const TokenCount& count) { return count.token == at->token; };
        TokenCount* const entry = std::find_if(entries, end, is_it);
        if (entry == end) {
            const auto before = std::find_if(committed.begin(), committed.end(), is_it);
            *end++ = before == committed.end() ? TokenCount{.token = at->token} : *before;
        }
        ++entry->in_output;
    }
    return {first, static_cast<std::uint32_t>(end - entries)};
}

void lay_draw(const DraftGrowth& growth, std::int32_t tree, const GrowingNode& node,
              const FrontierDraws& draws, std::int64_t g) {
    const GrowthRule& rule = growth.trees[tree].rule;
    const SamplingBatch &from = growth.head->roots, &to = draws.batch;
    const std::int32_t root = rule.root_row;
    const auto lists = static_cast<std::uint32_t>(from.lists - to.lists);
    const auto moved = [&](ListRange range) { return ListRange{range.first + lists, range.count}; };
    to.parameters[g] = from.parameters[root];
    to.position[g] = rule.root_position + 1 + node.depth;
    to.choice[g] = from.choice[root];
    to.wanted[g] = kDraw;
    to.logprob[g] = 0;
    to.biases[g] = moved(from.biases[root]);
    to.banned[g] = node.depth < rule.banned_levels ? moved(from.banned[root]) : ListRange{};
    to.committed[g] = from.committed[root];
    to.allowed[g] = -1;
    to.reported[g] = {};
    to.changed[g] = {};
    const ListRange committed = from.committed[root];
    if (from.parameters[root].penalises())
        to.changed[g] = lay_counts(nodes_of(growth, tree), node,
                                   {from.counts + committed.first, committed.count}, draws, g);
}

void lay_node(const GrowthRule& rule, std::span<const GrowingNode> nodes, const GrowingNode& node,
              const FrontierBatch& batch, std::int32_t row, std::int64_t g) {
    const std::int64_t place = rule.root_position + node.place;
    const std::int64_t page =
        batch.block_tables[rule.table_row * batch.block_stride + place / batch.page_tokens];
    batch.tokens[g] = node.token;
    batch.position[g] = rule.root_position + node.depth;
    batch.slot[g] = page * batch.page_tokens + place % batch.page_tokens;
    batch.row_of[g] = row;
    batch.words[g] = node.word;
    batch.parent_row[g] = nodes[static_cast<std::size_t>(node.parent)].row;
}

void pad(const FrontierBatch& batch, const FrontierDraws& draws, std::int32_t row, std::int64_t g) {
    std::fill(batch.q_indptr + row, batch.q_indptr + batch.rows + 1, static_cast<std::int32_t>(g));
    std::fill(batch.kv_len + row, batch.kv_len + batch.rows, 0);
    std::fill(batch.tail_len + row, batch.tail_len + batch.rows, 0);
    std::fill(batch.table_row + row, batch.table_row + batch.rows, 0);
    std::fill(batch.mask + row, batch.mask + batch.rows, batch.pad_mask);
    for (; g < batch.capacity; ++g) {
        batch.tokens[g] = batch.position[g] = 0;
        batch.slot[g] = batch.row_of[g] = batch.parent_row[g] = -1;
        batch.words[g] = 0;
        const SamplingBatch& to = draws.batch;
        to.parameters[g] = {};
        to.position[g] = to.choice[g] = 0;
        to.wanted[g] = kPad;
        to.logprob[g] = 0;
        to.biases[g] = to.banned[g] = to.committed[g] = to.changed[g] = to.reported[g] = {};
        to.allowed[g] = -1;
    }
}

}  // namespace

void grow_trees(const DraftGrowth& growth, const FoundChildren& found) {
    std::vector<GrowingNode> candidates;
    for (std::int32_t tree = 0; tree < growth.head->trees; ++tree)
        grow(growth, found, tree, candidates);
}

void lay_frontiers(const DraftGrowth& growth, const FrontierBatch& batch,
                   const FrontierDraws& draws) {
    std::int64_t g = 0;
    std::int32_t row = 0;
    for (std::int32_t tree = 0; tree < growth.head->trees; ++tree) {
        const GrowthState& state = growth.trees[tree].state;
        if (state.frontier == 0) continue;
        const GrowthRule& rule = growth.trees[tree].rule;
        CHECK(row < batch.rows && g + state.frontier <= batch.capacity,
              "frontiers of more than {} rows or {} nodes", batch.rows, batch.capacity);
        batch.q_indptr[row] = static_cast<std::int32_t>(g);
        batch.kv_len[row] = rule.root_position + state.places;
        batch.tail_len[row] = state.places;
        batch.table_row[row] = rule.table_row;
        batch.mask[row] = batch.tree_mask;
        const std::span<GrowingNode> nodes = nodes_of(growth, tree);
        for (const std::int32_t index : frontier_of(growth, tree)) {
            GrowingNode& node = nodes[static_cast<std::size_t>(index)];
            lay_node(rule, nodes, node, batch, row, g);
            lay_draw(growth, tree, node, draws, g);
            node.row = static_cast<std::int32_t>(g++);
        }
        ++row;
    }
    pad(batch, draws, row, g);
    draws.batch.updates[0] = {};
}

}  // namespace espalier::ops
