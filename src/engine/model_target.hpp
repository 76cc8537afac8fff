// SPDX-License-Identifier: Apache-2.0
// A DeepSeek model and its cache as the engine's target.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/device_batch.hpp"
#include "engine/target.hpp"
#include "ops/sampling_memory.hpp"

namespace espalier::engine {

class ModelTarget final : public Target {
  public:
    // Borrows the model, which is not used otherwise meanwhile; owns the cache.
    static Expected<std::unique_ptr<ModelTarget>> create(model::DeepseekModel& model,
                                                         std::int64_t page_count);
    // layout: the model's own with draft layers beside it.
    static Expected<std::unique_ptr<ModelTarget>> create(model::DeepseekModel& model,
                                                         const cache::KvLayout& layout,
                                                         std::int64_t page_count);

    const TargetInfo& info() const override { return info_; }
    Expected<void> reserve(const ops::SamplingCapacity& capacity) override;
    Expected<void> launch(const batch::HostBatch& batch, const model::Taps& taps) override;
    Expected<void> sample(const ops::SamplingBatchBuilder& draws) override;
    Expected<StepResult> wait() override;
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination) override;

    cache::KvStorage& storage() { return storage_; }

  private:
    ModelTarget(model::DeepseekModel& model, cache::KvStorage storage);

    model::DeepseekModel& model_;
    cache::KvStorage storage_;
    batch::DeviceBatch batch_;
    TargetInfo info_;
    std::optional<ops::SamplingMemory> sampling_;
    // Of the step under way.
    model::ForwardResult computed_;
    std::int64_t tokens_ = 0;
    std::vector<ops::Draw> draws_;
    std::vector<ops::TokenLogprob> alternatives_;
    std::int64_t drawn_ = 0, reported_ = 0;
    std::vector<std::uint8_t> nonfinite_;
};

}  // namespace espalier::engine
