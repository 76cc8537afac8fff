// SPDX-License-Identifier: Apache-2.0
#include "batch/captured_steps.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "mla/types.hpp"

namespace espalier::batch {
namespace {

constexpr std::array<std::int64_t, 25> kBuckets = {
    1,   2,   4,   8,   16,  24,  32,  48,   64,   96,   128,  192, kCommonTokens,
    320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048};
// Buckets of decompressed tokens, which come in multiples of a page.
constexpr std::array<std::int64_t, 10> kPromptBuckets = {64,  128, 192,  256,  384,
                                                         512, 768, 1024, 1536, 2048};
constexpr std::int64_t kLeastBesidePrompts = 16;  // absorbed tokens, so that there are few pairs
constexpr std::int64_t kTokensOfPromptRow = 64;
constexpr std::int64_t kLeastSlots = 512;
// Decompressed rows × slots: as many as attention takes at once.
constexpr std::int64_t kMostPromptKeys = 65536;

// The smallest that holds `tokens`; 0: none does.
std::int64_t bucket_of(std::span<const std::int64_t> buckets, std::int64_t tokens) {
    const auto found = std::ranges::lower_bound(buckets, tokens);
    return found == buckets.end() ? 0 : *found;
}

std::int64_t logits_rows(const StepCapacity& need, std::int64_t absorbed) {
    return need.gather > kCommonTokens ? absorbed : std::min(absorbed, kCommonTokens);
}

std::int32_t as_int(std::int64_t value) { return static_cast<std::int32_t>(value); }

// Rows of a capacity whose decompressed tokens are padded already.
void pad_prompt_rows(const StepCapacity& need, const StepCapacity& most, StepCapacity& capacity) {
    const auto slots =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint32_t>(need.max_kv_len)));
    capacity.max_kv_len =
        as_int(std::min<std::int64_t>(std::max(slots, kLeastSlots), most.max_kv_len));
    const std::int64_t rows = std::min(capacity.decompressed_tokens / kTokensOfPromptRow,
                                       kMostPromptKeys / capacity.max_kv_len);
    capacity.decompressed_rows =
        as_int(std::min<std::int64_t>(std::max<std::int64_t>(rows, 1), most.decompressed_rows));
}

// A step whose rows are short must not pay for launches that only long ones need: where not all
// tokens can have the longest history, those with few splits are recorded apart.
std::int64_t padded_splits(const StepCapacity& need, const StepCapacity& most,
                           const StepCapacity& capacity) {
    const std::int64_t few = few_splits(most);
    const bool apart = need.total_splits <= few &&
                       mla::row_splits(capacity.absorbed_tokens, capacity.max_kv_len) > few &&
                       few > 0;
    return apart ? few : most.total_splits;
}

// None: not recorded.
std::optional<StepCapacity> padded(const StepCapacity& need, const StepCapacity& most,
                                   std::int64_t most_tokens) {
    const bool prompts = need.decompressed_tokens > 0;
    const std::int64_t absorbed = token_bucket(
        prompts ? std::max(need.absorbed_tokens, kLeastBesidePrompts) : need.absorbed_tokens);
    const std::int64_t decompressed =
        prompts ? bucket_of(kPromptBuckets, need.decompressed_tokens) : 0;
    if (absorbed == 0 || (prompts && decompressed == 0)) return std::nullopt;
    StepCapacity capacity = most;
    capacity.absorbed_tokens = std::min(absorbed, most.absorbed_tokens);
    capacity.decompressed_tokens = std::min(decompressed, most.decompressed_tokens);
    // A step has no more tokens of both forms than it may have of one.
    if (capacity.tokens() >
        std::min(most_tokens, std::max(most.absorbed_tokens, most.decompressed_tokens)))
        return std::nullopt;
    capacity.absorbed_rows = as_int(std::min<std::int64_t>(absorbed, most.absorbed_rows));
    capacity.decompressed_rows = 0;
    if (prompts) pad_prompt_rows(need, most, capacity);
    capacity.gather = std::min(logits_rows(need, absorbed), most.gather);
    const std::int64_t longest =
        prompts || need.max_q_len > 1 ? std::max(absorbed, decompressed) : 1;
    capacity.max_q_len = as_int(std::min<std::int64_t>(longest, most.max_q_len));
    capacity.total_splits = padded_splits(need, most, capacity);
    if (!capacity.check_holds(need)) return std::nullopt;
    return capacity;
}

}  // namespace

std::int64_t token_bucket(std::int64_t tokens) { return bucket_of(kBuckets, tokens); }

std::span<const std::int64_t> token_buckets_to(std::int64_t most) {
    if (most <= 0) return {};
    const auto last = std::ranges::lower_bound(kBuckets, std::min(most, kBuckets.back()));
    return std::span(kBuckets).first(static_cast<std::size_t>(last - kBuckets.begin()) + 1);
}

StepCapacity captured_capacity(const StepCapacity& need, const StepCapacity& most,
                               std::int64_t most_tokens) {
    return padded(need, most, most_tokens).value_or(need);
}

std::int64_t few_splits(const StepCapacity& most) { return most.total_splits / 10; }

bool is_captured(const StepCapacity& capacity, const StepCapacity& most, std::int64_t most_tokens) {
    return padded(capacity, most, most_tokens) == capacity;
}

std::int64_t capacity_key(const StepCapacity& captured, const StepCapacity& most) {
    constexpr int kSizeBits = 12, kSlotBits = 6;
    static_assert(kBuckets.back() < 1 << kSizeBits && kPromptBuckets.back() < 1 << kSizeBits);
    std::int64_t key = captured.absorbed_tokens;
    key = key << kSizeBits | captured.decompressed_tokens;
    key = key << kSizeBits | captured.gather;
    key = key << 1 | (captured.max_q_len == 1 ? 1 : 0);
    key = key << 1 | (captured.total_splits < most.total_splits ? 1 : 0);
    return key << kSlotBits | std::bit_width(static_cast<std::uint32_t>(captured.max_kv_len - 1));
}

RecordedWork* CapturedSteps::find(std::int64_t key) const {
    const auto found = std::ranges::find(steps_, key, &Step::key);
    return found == steps_.end() ? nullptr : found->recording.get();
}

CapturedSteps::Step& CapturedSteps::step_of(std::int64_t key) {
    const auto found = std::ranges::find(steps_, key, &Step::key);
    return found == steps_.end() ? steps_.emplace_back(Step{.key = key}) : *found;
}

Expected<void> CapturedSteps::run_and_record(std::int64_t key, std::int64_t tokens,
                                             Device::Work work) {
    ESPALIER_RETURN_IF_ERROR(work());
    Step& step = step_of(key);
    ++step.sightings;
    if (bytes_ >= options_.byte_limit) return {};
    if (tokens > kCommonTokens && step.sightings < options_.sightings) return {};
    ESPALIER_ASSIGN_OR_RETURN(step.recording, device_->record(device_->stream(), std::move(work)));
    bytes_ += step.recording->bytes();
    ++recorded_;
    return {};
}

}  // namespace espalier::batch
