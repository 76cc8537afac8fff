// SPDX-License-Identifier: Apache-2.0
// The trees of one call while they grow in the device's memory (ops/draft_growth.hpp): what is
// asked of each goes there once, what was drafted comes back once. Used by ModelDrafter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "base/device.hpp"
#include "base/error.hpp"
#include "ops/draft_growth.hpp"
#include "speculate/drafter.hpp"

namespace espalier::draft {

class TreeGrowth {
  public:
    // Of so many requests. The device outlives it.
    static Expected<TreeGrowth> create(Device& device, std::int32_t capacity);

    void begin() { trees_.clear(); }
    // Of the next request. Whoever may not grow at all gets depth 0.
    void add(ops::GrowthRule rule);
    std::span<const ops::GrowthTree> trees() const { return trees_; }

    // What a level's frontiers have together.
    struct Size {
        std::int64_t nodes = 0;
        std::int32_t rows = 0;
        std::int32_t longest_row = 0;  // nodes
        std::int32_t longest = 0;      // slots of a sequence
    };
    // At most, by what was asked; level 0 are the roots.
    Size most(std::int32_t level) const;
    // Of the level that is next; waits for the one before.
    Expected<Size> next(Stream stream);

    // roots: the draws of the first level.
    Expected<void> upload(Stream stream, const ops::SamplingBatch& roots);
    const ops::DraftGrowth& view() const { return view_; }
    // Waits for the last level; call i is that of tree i.
    Expected<void> download(Stream stream, std::span<const speculate::DraftCall> calls);

    // For tests: 0xFF in what growing does not read before it wrote it.
    Expected<void> poison(Stream stream);

  private:
    TreeGrowth(Device& device, std::int32_t capacity, Buffer head, Buffer nodes, Buffer drafted);

    Device* device_;
    Buffer head_, node_memory_, drafted_memory_;
    ops::DraftGrowth view_;
    // Of the host.
    std::vector<ops::GrowthTree> trees_;
    std::vector<std::byte> bytes_;
    std::vector<ops::DraftedNode> drafted_;
};

}  // namespace espalier::draft
