// SPDX-License-Identifier: Apache-2.0
// A DeepSeek model and its cache as the engine's target.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/target.hpp"

namespace espalier::engine {

class ModelTarget final : public Target {
  public:
    // Borrows the model, which nobody else uses meanwhile; owns the cache.
    static Expected<std::unique_ptr<ModelTarget>> create(model::DeepseekModel& model,
                                                         std::int64_t page_count);

    const TargetInfo& info() const override { return info_; }
    Expected<void> launch(const batch::BatchView& batch, const model::Taps& taps) override;
    void sample(std::span<const ops::NodeSampling> nodes) override;
    Expected<StepResult> wait() override;
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination) override;

    cache::KvStorage& storage() { return storage_; }

  private:
    ModelTarget(model::DeepseekModel& model, cache::KvStorage storage);

    model::DeepseekModel& model_;
    cache::KvStorage storage_;
    TargetInfo info_;
    // Of the step under way.
    model::ForwardResult computed_;
    std::int64_t tokens_ = 0;
    std::vector<ops::Draw> draws_;
    std::int64_t drawn_ = 0;
    std::vector<std::uint8_t> nonfinite_;
};

}  // namespace espalier::engine
