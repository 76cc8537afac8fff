// SPDX-License-Identifier: Apache-2.0
#include "draft/tree_growth.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.hpp"

namespace espalier::draft {
namespace {

using ops::DraftedNode;
using ops::GrowthRule;
using ops::GrowthTree;

constexpr std::size_t kHeadBytes = sizeof(ops::GrowthHead);
static_assert(kHeadBytes % alignof(GrowthTree) == 0);

// Each level before has taken a place at least.
std::int32_t most_of(const GrowthRule& rule, std::int32_t level) {
    if (level >= rule.depth) return 0;
    if (level == 0) return 1;
    return std::max(0, std::min({rule.width, rule.nodes - 1, rule.places - level}));
}

}  // namespace

Expected<TreeGrowth> TreeGrowth::create(Device& device, std::int32_t capacity) {
    const auto trees = static_cast<std::size_t>(capacity);
    ESPALIER_ASSIGN_OR_RETURN(Buffer head,
                              device.allocate(kHeadBytes + trees * sizeof(GrowthTree)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer nodes,
                              device.allocate(trees * kMaxNodes * sizeof(ops::GrowingNode)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer drafted,
                              device.allocate(trees * kMaxDrafts * sizeof(DraftedNode)));
    return TreeGrowth(device, capacity, std::move(head), std::move(nodes), std::move(drafted));
}

TreeGrowth::TreeGrowth(Device& device, std::int32_t capacity, Buffer head, Buffer nodes,
                       Buffer drafted)
    : device_(&device),
      head_(std::move(head)),
      node_memory_(std::move(nodes)),
      drafted_memory_(std::move(drafted)) {
    view_ = {.capacity = capacity,
             .head = head_.as<ops::GrowthHead>(),
             .trees = reinterpret_cast<GrowthTree*>(head_.data() + kHeadBytes),
             .nodes = node_memory_.as<ops::GrowingNode>(),
             .drafted = drafted_memory_.as<DraftedNode>()};
    const auto trees = static_cast<std::size_t>(capacity);
    trees_.reserve(trees);
    bytes_.resize(head_.bytes());
    drafted_.resize(trees * static_cast<std::size_t>(kMaxDrafts));
}

void TreeGrowth::add(GrowthRule rule) {
    CHECK(std::ssize(trees_) < view_.capacity, "more than {} trees", view_.capacity);
    rule.nodes = std::min(rule.nodes, kMaxNodes);
    rule.places = std::min(rule.places, kMaxNodes);
    if (rule.width < 1 || rule.nodes < 2 || rule.places < 1) rule.depth = 0;
    ops::GrowthState state;
    if (rule.depth < 1) state.frontier = 0;
    trees_.push_back({rule, state});
}

TreeGrowth::Size TreeGrowth::most(std::int32_t level) const {
    Size size;
    for (const GrowthTree& tree : trees_) {
        const std::int32_t nodes = most_of(tree.rule, level);
        if (nodes == 0) continue;
        size.nodes += nodes;
        size.rows += 1;
        size.longest_row = std::max(size.longest_row, nodes);
        size.longest = std::max(size.longest, tree.rule.root_position + tree.rule.places);
    }
    return size;
}

Expected<TreeGrowth::Size> TreeGrowth::next(Stream stream) {
    ESPALIER_RETURN_IF_ERROR(
        device_->download(stream, trees_.data(), view_.trees, trees_.size() * sizeof(GrowthTree)));
    Size size;
    for (const auto& [rule, state] : trees_) {
        if (state.frontier == 0) continue;
        size.nodes += state.frontier;
        size.rows += 1;
        size.longest_row = std::max(size.longest_row, state.frontier);
        size.longest = std::max(size.longest, rule.root_position + state.places);
    }
    return size;
}

Expected<void> TreeGrowth::upload(Stream stream, const ops::SamplingBatch& roots) {
    const ops::GrowthHead head{roots, std::ssize(trees_)};
    const std::size_t bytes = trees_.size() * sizeof(GrowthTree);
    std::memcpy(bytes_.data(), &head, kHeadBytes);
    std::memcpy(bytes_.data() + kHeadBytes, trees_.data(), bytes);
    return device_->upload(stream, head_.data(), bytes_.data(), kHeadBytes + bytes);
}

Expected<void> TreeGrowth::download(Stream stream, std::span<const speculate::DraftCall> calls) {
    CHECK(calls.size() == trees_.size(), "{} trees for {} calls", trees_.size(), calls.size());
    const std::size_t drafted = trees_.size() * static_cast<std::size_t>(kMaxDrafts);
    const std::array<Transfer, 2> transfers = {
        {{trees_.data(), view_.trees, trees_.size() * sizeof(GrowthTree)},
         {drafted_.data(), view_.drafted, drafted * sizeof(DraftedNode)}}};
    ESPALIER_RETURN_IF_ERROR(device_->download_all(stream, transfers));
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const DraftedNode* node = drafted_.data() + i * static_cast<std::size_t>(kMaxDrafts);
        std::array<std::int32_t, kMaxNodes> place = {};  // of a node in the proposal
        for (std::size_t n = 1; n < static_cast<std::size_t>(trees_[i].state.nodes); ++n, ++node)
            place[n] = calls[i].proposal->add(place[static_cast<std::size_t>(node->parent)],
                                              node->token, node->score);
    }
    return {};
}

Expected<void> TreeGrowth::poison(Stream stream) {
    for (Buffer* memory : {&node_memory_, &drafted_memory_})
        ESPALIER_RETURN_IF_ERROR(
            device_->fill(stream, memory->data(), std::byte{0xFF}, memory->bytes()));
    return {};
}

}  // namespace espalier::draft
