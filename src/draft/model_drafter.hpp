// SPDX-License-Identifier: Apache-2.0
// MTP and EAGLE3 as drafters. Draft KV lies in the target's pages, in a layer of its own; with each
// page goes a tail state, so that a request goes on behind pages that another one wrote.
//
//   extend()   notes the committed tokens and copies their taps: their KV half is computed with
//   that
//              of many others, at the latest when a page is complete or when the model drafts.
//   propose()  one pass per level over the frontiers of all requests. The first runs the roots, and
//              the KV half of all that wait goes with it: the same weights are read once. Trees
//              grow on the device (tree_growth.hpp); where passes are recorded, all of them are
//              queued one behind the other, and the host waits once, for the trees.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "batch/batch_builder.hpp"
#include "batch/captured_steps.hpp"
#include "cache/kv_storage.hpp"
#include "draft/backlog.hpp"
#include "draft/draft_passes.hpp"
#include "draft/followed.hpp"
#include "draft/level_draws.hpp"
#include "draft/tree_growth.hpp"
#include "model/taps.hpp"
#include "speculate/drafter.hpp"

namespace espalier::draft {

class ModelDrafter final : public speculate::Drafter {
  public:
    // taps: of the target that the engine runs; their memory outlives the drafter. vocabulary: the
    // target's. echo: the other ranks, where they hold parts of the model; null: none do.
    static Expected<std::unique_ptr<ModelDrafter>> create(
        std::unique_ptr<Network> network, const Machine& machine, const PassLimits& limits,
        const DraftCache& cache, const model::Taps& taps, std::int64_t vocabulary,
        PassEcho* echo = nullptr);

    std::string_view name() const override { return model().network().name(); }
    speculate::DrafterNeeds needs() const override {
        return {.hidden_states = true, .draft_cache = true, .passes = true};
    }
    void begin(RequestSlot request, std::span<const TokenId> prompt,
               std::int64_t max_tokens) override;
    void end(RequestSlot request) override { backlog_.drop(request); }
    void preempted(RequestSlot request) override {
        backlog_.drop(request);
        followed_.begin(request);
    }
    Expected<void> extend(std::span<const speculate::Extension> extensions) override;
    void forget() override;
    bool follows(RequestSlot request, std::int64_t root_position) const override {
        return followed_.whole(request, root_position);
    }
    void commit(std::span<const speculate::Commitment>) override {}
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override;

    // Computes the KV half of all that waits.
    Expected<void> flush();

  private:
    // Most of a node's children that are looked at: rank 8 is right in one step of a hundred.
    static constexpr std::int32_t kChildren = 8;

    ModelDrafter(std::unique_ptr<DraftPasses> passes, const Machine& machine,
                 const DraftCache& cache, LevelDraws draws, TreeGrowth growth, PassEcho* echo);
    Expected<void> capture_ahead();
    Expected<void> capture_levels(std::int32_t nodes, const LevelDraws::Search& search);

    Expected<void> log_taps(std::span<const speculate::Extension> extensions);
    void start(std::span<const speculate::DraftCall> calls);
    // Computes and stores the draft KV of roots_ and of the whole backlog in one pass, padded to
    // `least` tokens or more. Recorded by its number of tokens: all else is data in arrays.
    Expected<void> write_kv_half(std::int64_t least);
    void lay_out(const TokenArrays& arrays, std::int64_t tokens) const;
    void lay_tails(const TokenArrays& arrays, std::int64_t tokens, std::int64_t waiting) const;
    // One level of all trees. Its batch is uploaded by the host (the first level, whose KV is
    // already written) or laid from the frontiers on the device; then come the layer, the search
    // for children and the growth of the trees. A recording holds all of it.
    struct Level {
        batch::HostBatch host{};         // of the first level
        batch::StepCapacity capacity{};  // of a later one
        batch::BatchView batch{};
        ops::FrontierBatch frontier{};
        ops::FrontierDraws draws{};
        LevelDraws::Search search{};
        bool first = false;
    };
    Expected<Level> lay_roots(std::span<const speculate::DraftCall> calls);
    Expected<Level> run_roots(std::span<const speculate::DraftCall> calls);
    Expected<void> run_level(const Level& roots, const TreeGrowth::Size& size);
    void lay_level(batch::StepCapacity capacity, const batch::BatchView& roots, Level& level);
    Expected<void> run_pass(const Level& level);
    void tell_level(const Level& level);
    Expected<void> queue_pass(const Level& level);
    Expected<void> queue(std::int64_t key, std::int64_t tokens, Device::Work work);
    batch::StepCapacity padded(batch::StepCapacity need) const;
    Expected<void> poison();
    bool captures() const { return steps_.options().capture; }
    DraftModel& model() { return passes_->model(); }
    const DraftModel& model() const { return passes_->model(); }

    std::unique_ptr<DraftPasses> passes_;
    PassEcho* echo_;
    PassLimits limits_;
    LevelDraws draws_;
    TreeGrowth growth_;
    Backlog backlog_;
    Followed followed_;
    IndexedVector<RequestSlot, std::int64_t> serials_;
    std::int64_t next_serial_ = 0;

    batch::CapturedSteps steps_;

    // Host memory, reused from call to call.
    batch::StepCapacity most_;       // of a level
    std::int64_t level_splits_ = 0;  // of a level of the current draft, at most
    batch::BatchBuilder builder_;
    std::vector<std::byte> arrays_;
    std::vector<const speculate::DraftCall*> roots_;  // whose KV half goes with the backlog's
    std::vector<TokenId> tokens_;                     // of the roots
};

}  // namespace espalier::draft
