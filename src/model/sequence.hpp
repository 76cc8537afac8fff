// SPDX-License-Identifier: Apache-2.0
// One sequence in a paged cache of its own, fed to the model chunk by chunk. The form of each
// position follows the form-by-place rule, so any chunking leaves the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "batch/device_batch.hpp"
#include "cache/kv_storage.hpp"
#include "model/deepseek.hpp"

namespace espalier::model {

// Results of feeding tokens.
struct Fed {
    Matrix logits;           // [logits asked for, V] f32; as in ForwardResult
    bool nonfinite = false;  // a token's numbers were not finite: its chunk does not count
};

class Sequence {
  public:
    // A cache for max_tokens; prompt_tokens decides which positions are decompressed.
    static Expected<Sequence> create(const DeepseekModel& model, std::int64_t prompt_tokens,
                                     std::int64_t max_tokens);

    // Feeds tokens after those already there, in batches of at most max_chunk (0: the model's
    // limits), up to the first that computes something not finite. logits: how many of the last
    // tokens want theirs, all of one batch.
    Expected<Fed> feed(DeepseekModel& model, std::span<const std::int32_t> tokens,
                       std::int64_t logits, std::int64_t max_chunk = 0);

    // The forward pass of these tokens at this place, recorded; playing it leaves the length as it
    // is. Good until tokens are fed; the model outlives it.
    Expected<std::unique_ptr<RecordedWork>> record(DeepseekModel& model,
                                                   std::span<const std::int32_t> tokens,
                                                   std::int64_t logits);

    std::int64_t length() const { return length_; }
    // Positions of the prompt below it take the decompressed form.
    std::int64_t decompressed_below() const { return decompressed_below_; }
    // Moves the end: tokens after it are forgotten, slots before it are taken as written (a
    // benchmark fills them).
    void set_length(std::int64_t length) { length_ = length; }
    // Slot of a position's latent in the storage.
    std::int64_t slot_of(std::int64_t position) const;
    std::span<const std::int32_t> block_table() const { return block_table_; }
    cache::KvStorage& storage() { return storage_; }

  private:
    Sequence(Device& device, cache::KvStorage storage, const batch::StepCapacity& most);
    // Tokens of the next batch at most.
    std::int64_t next_chunk(std::int64_t most) const;
    // The tokens as a batch on the device.
    Expected<batch::BatchView> lay_out(DeepseekModel& model, std::span<const std::int32_t> tokens,
                                       std::int64_t logits);
    Expected<Fed> step(DeepseekModel& model, std::span<const std::int32_t> tokens,
                       std::int64_t logits);

    cache::KvStorage storage_;
    std::vector<std::int32_t> block_table_;
    batch::BatchBuilder builder_;
    batch::DeviceBatch batch_;
    std::vector<std::uint8_t> flags_;  // of the last step's tokens
    std::int64_t decompressed_below_ = 0;
    std::int64_t max_chunk_ = 0;
    std::int64_t max_absorbed_ = 0;  // of a chunk: their partial results fit the model's limit
    std::int64_t length_ = 0;
};

}  // namespace espalier::model
