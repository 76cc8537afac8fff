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
    // Room for the trees of `capacity` requests. The device outlives it.
    static Expected<TreeGrowth> create(Device& device, std::int32_t capacity);

    void begin() { trees_.clear(); }
    // Adds the next request's tree; depth 0 for one that may not grow.
    void add(ops::GrowthRule rule);
    std::span<const ops::GrowthTree> trees() const { return trees_; }

    // The frontiers of all trees at one level, taken together.
    struct Size {
        std::int64_t nodes = 0;
        std::int32_t rows = 0;
        std::int32_t longest_row = 0;  // nodes
        std::int32_t longest = 0;      // slots of a sequence
    };
    // An upper bound from the rules alone, so that the host need not look; level 0 is the roots.
    Size most(std::int32_t level) const;
    // The true size of the next level; waits for the level before it.
    Expected<Size> next(Stream stream);

    // roots: the sampling batch of the first level.
    Expected<void> upload(Stream stream, const ops::SamplingBatch& roots);
    const ops::DraftGrowth& view() const { return view_; }
    // Brings the trees into the calls' proposals (tree i into call i); waits for the last level.
    Expected<void> download(Stream stream, std::span<const speculate::DraftCall> calls);

    // For tests: 0xFF in what growing does not read before it wrote it.
    Expected<void> poison(Stream stream);

  private:
    TreeGrowth(Device& device, std::int32_t capacity, Buffer head, Buffer nodes, Buffer drafted);

    Device* device_;
    Buffer head_, node_memory_, drafted_memory_;
    ops::DraftGrowth view_;
    // Host memory, reused from call to call.
    std::vector<ops::GrowthTree> trees_;
    std::vector<std::byte> bytes_;
    std::vector<ops::DraftedNode> drafted_;
};

}  // namespace espalier::draft
