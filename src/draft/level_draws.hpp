// SPDX-License-Identifier: Apache-2.0
// The best children of a level's nodes: one sampling batch over all requests, as the target's draws
// are (engine/step_draws.hpp), with the request's temperature, biases, bans and counts along each
// node's path. A grammar's mask is given to the root; what is found below it is pruned when it
// comes down. Used by ModelDrafter.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "draft/draft_model.hpp"
#include "draft/growth.hpp"
#include "ops/sampling_builder.hpp"
#include "ops/sampling_memory.hpp"
#include "speculate/drafter.hpp"

namespace espalier::draft {

class LevelDraws {
  public:
    // max_context: tokens of the longest request. vocabulary: the target's.
    static Expected<LevelDraws> create(Device& device, const PassLimits& limits,
                                       std::int64_t vocabulary);

    // A level of `nodes` nodes; then for each request with a frontier, in the order of the batch.
    void begin(std::int64_t nodes);
    // serial: a number that no other request ever has.
    void add(const speculate::DraftCall& call, const Growth& growth, std::int64_t serial);
    // How children are looked for, of all nodes of the level: part of what a recording is of.
    struct Search {
        std::int32_t width = 1;  // of each node
        bool coupled = false;    // some are chosen and scored with noise
        bool plain = false;      // some are not
    };
    // Of the nodes that were added.
    Search search(std::int32_t width) const { return {width, any_coupled_, any_plain_}; }
    Expected<ops::SamplingBatch> upload(Stream stream);
    // Queues the search under these logits.
    void find(DraftModel& model, const Matrix& logits, const ops::SamplingBatch& batch,
              const Search& search);
    // Waits for it; the best `width` of each, at most the search's, are kept with their scores as
    // estimates.
    Expected<void> download(OpContext& context, const Search& search, std::int32_t width);
    // Of the node in this row of the batch, after download(): those there are, best first.
    std::span<const Growth::Child> children(std::int64_t row) const;

  private:
    LevelDraws(ops::SamplingBatchBuilder builder, ops::SamplingMemory memory, Buffer children);

    ops::DraftChild* on_device(bool coupled);
    void take(bool coupled, std::int32_t stride);

    ops::SamplingBatchBuilder builder_;
    ops::SamplingMemory memory_;
    Buffer device_children_;  // [2, nodes, kMaxDrafts] DraftChild: plain ones, coupled ones
    std::array<std::vector<ops::DraftChild>, 2> found_;
    std::vector<bool> coupled_;  // by row: its children are chosen and scored with noise
    bool any_coupled_ = false, any_plain_ = false;
    std::int32_t width_ = 0;
    std::vector<Growth::Child> children_;  // [rows, width_]
    std::vector<std::int32_t> counts_;     // by row: how many there are
};

}  // namespace espalier::draft
