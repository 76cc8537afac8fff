// SPDX-License-Identifier: Apache-2.0
#include "engine/model_target.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"
#include "base/for_what.hpp"

namespace espalier::engine {

Expected<std::unique_ptr<ModelTarget>> ModelTarget::create(model::DeepseekModel& model,
                                                           std::int64_t page_count,
                                                           const batch::CaptureOptions& capture) {
    return create(model, model.kv_layout(), page_count, capture);
}

Expected<std::unique_ptr<ModelTarget>> ModelTarget::create(model::DeepseekModel& model,
                                                           const cache::KvLayout& layout,
                                                           std::int64_t page_count,
                                                           const batch::CaptureOptions& capture) {
    ESPALIER_ASSIGN_OR_RETURN(cache::KvStorage storage,
                              cache::KvStorage::create(model.device(), layout, page_count));
    if (capture.poison) ESPALIER_RETURN_IF_ERROR(storage.fill(model.device(), std::byte{0xFF}));
    return std::unique_ptr<ModelTarget>(new ModelTarget(model, std::move(storage), capture));
}

ModelTarget::ModelTarget(model::DeepseekModel& model, cache::KvStorage storage,
                         const batch::CaptureOptions& capture)
    : model_(model),
      storage_(std::move(storage)),
      batch_(model.device(), capture.poison),
      info_{.vocabulary = model.config().vocab_size,
            .eos_token_ids = model.config().eos_token_ids,
            .limits = model.limits(),
            .kv_layout = storage_.layout(),
            .pair_cost = model::pair_cost(model.config()),
            .page_count = storage_.page_count(),
            .asynchronous = model.device().kind() != DeviceKind::cpu},
      steps_(model.device(), capture),
      nonfinite_(static_cast<std::size_t>(info_.limits.max_tokens)) {}

Expected<void> ModelTarget::reserve(const StepRoom& room) {
    ESPALIER_ASSIGN_OR_RETURN(
        sampling_, for_what(ops::SamplingMemory::create(model_.device(), room.draws), "draws"));
    room_ = room;
    draws_.resize(static_cast<std::size_t>(room.draws.nodes));
    alternatives_.resize(static_cast<std::size_t>(room.draws.alternatives()));
    return steps_.options().capture ? capture_ahead() : Expected<void>();
}

// Steps of pads alone: they have no page and write no slot.
Expected<void> ModelTarget::capture_ahead() {
    batch::BatchBuilder builder(room_.batch);
    ESPALIER_ASSIGN_OR_RETURN(auto draws, ops::SamplingBatchBuilder::create(room_.draws));
    const std::int64_t most = std::min(steps_.options().ahead, room_.batch.absorbed_tokens);
    const auto capture = [&](std::int64_t tokens, std::int32_t longest_row) -> Expected<void> {
        ESPALIER_ASSIGN_OR_RETURN(
            const batch::HostBatch empty,
            builder.finish(padded({.absorbed_tokens = tokens, .max_q_len = longest_row})));
        draws.begin(empty.capacity.gather);
        draws.finish();
        ESPALIER_RETURN_IF_ERROR(launch(empty));
        ESPALIER_RETURN_IF_ERROR(sample(draws));
        ESPALIER_RETURN_IF_ERROR(wait());
        return {};
    };
    for (const std::int64_t bucket : batch::token_buckets_to(most)) {
        ESPALIER_RETURN_IF_ERROR(capture(bucket, 1));
        if (bucket > 1) ESPALIER_RETURN_IF_ERROR(capture(bucket, 2));
    }
    return {};
}

batch::StepCapacity ModelTarget::padded(const batch::StepCapacity& need) const {
    const batch::CaptureOptions& options = steps_.options();
    if (!options.capture) return need;
    return batch::captured_capacity(need, room_.batch, options.most_tokens);
}

bool ModelTarget::may_record(const batch::StepCapacity& capacity) const {
    const batch::CaptureOptions& options = steps_.options();
    return options.capture && batch::is_captured(capacity, room_.batch, options.most_tokens);
}

bool ModelTarget::is_recorded(const batch::StepCapacity& capacity) const {
    return may_record(capacity) &&
           steps_.find(batch::capacity_key(capacity, room_.batch)) != nullptr;
}

Expected<void> ModelTarget::run_pass(const batch::BatchView& batch) {
    ESPALIER_ASSIGN_OR_RETURN(computed_, model_.forward(batch, storage_, room_.taps));
    return {};
}

Expected<void> ModelTarget::launch(const batch::HostBatch& batch) {
    drawn_ = reported_ = 0;
    recordings_ = steps_.count();
    pending_.reset();
    ESPALIER_RETURN_IF_ERROR(batch.check_tokens(info_.vocabulary));
    if (steps_.options().poison) ESPALIER_RETURN_IF_ERROR(model_.poison());
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view,
                              batch_.upload(model_.device().stream(), batch));
    tokens_ = view.cap_tokens;
    if (!may_record(batch.capacity)) return run_pass(view);
    pending_ = Pending{view, batch::capacity_key(batch.capacity, room_.batch)};
    return {};
}

Expected<void> ModelTarget::sample(const ops::SamplingBatchBuilder& draws) {
    CHECK(sampling_.has_value(), "draws before memory was reserved for them");
    const espalier::Stream stream = model_.device().stream();
    if (steps_.options().poison) ESPALIER_RETURN_IF_ERROR(sampling_->poison(stream));
    ESPALIER_ASSIGN_OR_RETURN(const ops::SamplingBatch batch, sampling_->upload(stream, draws));
    drawn_ = draws.nodes();
    reported_ = draws.alternatives();
    if (!pending_) {
        model_.sample(computed_.logits, batch);
        return {};
    }
    const auto [view, key] = *std::exchange(pending_, std::nullopt);
    CHECK(batch.nodes == view.cap_gather, "{} draws of {} rows of logits", batch.nodes,
          view.cap_gather);
    if (RecordedWork* const recording = steps_.find(key)) return recording->queue();
    return steps_.run_and_record(key, view.cap_tokens,
                                 [this, view = view, batch]() -> Expected<void> {
                                     ESPALIER_RETURN_IF_ERROR(run_pass(view));
                                     model_.sample(computed_.logits, batch);
                                     return {};
                                 });
}

Expected<StepResult> ModelTarget::wait() {
    if (pending_)  // sample() was not called
        ESPALIER_RETURN_IF_ERROR(run_pass(std::exchange(pending_, std::nullopt)->view));
    const auto draws = std::span(draws_).first(static_cast<std::size_t>(drawn_));
    const auto alternatives = std::span(alternatives_).first(static_cast<std::size_t>(reported_));
    const auto nonfinite = std::span(nonfinite_).first(static_cast<std::size_t>(tokens_));
    std::array<Transfer, 3> results{};
    if (drawn_ > 0) std::ranges::copy(sampling_->transfers(draws, alternatives), results.begin());
    results.back() = {nonfinite.data(), computed_.nonfinite, nonfinite.size()};
    ESPALIER_RETURN_IF_ERROR(model_.device().download_all(model_.device().stream(), results));
    return StepResult{.draws = draws,
                      .alternatives = alternatives,
                      .nonfinite = nonfinite,
                      .recorded = steps_.count() > recordings_};
}

Expected<void> ModelTarget::compact(std::span<const std::int64_t> source,
                                    std::span<const std::int64_t> destination) {
    const std::int64_t bucket = batch::token_bucket(std::ssize(source));
    const std::int64_t most = std::min(steps_.options().most_tokens, info_.limits.max_tokens);
    if (!steps_.options().capture || bucket == 0 || bucket > most)
        return model_.compact(source, destination, storage_);
    move_source_.assign(source.begin(), source.end());
    move_destination_.assign(destination.begin(), destination.end());
    // Pads stay where they are, each at a slot of its own on the null page.
    for (std::int64_t i = std::ssize(source); i < bucket; ++i)
        for (auto* slots : {&move_source_, &move_destination_})
            slots->push_back(i % cache::kPageTokens);
    ESPALIER_RETURN_IF_ERROR(model_.upload_moves(move_source_, move_destination_));
    const std::int64_t key = -bucket;  // steps have the positive ones
    if (RecordedWork* const recording = steps_.find(key)) return recording->queue();
    return steps_.run_and_record(key, bucket,
                                 [this, bucket] { return model_.run_moves(bucket, storage_); });
}

}  // namespace espalier::engine
