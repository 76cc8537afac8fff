// SPDX-License-Identifier: Apache-2.0
// A step as benchmarks time it: sequences of one length in a cache of noise, and behind each a
// window of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "batch/device_batch.hpp"
#include "cache/kv_storage.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::cli {

class WindowBatch {
  public:
    struct Shape {
        std::int64_t sequences = 1;
        std::int64_t depth = 0;   // cached tokens of each
        std::int64_t window = 1;  // tokens of each
    };
    // tokens: the windows of all sequences, one after another.
    static Expected<WindowBatch> create(runtime::LoadedModel& loaded, const Shape& shape,
                                        std::vector<std::int32_t> tokens);

    // Uploads the batch, runs it and waits; the last token of every window has logits.
    Expected<void> forward();
    // The forward pass alone as a recording, which must not outlive this object.
    Expected<std::unique_ptr<RecordedWork>> record();

  private:
    WindowBatch(runtime::LoadedModel& loaded, const Shape& shape, cache::KvStorage storage);
    Expected<void> fill_cache();
    Expected<batch::BatchView> upload();

    runtime::LoadedModel& loaded_;
    Shape shape_;
    std::int64_t pages_ = 0;  // of a sequence
    cache::KvStorage storage_;
    std::vector<std::int32_t> tokens_;
    std::vector<std::int32_t> block_tables_;  // [sequences][pages]
    batch::BatchBuilder builder_;
    batch::DeviceBatch batch_;
};

}  // namespace espalier::cli
