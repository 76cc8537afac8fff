// SPDX-License-Identifier: Apache-2.0
#include "batch/captured_steps.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace espalier::batch {
namespace {

constexpr std::array<std::int64_t, 13> kBuckets = {
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, kMostCapturedTokens};

}  // namespace

std::int64_t token_bucket(std::int64_t tokens) {
    const auto found = std::ranges::lower_bound(kBuckets, tokens);
    return found == kBuckets.end() ? 0 : *found;
}

std::span<const std::int64_t> token_buckets_to(std::int64_t most) {
    if (most <= 0) return {};
    const auto last = std::ranges::lower_bound(kBuckets, std::min(most, kMostCapturedTokens));
    return std::span(kBuckets).first(static_cast<std::size_t>(last - kBuckets.begin()) + 1);
}

StepCapacity captured_capacity(const StepCapacity& need, const StepCapacity& most) {
    const std::int64_t bucket = token_bucket(need.absorbed_tokens);
    if (bucket == 0 || need.decompressed_tokens > 0) return need;
    StepCapacity capacity = most;
    capacity.decompressed_tokens = 0;
    capacity.decompressed_rows = 0;
    capacity.absorbed_tokens = std::min(bucket, most.absorbed_tokens);
    capacity.absorbed_rows =
        static_cast<std::int32_t>(std::min<std::int64_t>(bucket, most.absorbed_rows));
    capacity.gather = std::min(bucket, most.gather);
    capacity.max_q_len = static_cast<std::int32_t>(std::min<std::int64_t>(bucket, most.max_q_len));
    return capacity;
}

bool is_captured(const StepCapacity& capacity, const StepCapacity& most) {
    return capacity.decompressed_tokens == 0 && token_bucket(capacity.absorbed_tokens) != 0 &&
           capacity == captured_capacity(capacity, most);
}

RecordedWork* CapturedSteps::find(std::int64_t key) {
    const auto found = std::ranges::find(steps_, key, &Step::key);
    return found == steps_.end() ? nullptr : found->recording.get();
}

Expected<void> CapturedSteps::run_and_record(std::int64_t key, Device::Work work) {
    ESPALIER_RETURN_IF_ERROR(work());
    if (bytes_ >= options_.byte_limit) return {};
    ESPALIER_ASSIGN_OR_RETURN(auto recording, device_->record(device_->stream(), std::move(work)));
    bytes_ += recording->bytes();
    steps_.push_back({key, std::move(recording)});
    return {};
}

}  // namespace espalier::batch
