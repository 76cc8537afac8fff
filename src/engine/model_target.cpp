// SPDX-License-Identifier: Apache-2.0
#include "engine/model_target.hpp"

#include <utility>

#include "base/check.hpp"

namespace espalier::engine {

Expected<std::unique_ptr<ModelTarget>> ModelTarget::create(model::DeepseekModel& model,
                                                           std::int64_t page_count) {
    return create(model, model.kv_layout(), page_count);
}

Expected<std::unique_ptr<ModelTarget>> ModelTarget::create(model::DeepseekModel& model,
                                                           const cache::KvLayout& layout,
                                                           std::int64_t page_count) {
    ESPALIER_ASSIGN_OR_RETURN(cache::KvStorage storage,
                              cache::KvStorage::create(model.device(), layout, page_count));
    return std::unique_ptr<ModelTarget>(new ModelTarget(model, std::move(storage)));
}

ModelTarget::ModelTarget(model::DeepseekModel& model, cache::KvStorage storage)
    : model_(model),
      storage_(std::move(storage)),
      batch_(model.device()),
      info_{.vocabulary = model.config().vocab_size,
            .eos_token_ids = model.config().eos_token_ids,
            .limits = model.limits(),
            .kv_layout = storage_.layout(),
            .pair_cost = model::pair_cost(model.config()),
            .page_count = storage_.page_count()},
      nonfinite_(static_cast<std::size_t>(info_.limits.max_tokens)) {}

Expected<void> ModelTarget::reserve(const ops::SamplingCapacity& capacity) {
    ESPALIER_ASSIGN_OR_RETURN(sampling_, ops::SamplingMemory::create(model_.device(), capacity));
    draws_.resize(static_cast<std::size_t>(capacity.nodes));
    alternatives_.resize(static_cast<std::size_t>(capacity.alternatives()));
    return {};
}

Expected<void> ModelTarget::launch(const batch::HostBatch& batch, const model::Taps& taps) {
    drawn_ = reported_ = 0;
    ESPALIER_RETURN_IF_ERROR(batch.check_tokens(info_.vocabulary));
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view,
                              batch_.upload(model_.device().stream(), batch));
    ESPALIER_ASSIGN_OR_RETURN(computed_, model_.forward(view, storage_, taps));
    tokens_ = view.cap_tokens;
    return {};
}

Expected<void> ModelTarget::sample(const ops::SamplingBatchBuilder& draws) {
    CHECK(sampling_.has_value(), "draws before memory was reserved for them");
    ESPALIER_ASSIGN_OR_RETURN(const ops::SamplingBatch batch,
                              sampling_->upload(model_.device().stream(), draws));
    model_.sample(computed_.logits, batch);
    drawn_ = draws.nodes();
    reported_ = draws.alternatives();
    return {};
}

Expected<StepResult> ModelTarget::wait() {
    Device& device = model_.device();
    const StepResult result{
        .draws = std::span(draws_).first(static_cast<std::size_t>(drawn_)),
        .alternatives = std::span(alternatives_).first(static_cast<std::size_t>(reported_)),
        .nonfinite = std::span(nonfinite_).first(static_cast<std::size_t>(tokens_)),
    };
    if (drawn_ > 0)
        ESPALIER_RETURN_IF_ERROR(
            sampling_->download(device.stream(), std::span(draws_).first(result.draws.size()),
                                std::span(alternatives_).first(result.alternatives.size())));
    ESPALIER_RETURN_IF_ERROR(device.download(device.stream(), nonfinite_.data(),
                                             computed_.nonfinite, result.nonfinite.size()));
    return result;
}

Expected<void> ModelTarget::compact(std::span<const std::int64_t> source,
                                    std::span<const std::int64_t> destination) {
    return model_.compact(source, destination, storage_);
}

}  // namespace espalier::engine
