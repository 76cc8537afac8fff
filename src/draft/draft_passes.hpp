// SPDX-License-Identifier: Apache-2.0
// A drafter's half on the device: the memory of a draft model's passes and the passes themselves,
// over arrays that another laid out. ModelDrafter decides and lays out; where several ranks hold
// the model, the first one's drafter also tells the others (PassEcho), and they make the same
// calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "batch/batch_builder.hpp"
#include "batch/device_batch.hpp"
#include "cache/kv_storage.hpp"
#include "draft/draft_model.hpp"
#include "model/taps.hpp"

namespace espalier::draft {

// A drafter's memory for what belongs to pages.
struct DraftCache {
    cache::KvStorage& storage;  // outlives the drafter
    std::int64_t layer = 0;     // of its draft layers
};

// The arrays of a KV half in one piece of memory: one upload. By token, the last two by entry of
// the backlog, of which there are no more.
struct TokenArrays {
    std::int64_t* slot = nullptr;
    std::int32_t* tokens = nullptr;
    std::int32_t* position = nullptr;
    std::int32_t* before = nullptr;      // row of the states; -1: zeros, or a page's tail state
    std::int32_t* tail_page = nullptr;   // whose tail state comes before it; -1: none
    std::int32_t* tail_token = nullptr;  // the token itself
    std::int32_t* kept_entry = nullptr;  // whose state its page keeps; -1: none
    std::int32_t* kept_page = nullptr;

    TokenArrays(std::byte* base, std::int64_t count);
    static std::size_t bytes(std::int64_t count) {
        return static_cast<std::size_t>(count) * (sizeof(std::int64_t) + 7 * sizeof(std::int32_t));
    }
};

// Told of each pass before this rank makes it, so that the other ranks make it too.
class PassEcho {
  public:
    virtual ~PassEcho() = default;
    virtual void log_taps(std::int64_t first, std::span<const std::int32_t> rows) = 0;
    virtual void kv_half(std::int64_t tokens, std::int64_t waiting,
                         std::span<const std::byte> arrays) = 0;
    virtual void roots(const batch::HostBatch& batch) = 0;
    // bytes: as in BatchLayout(capacity); parents [tokens]: rows of the states of the level before.
    virtual void level(const batch::StepCapacity& capacity, std::span<const std::byte> bytes,
                       std::span<const std::int32_t> parents) = 0;
};

// The largest level: all nodes of all requests.
batch::StepCapacity largest_level(const PassLimits& limits);

class DraftPasses {
  public:
    // taps: of the target; their memory outlives this.
    static Expected<std::unique_ptr<DraftPasses>> create(std::unique_ptr<Network> network,
                                                         const Machine& machine,
                                                         const PassLimits& limits,
                                                         const DraftCache& cache,
                                                         const model::Taps& taps);

    DraftModel& model() { return *model_; }
    const DraftModel& model() const { return *model_; }
    const PassLimits& limits() const { return limits_; }
    const batch::StepCapacity& most() const { return most_; }
    std::int64_t page_count() const { return cache_.storage.page_count(); }

    // The target's hidden states of these rows of its last batch become entries `first` on.
    Expected<void> log_taps(std::int64_t first, std::span<const std::int32_t> rows);
    // Brings the arrays of a KV half; what run_kv_half reads.
    Expected<void> upload_kv_half(std::span<const std::byte> arrays);
    // Computes and stores the KV of `tokens` tokens; `waiting` entries have states to be made.
    Expected<void> run_kv_half(std::int64_t tokens, std::int64_t waiting);
    Expected<batch::BatchView> upload_roots(const batch::HostBatch& batch);
    // The rest of the first level, behind its KV half.
    Expected<Matrix> run_roots(const batch::BatchView& roots);
    // A later level lies in level_memory() and parents(); its pages are those of the roots.
    std::byte* level_memory() { return level_memory_.data(); }
    std::int32_t* parents() { return parent_memory_.as<std::int32_t>(); }
    batch::StepCapacity level_capacity(batch::StepCapacity capacity,
                                       const batch::BatchView& roots) const;
    Expected<void> upload_level(std::span<const std::byte> bytes,
                                std::span<const std::int32_t> parents);
    Expected<Matrix> run_level(const batch::BatchView& level);

    // For tests: 0xFF in everything that earlier passes may have left and none may read.
    Expected<void> poison();

  private:
    DraftPasses(std::unique_ptr<DraftModel> model, const Machine& machine, const PassLimits& limits,
                const DraftCache& cache, const model::Taps& taps);
    Expected<void> allocate();
    Expected<void> warm_up();
    cache::LayerPages kv() { return cache_.storage.layer(cache::Plane::Of::draft, cache_.layer); }
    Matrix tails() const { return cache_.storage.tail_states(cache_.layer); }

    std::unique_ptr<DraftModel> model_;
    DraftCache cache_;
    std::vector<Matrix> tap_sources_;
    PassLimits limits_;
    batch::StepCapacity most_;
    Buffer log_memory_, state_memory_, before_memory_, after_memory_, array_memory_;
    Buffer level_memory_, parent_memory_;  // of a level that is laid there
    Matrix log_;                           // [tokens, taps]: by entry of the backlog
    Matrix states_;  // [tokens, state]: of the same, where they are not the taps
    Matrix before_;  // [tokens, state]: what a pass reads
    Matrix after_;   // [nodes, state]: what the last level left
    batch::DeviceBatch batch_;
};

}  // namespace espalier::draft
