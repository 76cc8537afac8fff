// SPDX-License-Identifier: Apache-2.0
// The best children of a level's nodes: one sampling batch over all requests, as the target's draws
// are (engine/step_draws.hpp), with the request's temperature, biases, bans and counts along each
// node's path. A grammar's mask is given to the root; what is found below it is pruned when it
// comes down. Used by ModelDrafter.
#pragma once

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
    // The best `width` children of each node under these logits, and their scores as estimates.
    Expected<void> run(DraftModel& model, const Matrix& logits, std::int32_t width);
    // Of the node in this row of the batch, after run(): those there are, best first.
    std::span<const Growth::Child> children(std::int64_t row) const;

  private:
    LevelDraws(ops::SamplingBatchBuilder builder, ops::SamplingMemory memory, Buffer children);

    Expected<void> run_kind(DraftModel& model, const Matrix& logits,
                            const ops::SamplingBatch& batch, const ops::DraftRule& rule);
    void take(const ops::DraftRule& rule);

    ops::SamplingBatchBuilder builder_;
    ops::SamplingMemory memory_;
    Buffer device_children_;  // [nodes, kMaxDrafts] DraftChild
    std::vector<ops::DraftChild> found_;
    std::vector<bool> coupled_;  // by row: its children are chosen and scored with noise
    bool any_coupled_ = false, any_plain_ = false;
    std::int32_t width_ = 0;
    std::vector<Growth::Child> children_;  // [rows, width_]
    std::vector<std::int32_t> counts_;     // by row: how many there are
};

}  // namespace espalier::draft
