// SPDX-License-Identifier: Apache-2.0
#include "engine/model_target.hpp"

#include <utility>

namespace espalier::engine {

Expected<std::unique_ptr<ModelTarget>> ModelTarget::create(model::DeepseekModel& model,
                                                           std::int64_t page_count) {
    ESPALIER_ASSIGN_OR_RETURN(
        cache::KvStorage storage,
        cache::KvStorage::create(model.device(), model.kv_layout(), page_count));
    return std::unique_ptr<ModelTarget>(new ModelTarget(model, std::move(storage)));
}

ModelTarget::ModelTarget(model::DeepseekModel& model, cache::KvStorage storage)
    : model_(model),
      storage_(std::move(storage)),
      info_{.vocabulary = model.config().vocab_size,
            .eos_token_ids = model.config().eos_token_ids,
            .limits = model.limits(),
            .kv_layout = storage_.layout(),
            .pair_cost = model::pair_cost(model.config()),
            .page_count = storage_.page_count()},
      draws_(static_cast<std::size_t>(info_.limits.max_gather)),
      nonfinite_(static_cast<std::size_t>(info_.limits.max_tokens)) {}

Expected<void> ModelTarget::launch(const batch::BatchView& batch, const model::Taps& taps) {
    drawn_ = 0;
    ESPALIER_ASSIGN_OR_RETURN(computed_, model_.forward(batch, storage_, taps));
    tokens_ = batch.cap_tokens;
    return {};
}

void ModelTarget::sample(std::span<const ops::NodeSampling> nodes) {
    model_.sample(computed_.logits, nodes, std::span(draws_).first(nodes.size()));
    drawn_ = std::ssize(nodes);
}

Expected<StepResult> ModelTarget::wait() {
    Device& device = model_.device();
    ESPALIER_RETURN_IF_ERROR(device.download(device.stream(), nonfinite_.data(),
                                             computed_.nonfinite,
                                             static_cast<std::size_t>(tokens_)));
    return StepResult{
        .draws = std::span(draws_).first(static_cast<std::size_t>(drawn_)),
        .nonfinite = std::span(nonfinite_).first(static_cast<std::size_t>(tokens_)),
    };
}

Expected<void> ModelTarget::compact(std::span<const std::int64_t> source,
                                    std::span<const std::int64_t> destination) {
    return model_.compact(source, destination, storage_);
}

}  // namespace espalier::engine
