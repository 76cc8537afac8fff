// SPDX-License-Identifier: Apache-2.0
#include "accept/walk.hpp"

#include "base/at.hpp"
#include "base/check.hpp"

namespace espalier::accept {
namespace {

void check_shapes(const TreeView& tree, const NodeDraws& draws, std::size_t top_logprobs) {
    const std::size_t nodes = tree.parents.size();
    CHECK(nodes >= 1 && nodes <= kMaxNodes, "a tree of {} nodes, not within 1…{}", nodes,
          kMaxNodes);
    CHECK(tree.tokens.size() == nodes && draws.draws.size() == nodes,
          "{} nodes, but {} tokens and {} draws", nodes, tree.tokens.size(), draws.draws.size());
    CHECK(tree.origins.empty() || tree.origins.size() == nodes, "{} nodes, but {} origins", nodes,
          tree.origins.size());
    CHECK(draws.top.size() == nodes * top_logprobs, "{} alternatives for {} nodes, not {} each",
          draws.top.size(), nodes, top_logprobs);
}

// Why nothing can be drawn at the node, if so.
std::optional<FinishReason> failure_at(const NodeDraws& draws, std::int32_t node) {
    if (draws.flagged_nodes >> node & 1) return FinishReason::bad_numbers;
    switch (at(draws.draws, node).flag) {
        case ops::DrawFlag::fine:
            return std::nullopt;
        case ops::DrawFlag::nothing_left:
            return FinishReason::nothing_left;
        case ops::DrawFlag::bad_logits:
            break;
    }
    return FinishReason::bad_numbers;
}

}  // namespace

std::int32_t TreeView::child_with(std::int32_t node, std::int32_t token) const {
    for (auto i = static_cast<std::size_t>(node) + 1; i < parents.size(); ++i)
        if (parents[i] == node && tokens[i] == token) return static_cast<std::int32_t>(i);
    return -1;
}

NodeList path_tokens(const TreeView& tree, std::int32_t node) {
    CHECK(node >= 0 && node < tree.nodes() && tree.nodes() <= kMaxNodes, "node {} of {}", node,
          tree.nodes());
    NodeList upwards;
    while (node > 0) {
        const auto at = static_cast<std::size_t>(node);
        upwards.push_back(tree.tokens[at]);
        CHECK(tree.parents[at] < node, "node {} before its parent {}", node, tree.parents[at]);
        node = tree.parents[at];
    }
    NodeList path;
    const std::span<const std::int32_t> tokens = upwards.values();
    for (std::size_t i = tokens.size(); i-- > 0;) path.push_back(tokens[i]);
    return path;
}

NodeList drawn_path(const TreeView& tree, const NodeDraws& draws) {
    NodeList path;
    for (std::int32_t node = 0; node >= 0;) {
        path.push_back(node);
        if (failure_at(draws, node)) break;
        node = tree.child_with(node, draws.draws[static_cast<std::size_t>(node)].token);
    }
    return path;
}

WalkResult walk(const TreeView& tree, const NodeDraws& draws, RequestProgress& progress,
                Emission& out) {
    const auto top_logprobs = static_cast<std::size_t>(progress.rules().options().top_logprobs);
    check_shapes(tree, draws, top_logprobs);
    WalkResult result;
    const NodeList drawn = drawn_path(tree, draws);
    const std::span<const std::int32_t> path = drawn.values();
    for (std::size_t i = 0; i < path.size(); ++i) {
        const std::int32_t node = path[i];
        result.path.push_back(node);
        if (const auto failure = failure_at(draws, node)) {
            result.finish = progress.end(*failure, out);
            break;
        }
        const auto at = static_cast<std::size_t>(node);
        const ops::Draw& draw = draws.draws[at];
        result.tokens.push_back(draw.token);
        const DraftOrigin origin = i + 1 < path.size() ? tree.origin(path[i + 1]) : DraftOrigin{};
        result.finish =
            progress.commit(draw, draws.top.subspan(at * top_logprobs, top_logprobs), out, origin);
        if (result.finish) break;
    }
    const auto visited = static_cast<std::int32_t>(result.path.values().size());
    progress.count_step(tree.nodes() - 1, visited - 1);
    std::size_t next = 1;  // on the path; both ascend
    for (std::int32_t node = 1; node < tree.nodes(); ++node) {
        const bool accepted =
            next < result.path.values().size() && result.path.values()[next] == node;
        progress.count_origin(tree.origin(node), accepted);
        next += accepted ? 1 : 0;
    }
    return result;
}

}  // namespace espalier::accept
