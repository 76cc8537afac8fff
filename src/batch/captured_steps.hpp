// SPDX-License-Identifier: Apache-2.0
// Steps that are recorded once and played again (Device::record): on a GPU one launch in place of
// hundreds. A recording belongs to a capacity, and capacities come in few sizes: a batch is padded
// to the next one. Used by the engine's target and by draft models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/device.hpp"
#include "base/error.hpp"
#include "batch/step_capacity.hpp"

namespace espalier::batch {

// Up to this many tokens, batches come in few sizes and often, whatever the model.
inline constexpr std::int64_t kCommonTokens = 256;

// Switch and memory limit for recording steps.
struct CaptureOptions {
    bool capture = false;  // false: every step is queued operation by operation
    std::size_t byte_limit = std::size_t{1} << 30;
    // Batches of up to this many tokens are recorded before the first step, others when they come.
    std::int64_t ahead = kCommonTokens;
    // The largest batch that is recorded: from there on the work of its operations hides their
    // launches.
    std::int64_t most_tokens = kCommonTokens;
    // One of more than kCommonTokens is recorded when it comes for this many-th time. Such batches
    // come in hundreds of sizes, and a recording takes as long as several steps.
    std::int32_t sightings = 8;
    // For tests: before each step everything that it may not read is 0xFF (pads, gaps, what earlier
    // steps left), so that a kernel that does read it shows.
    bool poison = false;
};

// The smallest of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, then eighths of a power of two
// up to 512 and quarters of one up to 2,048, that holds `tokens`; 0: none does. At most twice as
// many up to 16, half as many again up to kCommonTokens, a quarter beyond.
std::int64_t token_bucket(std::int64_t tokens);
// Those up to the one that holds `most`, or to the last; none for 0.
std::span<const std::int64_t> token_buckets_to(std::int64_t most);

// Number of splits that attention does in one launch, where `most` is what a step of an engine has
// (2^17 partial results: 16 launches); 0: these are not counted. A launch that rows leave nothing
// to do costs 1.5 to 2 µs, in each layer.
std::int64_t few_splits(const StepCapacity& most);
// Capacity that a batch of this need is padded to, as far as `most` goes:
// - absorbed tokens alone: to their bucket, with as many rows and, up to kCommonTokens, rows of
//   logits; all else as in `most`, so that the tokens tell two such batches apart, and whether all
//   rows have one: attention has a faster kernel for short rows, if it knows of no others. And
//   whether few_splits are enough.
// - with decompressed tokens: both parts to a bucket. Attention makes keys and values at so many
//   places as decompressed rows × longest sequence, so these two are kept small: a row for 64
//   tokens, a power of two of slots.
// A need that is not recorded stays itself. most_tokens: of CaptureOptions.
StepCapacity captured_capacity(const StepCapacity& need, const StepCapacity& most,
                               std::int64_t most_tokens);
// True if a batch was padded so.
bool is_captured(const StepCapacity& capacity, const StepCapacity& most, std::int64_t most_tokens);
// Tells captured capacities of one `most` apart; positive.
std::int64_t capacity_key(const StepCapacity& captured, const StepCapacity& most);

class CapturedSteps {
  public:
    // The device outlives it.
    CapturedSteps(Device& device, const CaptureOptions& options)
        : device_(&device), options_(options) {}

    const CaptureOptions& options() const { return options_; }
    // The recording of this key; null: there is none.
    RecordedWork* find(std::int64_t key) const;
    // Queues the work operation by operation, and records it for the next time (a capture must not
    // be the first to load kernels) unless the recordings have reached their limit or a batch of so
    // many tokens has not come often enough. What the work borrows lives as long as this and has
    // the same address for the same key.
    Expected<void> run_and_record(std::int64_t key, std::int64_t tokens, Device::Work work);

    std::size_t bytes() const { return bytes_; }
    std::int64_t count() const { return recorded_; }

  private:
    struct Step {
        std::int64_t key = 0;
        std::unique_ptr<RecordedWork> recording = {};  // null: seen only
        std::int32_t sightings = 0;
    };

    Step& step_of(std::int64_t key);

    Device* device_;
    CaptureOptions options_;
    std::vector<Step> steps_;
    std::size_t bytes_ = 0;
    std::int64_t recorded_ = 0;
};

}  // namespace espalier::batch
