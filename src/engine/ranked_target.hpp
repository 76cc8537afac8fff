// SPDX-License-Identifier: Apache-2.0
// The target of an engine whose model several ranks hold: each call goes to the others as one
// command (engine/follower.hpp carries it out there), then to this rank's own target. What is drawn
// is drawn here alone. A call that fails here after the others heard of it is a failure of the
// device: the ranks are no longer at the same place.
#pragma once

#include <memory>
#include <span>

#include "draft/draft_passes.hpp"
#include "engine/rank_channel.hpp"
#include "engine/target.hpp"

namespace espalier::engine {

class RankedTarget final : public Target {
  public:
    // The other ranks have made their part; they close it when this ends. The channel outlives it.
    RankedTarget(RankChannel& channel, std::unique_ptr<Target> own)
        : channel_(channel), own_(std::move(own)) {}
    ~RankedTarget() override { channel_.send_end(Command::close_target); }

    const TargetInfo& info() const override { return own_->info(); }
    Expected<void> reserve(const StepRoom& room) override;
    batch::StepCapacity padded(const batch::StepCapacity& need) const override {
        return own_->padded(need);
    }
    bool is_recorded(const batch::StepCapacity& capacity) const override {
        return own_->is_recorded(capacity);
    }
    Expected<void> run(const batch::HostBatch& batch,
                       const ops::SamplingBatchBuilder* draws) override;
    Expected<StepResult> wait() override { return own_->wait(); }
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination) override;
    Expected<void> beat() override;

  private:
    RankChannel& channel_;
    std::unique_ptr<Target> own_;
    SharedBatches batches_;
};

// Passes of a draft model on every rank.
class RankedPasses final : public draft::PassEcho {
  public:
    RankedPasses(RankChannel& channel, const draft::PassLimits& limits)
        : channel_(channel), batches_(draft::largest_level(limits)) {}

    void log_taps(std::int64_t first, std::span<const std::int32_t> rows) override;
    void kv_half(std::int64_t tokens, std::int64_t waiting,
                 std::span<const std::byte> arrays) override;
    void roots(const batch::HostBatch& batch) override;
    void level(const batch::StepCapacity& capacity, std::span<const std::byte> bytes,
               std::span<const std::int32_t> parents) override;

  private:
    RankChannel& channel_;
    SharedBatches batches_;
};

}  // namespace espalier::engine
