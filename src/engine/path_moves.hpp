// SPDX-License-Identifier: Apache-2.0
// The commit of accepted paths: their KV rows move to consecutive slots. A node's slot is its
// root's slot plus its index; the k-th node of the path belongs at the root's slot plus k. Indices
// ascend along a path, so no row is overwritten before it has moved. Pure; filled by Stepper,
// carried out by Target::compact in every layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page.hpp"
#include "mla/storage.hpp"

namespace espalier::engine {

class PathMoves {
  public:
    explicit PathMoves(std::int64_t max_tokens) {
        source_.reserve(static_cast<std::size_t>(max_tokens));
        destination_.reserve(static_cast<std::size_t>(max_tokens));
    }

    void clear() {
        source_.clear();
        destination_.clear();
    }
    // path: node indices from the root (0) on, ascending. Slots of the sequence become slots of
    // the pool by its block table.
    void add(std::span<const std::int32_t> block_table, std::int64_t root_slot,
             std::span<const std::int32_t> path) {
        for (std::size_t k = 0; k < path.size(); ++k) {
            const auto place = static_cast<std::int64_t>(k);
            if (path[k] == place) continue;
            source_.push_back(pool_slot(block_table, root_slot + path[k]));
            destination_.push_back(pool_slot(block_table, root_slot + place));
        }
    }

    std::span<const std::int64_t> source() const { return source_; }
    std::span<const std::int64_t> destination() const { return destination_; }

  private:
    static std::int64_t pool_slot(std::span<const std::int32_t> block_table, std::int64_t slot) {
        return mla::pool_slot(block_table.data(), cache::kPageTokens, slot);
    }

    std::vector<std::int64_t> source_, destination_;  // slots of the pool
};

}  // namespace espalier::engine
