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

// Whether steps are recorded, and with how much memory of the device.
struct CaptureOptions {
    bool capture = false;  // false: every step is queued operation by operation
    std::size_t byte_limit = std::size_t{1} << 30;
    // Batches of up to this many tokens are recorded before the first step, others when they come.
    std::int64_t ahead = 64;
    // For tests: before each step everything that it may not read is 0xFF (pads, gaps, what earlier
    // steps left), so that a kernel that does read it shows.
    bool poison = false;
};

// The largest batch that is recorded: from here on the work of its operations hides their launches.
inline constexpr std::int64_t kMostCapturedTokens = 256;

// The smallest of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192 and 256 that holds `tokens`;
// 0: none does. At most twice as many up to 16, half as many again beyond.
std::int64_t token_bucket(std::int64_t tokens);
// Those up to the one that holds `most`, or to the last; none for 0.
std::span<const std::int64_t> token_buckets_to(std::int64_t most);

// What a batch of this need is padded to: a bucket of absorbed tokens with as many rows and rows of
// logits, as far as `most` goes; all else as in `most`. A need that is not recorded stays itself.
StepCapacity captured_capacity(const StepCapacity& need, const StepCapacity& most);
// Whether a batch was padded so.
bool is_captured(const StepCapacity& capacity, const StepCapacity& most);

class CapturedSteps {
  public:
    // The device outlives it.
    CapturedSteps(Device& device, const CaptureOptions& options)
        : device_(&device), options_(options) {}

    const CaptureOptions& options() const { return options_; }
    // The recording of this key; null: there is none.
    RecordedWork* find(std::int64_t key);
    // Queues the work operation by operation, and records it for the next time (a capture must not
    // be the first to load kernels) unless the recordings have reached their limit. What the work
    // borrows lives as long as this and has the same address for the same key.
    Expected<void> run_and_record(std::int64_t key, Device::Work work);

    std::size_t bytes() const { return bytes_; }
    std::int64_t count() const { return std::ssize(steps_); }

  private:
    struct Step {
        std::int64_t key = 0;
        std::unique_ptr<RecordedWork> recording;
    };

    Device* device_;
    CaptureOptions options_;
    std::vector<Step> steps_;
    std::size_t bytes_ = 0;
};

}  // namespace espalier::batch
