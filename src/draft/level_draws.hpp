// SPDX-License-Identifier: Apache-2.0
// The best children of a level's nodes: one sampling batch over all requests, as the target's draws
// are (engine/step_draws.hpp), with the request's temperature, biases and bans. The host lays that
// of the roots, with the grammar's mask there; those of deeper levels are laid on the device, with
// the counts along each node's path (ops/draft_growth.hpp). Used by ModelDrafter.
#pragma once

#include <cstdint>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "draft/draft_model.hpp"
#include "ops/draft_growth.hpp"
#include "ops/sampling_builder.hpp"
#include "ops/sampling_memory.hpp"
#include "speculate/drafter.hpp"

namespace espalier::draft {

class LevelDraws {
  public:
    // max_context: tokens of the longest request. vocabulary: the target's.
    static Expected<LevelDraws> create(Device& device, const PassLimits& limits,
                                       std::int64_t vocabulary);

    // The roots: as many nodes, pads included; then each request in the order of the batch.
    void begin(std::int64_t nodes);
    // serial: a number that no other request ever has.
    void add(const speculate::DraftCall& call, std::int64_t serial);
    // True if the request's children are chosen and scored with the target's noise.
    static bool coupled(const speculate::DraftCall& call);
    // Number of levels of its tree for which the request's bans hold.
    static std::int32_t banned_levels(const speculate::DraftCall& call);
    Expected<ops::SamplingBatch> upload(Stream stream);

    // Way in which children of a level's nodes are searched for; part of a recording's key.
    struct Search {
        std::int32_t width = 1;  // of each node
        bool coupled = false;    // some are chosen and scored with noise
        bool plain = false;      // some are not
    };
    // The search that the requests added so far need.
    Search search(std::int32_t width) const { return {width, any_coupled_, any_plain_}; }
    // Queues the search for children over these logits.
    void find(DraftModel& model, const Matrix& logits, const ops::SamplingBatch& batch,
              const Search& search);
    // Children that the search found.
    ops::FoundChildren found(const Search& search);

    // The draws of a level of `nodes` nodes whose batch the device lays itself.
    ops::FrontierDraws frontier(std::int64_t nodes);
    // For tests: fills the memory of such draws with 0xFF.
    Expected<void> poison(Device& device, Stream stream);

  private:
    LevelDraws(ops::SamplingBatchBuilder builder, ops::SamplingMemory memory, Buffer children,
               Buffer arrays);

    ops::DraftChild* on_device(bool coupled);

    ops::SamplingBatchBuilder builder_;
    ops::SamplingMemory memory_;
    Buffer children_;  // [2, nodes, kMaxDrafts] DraftChild: plain ones, coupled ones
    Buffer arrays_;    // of a level that is laid on the device
    bool any_coupled_ = false, any_plain_ = false;
};

}  // namespace espalier::draft
