// SPDX-License-Identifier: Apache-2.0
// What the engine runs its steps on: a model with its cache, wherever that lives. A step is
// run → wait, and compact before the next one; all but wait() only queue work on a device. run()
// gets all that a step has, so that it can be one command to other machines; wait() is the only
// place where the host reads what a step computed. One thread.
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
#include "schedule/request.hpp"

namespace espalier::engine {

struct TargetInfo {
    std::int64_t vocabulary = 0;
    std::vector<std::int32_t> eos_token_ids;
    model::ModelLimits limits;       // of one step
    cache::KvLayout kv_layout;       // of the cache
    model::PairCost pair_cost = {};  // of attention, beside a token's other arithmetic
    std::int64_t page_count = 0;     // the null page included
    bool asynchronous = false;       // run() returns while the device computes
};

// Nanoseconds that a step took, by the device's own time: of the work alone, without its upload,
// its queueing and what the host does meanwhile.
struct DeviceTimes {
    schedule::Time model = 0;     // the pass
    schedule::Time sampling = 0;  // the draws behind it
};

// Good until the next run.
struct StepResult {
    std::span<const ops::Draw> draws;                 // [G]; empty if nothing was sampled
    std::span<const ops::TokenLogprob> alternatives;  // as SamplingBatch::reported has them
    std::span<const std::uint8_t> nonfinite;  // [T]: 1 where a number of the token was not finite
    bool recorded = false;  // a recording was made besides: its time is not a step's
    DeviceTimes times = {};
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
    // Takes the memory of any step within the room, once, before the first run().
    virtual Expected<void> reserve(const StepRoom& room) = 0;
    // Capacity to which a batch that needs this much should be padded.
    virtual batch::StepCapacity padded(const batch::StepCapacity& need) const { return need; }

    // True if run() of such a batch only plays a recording. Otherwise queueing it operation by
    // operation takes the host a while.
    virtual bool is_recorded(const batch::StepCapacity&) const { return false; }

    // The pass over the batch: its KV into the cache, the hidden states into the taps. Then one
    // draw per gathered token, within what was reserved; draws null: none. Both may be changed
    // afterwards. An error: the batch was refused.
    virtual Expected<void> run(const batch::HostBatch& batch,
                               const ops::SamplingBatchBuilder* draws) = 0;
    // Waits for it.
    virtual Expected<StepResult> wait() = 0;

    // Slot destination[i] of the pool becomes slot source[i] in every layer, for i ascending
    // (mla::CompactCall), before anything that runs later.
    virtual Expected<void> compact(std::span<const std::int64_t> source,
                                   std::span<const std::int64_t> destination) = 0;

    // Called once a second while nothing runs; an error: the device has failed meanwhile.
    virtual Expected<void> beat() { return {}; }
};

}  // namespace espalier::engine
