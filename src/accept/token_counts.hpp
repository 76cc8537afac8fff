// SPDX-License-Identifier: Apache-2.0
// Which tokens a request has seen and how often: what repetition (prompt and output), presence and
// frequency penalties (output only) are made of. Drafted tokens on the way to a node count there
// as if they were committed, since that is what they are when the walk comes by.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.hpp"

namespace espalier::accept {

using ops::TokenCount;

// Token counts at one node: the request's, some replaced or added by tokens on the node's path.
struct NodeCounts {
    std::span<const TokenCount> committed;  // each token once; valid until the next add
    std::array<TokenCount, kMaxDrafts> changed_entries{};
    std::int32_t changed_count = 0;
    // Each token of the node's path once, with its count there: it replaces the committed entry.
    std::span<const TokenCount> changed() const {
        return {changed_entries.data(), static_cast<std::size_t>(changed_count)};
    }
};

class TokenCounts {
  public:
    explicit TokenCounts(std::span<const std::int32_t> prompt);
    void add(std::int32_t token);  // a committed token of the output
    // In order of first appearance and never reordered, so that a copy elsewhere follows by
    // appending and by rewriting single entries.
    std::span<const TokenCount> entries() const { return entries_; }
    ops::CommittedCounts committed() const { return {entries_, changes_, recent_}; }
    TokenCount of(std::int32_t token) const;
    // path: tokens of the node and its ancestors below the root (which is committed), at most 63.
    NodeCounts at(std::span<const std::int32_t> path) const;

  private:
    std::size_t entry(std::int32_t token);  // its index, added if it is new
    // Index in table_ of the token's entry, or of the free place where it would be.
    std::size_t place_of(std::int32_t token) const;
    void grow();

    std::vector<TokenCount> entries_;
    std::int64_t changes_ = 0;                      // committed tokens
    std::array<std::int32_t, kMaxNodes> recent_{};  // see ops::CommittedCounts
    std::vector<std::int32_t> table_;  // open addressing: index into entries_, -1 free; 2^n places
};

}  // namespace espalier::accept
