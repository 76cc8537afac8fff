// SPDX-License-Identifier: Apache-2.0
#include "engine/model_target.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/for_what.hpp"

namespace espalier::engine {
namespace {

enum Mark : std::size_t { kPassBegins, kPassEnds, kDrawsEnd, kMarks };

}  // namespace

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
    ESPALIER_ASSIGN_OR_RETURN(auto marks, model.device().time_marks(kMarks));
    return std::unique_ptr<ModelTarget>(
        new ModelTarget(model, std::move(storage), std::move(marks), capture));
}

ModelTarget::ModelTarget(model::DeepseekModel& model, cache::KvStorage storage,
                         std::unique_ptr<TimeMarks> marks, const batch::CaptureOptions& capture)
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
      marks_(std::move(marks)),
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
        ESPALIER_RETURN_IF_ERROR(run(empty, &draws));
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

// In the order of the stream, or of the recording that is made of it: every replay takes the marks.
Expected<void> ModelTarget::compute(const batch::BatchView& batch,
                                    const ops::SamplingBatch* draws) {
    const espalier::Stream stream = model_.device().stream();
    ESPALIER_RETURN_IF_ERROR(marks_->set(stream, kPassBegins));
    ESPALIER_ASSIGN_OR_RETURN(computed_, model_.forward(batch, storage_, room_.taps));
    ESPALIER_RETURN_IF_ERROR(marks_->set(stream, kPassEnds));
    if (draws == nullptr) return {};
    model_.sample(computed_.logits, *draws);
    return marks_->set(stream, kDrawsEnd);
}

Expected<void> ModelTarget::run(const batch::HostBatch& batch,
                                const ops::SamplingBatchBuilder* draws) {
    CHECK(sampling_.has_value(), "a step before memory was reserved for it");
    drawn_ = reported_ = 0;
    recordings_ = steps_.count();
    const bool poison = steps_.options().poison;
    const espalier::Stream stream = model_.device().stream();
    ESPALIER_RETURN_IF_ERROR(batch.check_tokens(info_.vocabulary));
    if (poison) ESPALIER_RETURN_IF_ERROR(model_.poison());
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view, batch_.upload(stream, batch));
    tokens_ = view.cap_tokens;
    if (draws == nullptr) return compute(view, nullptr);
    if (poison) ESPALIER_RETURN_IF_ERROR(sampling_->poison(stream));
    ESPALIER_ASSIGN_OR_RETURN(const ops::SamplingBatch asked, sampling_->upload(stream, *draws));
    CHECK(asked.nodes == view.cap_gather, "{} draws of {} rows of logits", asked.nodes,
          view.cap_gather);
    drawn_ = draws->nodes();
    reported_ = draws->alternatives();
    if (!may_record(batch.capacity)) return compute(view, &asked);
    const std::int64_t key = batch::capacity_key(batch.capacity, room_.batch);
    if (RecordedWork* const recording = steps_.find(key)) return recording->queue();
    return steps_.run_and_record(key, view.cap_tokens,
                                 [this, view, asked] { return compute(view, &asked); });
}

Expected<DeviceTimes> ModelTarget::times() const {
    const auto nanoseconds = [](double seconds) {
        return static_cast<schedule::Time>(std::llround(seconds * 1e9));
    };
    DeviceTimes times;
    ESPALIER_ASSIGN_OR_RETURN(const double model, marks_->seconds(kPassBegins, kPassEnds));
    times.model = nanoseconds(model);
    if (drawn_ == 0) return times;
    ESPALIER_ASSIGN_OR_RETURN(const double sampling, marks_->seconds(kPassEnds, kDrawsEnd));
    times.sampling = nanoseconds(sampling);
    return times;
}

Expected<StepResult> ModelTarget::wait() {
    const auto draws = std::span(draws_).first(static_cast<std::size_t>(drawn_));
    const auto alternatives = std::span(alternatives_).first(static_cast<std::size_t>(reported_));
    const auto nonfinite = std::span(nonfinite_).first(static_cast<std::size_t>(tokens_));
    std::array<Transfer, 3> results{};
    if (drawn_ > 0) std::ranges::copy(sampling_->transfers(draws, alternatives), results.begin());
    results.back() = {nonfinite.data(), computed_.nonfinite, nonfinite.size()};
    ESPALIER_RETURN_IF_ERROR(model_.device().download_all(model_.device().stream(), results));
    ESPALIER_ASSIGN_OR_RETURN(const DeviceTimes took, times());
    return StepResult{.draws = draws,
                      .alternatives = alternatives,
                      .nonfinite = nonfinite,
                      .recorded = steps_.count() > recordings_,
                      .times = took};
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
