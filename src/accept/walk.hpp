// SPDX-License-Identifier: Apache-2.0
// The walk: descends a verified tree along what was drawn. At each node the drawn token is
// committed; where the tree has that child, it goes on there. So what is committed is what plain
// decode would have drawn, and the tree only says how much of it this step can know. Pure; called
// once per request and step, after sample_nodes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "accept/request_progress.hpp"
#include "base/at.hpp"
#include "base/draft_origin.hpp"
#include "base/limits.hpp"
#include "ops/sampling.hpp"

namespace espalier::accept {

// A tree as the walk reads it. Node 0 is the root; siblings hold different tokens.
struct TreeView {
    std::span<const std::int32_t> parents;      // [nodes], parents[i] < i; the root's is not read
    std::span<const std::int32_t> tokens;       // [nodes]; the root's is not read
    std::span<const DraftOrigin> origins = {};  // [nodes], or empty: not known
    std::int32_t nodes() const { return static_cast<std::int32_t>(parents.size()); }
    // -1: none. Looks from node + 1 on, since children lie behind their parent: a whole walk looks
    // at each node once.
    std::int32_t child_with(std::int32_t node, std::int32_t token) const;
    DraftOrigin origin(std::int32_t node) const {
        return origins.empty() ? DraftOrigin{} : at(origins, node);
    }
};

// Up to 64 numbers in place: a step allocates nothing for its paths. What lies behind the last one
// is neither set nor copied: most lists are short, and a step makes several for every request.
class NodeList {
  public:
    NodeList() = default;
    NodeList(const NodeList& other) { *this = other; }
    NodeList& operator=(const NodeList& other) {
        count_ = other.count_;
        std::ranges::copy(other.values(), values_.begin());
        return *this;
    }

    void push_back(std::int32_t value) { at(values_, count_++) = value; }
    std::span<const std::int32_t> values() const {
        return {values_.data(), static_cast<std::size_t>(count_)};
    }

  private:
    std::array<std::int32_t, kMaxNodes> values_;
    std::int32_t count_ = 0;
};

// Tokens from depth 1 to the node: what penalties there count beside the committed ones. Empty for
// the root.
NodeList path_tokens(const TreeView& tree, std::int32_t node);

// Results of the step for each node.
struct NodeDraws {
    std::span<const ops::Draw> draws;   // [nodes]
    std::span<const TokenLogprob> top;  // [nodes, top_logprobs]
    std::uint64_t flagged_nodes = 0;    // bit i: node i's latent had to be flushed to finite
};

// The nodes that the draws lead to from the root on, ascending; the last one may be flagged or have
// no draw. A walk visits a prefix of them: it may end earlier.
NodeList drawn_path(const TreeView& tree, const NodeDraws& draws);

struct WalkResult {
    NodeList path;  // nodes visited, ascending, from the root on: what commit keeps
    // The token drawn at each, in order. A flagged node that ended the request has none.
    NodeList tokens;
    std::optional<Finish> finish;
};

// A request fails only by a flag on a node that is visited; elsewhere flags mean nothing.
WalkResult walk(const TreeView& tree, const NodeDraws& draws, RequestProgress& progress,
                Emission& out);

}  // namespace espalier::accept
