// SPDX-License-Identifier: Apache-2.0
// A DeepSeek model and its cache as the engine's target. Where steps are captured (a GPU), a step
// whose launches its work does not hide is padded to one of few capacities, prompts among it or
// not, and pass and draws are one recording, played over the batch that was uploaded: by
// construction a replay is the step itself, since everything that changes from step to step is
// data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/captured_steps.hpp"
#include "batch/device_batch.hpp"
#include "engine/target.hpp"
#include "ops/sampling_memory.hpp"

namespace espalier::engine {

class ModelTarget final : public Target {
  public:
    // Borrows the model, which is not used otherwise meanwhile; owns the cache.
    static Expected<std::unique_ptr<ModelTarget>> create(model::DeepseekModel& model,
                                                         std::int64_t page_count,
                                                         const batch::CaptureOptions& capture = {});
    // layout: the model's own with draft layers beside it.
    static Expected<std::unique_ptr<ModelTarget>> create(model::DeepseekModel& model,
                                                         const cache::KvLayout& layout,
                                                         std::int64_t page_count,
                                                         const batch::CaptureOptions& capture = {});

    const TargetInfo& info() const override { return info_; }
    Expected<void> reserve(const StepRoom& room) override;
    batch::StepCapacity padded(const batch::StepCapacity& need) const override;
    bool is_recorded(const batch::StepCapacity& capacity) const override;
    Expected<void> run(const batch::HostBatch& batch,
                       const ops::SamplingBatchBuilder* draws) override;
    Expected<StepResult> wait() override;
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination) override;

    cache::KvStorage& storage() { return storage_; }
    const batch::CapturedSteps& steps() const { return steps_; }

  private:
    ModelTarget(model::DeepseekModel& model, cache::KvStorage storage,
                std::unique_ptr<TimeMarks> marks, const batch::CaptureOptions& capture);

    Expected<void> capture_ahead();
    bool may_record(const batch::StepCapacity& capacity) const;
    Expected<void> compute(const batch::BatchView& batch, const ops::SamplingBatch* draws);
    Expected<DeviceTimes> times() const;

    model::DeepseekModel& model_;
    cache::KvStorage storage_;
    batch::DeviceBatch batch_;
    TargetInfo info_;
    StepRoom room_;
    std::optional<ops::SamplingMemory> sampling_;
    std::unique_ptr<TimeMarks> marks_;
    batch::CapturedSteps steps_;  // they set the marks
    // The current step.
    model::ForwardResult computed_;
    std::int64_t tokens_ = 0;
    std::vector<ops::Draw> draws_;
    std::vector<ops::TokenLogprob> alternatives_;
    std::int64_t drawn_ = 0, reported_ = 0;
    std::int64_t recordings_ = 0;  // before it
    std::vector<std::uint8_t> nonfinite_;
    std::vector<std::int64_t> move_source_, move_destination_;  // padded
};

}  // namespace espalier::engine
