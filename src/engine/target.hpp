// SPDX-License-Identifier: Apache-2.0
// What the engine runs its steps on: a model with its cache, wherever that lives. A step is
// launch → sample → wait, and compact before the next one; all but wait() only queue work on a
// device. wait() is the only place where the host reads what a step computed. One thread.
//
// model_target.hpp is the real one; tests have a fake whose tokens are hashes of their prefixes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "batch/batch_builder.hpp"
#include "cache/kv_storage.hpp"
#include "model/cost.hpp"
#include "model/deepseek.hpp"
#include "model/taps.hpp"
#include "ops/sampling_builder.hpp"

namespace espalier::engine {

struct TargetInfo {
    std::int64_t vocabulary = 0;
    std::vector<std::int32_t> eos_token_ids;
    model::ModelLimits limits;       // of one step
    cache::KvLayout kv_layout;       // of the cache
    model::PairCost pair_cost = {};  // of attention, beside a token's other arithmetic
    std::int64_t page_count = 0;     // the null page included
    bool asynchronous = false;       // launch() and sample() return while the device computes
};

// Good until the next launch.
struct StepResult {
    std::span<const ops::Draw> draws;                 // [G]; empty if nothing was sampled
    std::span<const ops::TokenLogprob> alternatives;  // as SamplingBatch::reported has them
    std::span<const std::uint8_t> nonfinite;  // [T]: 1 where a number of the token was not finite
    bool recorded = false;  // a recording was made besides: its time is not a step's
};

// The largest step there will be, and where it leaves hidden states.
struct StepRoom {
    batch::StepCapacity batch{};
    ops::SamplingCapacity draws{};
    model::Taps taps{};  // their memory outlives the target
};

class Target {
  public:
    virtual ~Target() = default;
    virtual const TargetInfo& info() const = 0;
    // Takes the memory of any step within the room, once, before the first launch().
    virtual Expected<void> reserve(const StepRoom& room) = 0;
    // What a batch that needs this much should be padded to.
    virtual batch::StepCapacity padded(const batch::StepCapacity& need) const { return need; }

    // Whether launch() and sample() of such a batch only play a recording. Otherwise queueing it
    // operation by operation takes the host a while.
    virtual bool is_recorded(const batch::StepCapacity&) const { return false; }

    // The pass over the batch: its KV into the cache, the hidden states into the taps. The batch
    // may be changed afterwards. An error: the batch was refused and nothing was queued.
    virtual Expected<void> launch(const batch::HostBatch& batch) = 0;
    // One draw per gathered token of the batch launched last. The draws may be changed afterwards;
    // they are within what was reserved.
    virtual Expected<void> sample(const ops::SamplingBatchBuilder& draws) = 0;
    // Waits for both.
    virtual Expected<StepResult> wait() = 0;

    // Slot destination[i] of the pool becomes slot source[i] in every layer, for i ascending
    // (mla::CompactCall), before anything that is launched later.
    virtual Expected<void> compact(std::span<const std::int64_t> source,
                                   std::span<const std::int64_t> destination) = 0;
};

}  // namespace espalier::engine
