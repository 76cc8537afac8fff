// SPDX-License-Identifier: Apache-2.0
// The target model: a DeepSeek-V2/V3/Kimi-K2 forward pass over one ragged batch. Reads like the
// paper; every number is computed by an operation of the backend or by the attention library.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.hpp"
#include "base/op_context.hpp"
#include "batch/batch_view.hpp"
#include "cache/kv_storage.hpp"
#include "checkpoint/checkpoint.hpp"
#include "model/weights.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

struct ModelLimits {
    std::int64_t max_tokens = 2048;  // T of the largest batch
    std::int64_t max_gather = 256;   // G of the largest batch
    std::int64_t max_kv_len = 0;     // longest sequence; 0: the config's max_position_embeddings
};

class DeepseekModel {
  public:
    // Kernels, backend and device outlive the model.
    static Expected<DeepseekModel> create(const checkpoint::ModelConfig& config, Weights weights,
                                          const ops::Backend& backend, const mla::Kernels& kernels,
                                          Device& device, const ModelLimits& limits);

    DeepseekModel(DeepseekModel&&) noexcept;
    DeepseekModel& operator=(DeepseekModel&&) noexcept;
    ~DeepseekModel();

    const checkpoint::ModelConfig& config() const;
    const Weights& weights() const;
    const ModelLimits& limits() const;
    Device& device() const;
    mla::KvFormat kv_format()
        const;  // the cache it reads: f32 for f32 and f16 checkpoints, bf16 otherwise

    // Writes the batch's latents into the cache and returns logits [G, V] f32 of the gathered
    // tokens. The view is valid until the next forward. nonfinite() tells which tokens' cache
    // entries had to be flushed to zero.
    Expected<Matrix> forward(const batch::BatchView& batch, cache::KvStorage& kv);
    Matrix last_logits() const;
    std::span<const std::uint8_t> nonfinite() const;  // [T] of the last forward, over all layers

    // One draw per gathered token from the logits of the last forward.
    void sample(const ops::SamplingBatch& batch);

    // Moves cached slots in every target layer: slot destination[i] of the pool becomes slot
    // source[i], for i ascending (mla::CompactCall). A commit brings its paths together so.
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination, cache::KvStorage& kv);

  private:
    struct State;
    explicit DeepseekModel(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace espalier::model
