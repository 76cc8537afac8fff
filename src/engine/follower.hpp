// SPDX-License-Identifier: Apache-2.0
// A rank's part of an engine that another rank leads: the cache, and the calls of Target and of a
// draft model's passes as they come by command. It draws nothing, decides nothing and waits for
// nothing but commands; every command is checked before a device reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "batch/device_batch.hpp"
#include "cache/kv_storage.hpp"
#include "draft/draft_passes.hpp"
#include "engine/commands.hpp"
#include "model/deepseek.hpp"
#include "model/taps.hpp"

namespace espalier::engine {

class Follower {
  public:
    struct Parts {
        model::DeepseekModel& model;  // outlives the follower
        std::unique_ptr<cache::KvStorage> storage;
        std::unique_ptr<model::TapMemory> taps;
        std::unique_ptr<draft::DraftPasses> drafts;  // on that storage and taps; null: none
    };
    explicit Follower(Parts parts);

    // One of reserve, step, compact, draft_*, beat; the reader stands behind its head.
    Expected<void> run(Command command, FlatReader& reader);

  private:
    Expected<void> reserve(FlatReader& reader);
    Expected<void> step(FlatReader& reader);
    Expected<void> compact(FlatReader& reader);
    Expected<void> log_taps(FlatReader& reader);
    Expected<void> kv_half(FlatReader& reader);
    Expected<void> draft_roots(FlatReader& reader);
    Expected<void> draft_level(FlatReader& reader);
    batch::BatchBounds bounds() const;

    Parts parts_;
    batch::DeviceBatch batch_;
    SharedBatches batches_;  // of steps
    bool reserved_ = false;
    std::int64_t last_tokens_ = 0;  // of the last step: the taps that are there
    SlotMoves moves_;
    // The draft model's.
    SharedBatches levels_;
    std::optional<batch::BatchView> roots_;  // the last ones
    std::int64_t level_nodes_ = 0;           // of the last level: the states that are there
    std::vector<std::int32_t> rows_;
    std::vector<std::int64_t> arrays_;  // aligned as TokenArrays
};

}  // namespace espalier::engine
