// SPDX-License-Identifier: Apache-2.0
// The target model: a DeepSeek-V2/V3/Kimi-K2 forward pass over one ragged batch. Reads like the
// paper; every number is computed by an operation of the backend or by the attention library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/error.hpp"
#include "base/op_context.hpp"
#include "batch/batch_view.hpp"
#include "cache/kv_storage.hpp"
#include "checkpoint/checkpoint.hpp"
#include "model/taps.hpp"
#include "model/weights.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

struct ModelLimits {
    std::int64_t max_tokens = 2048;  // T of the largest batch
    std::int64_t max_gather = 256;   // G of the largest batch
    std::int64_t max_kv_len = 0;     // longest sequence; 0: the config's max_position_embeddings
    std::int32_t max_rows = 0;       // of each form; 0: as many as tokens
    // The splits of a batch's absorbed rows (mla::row_splits), where scratch for all rows at their
    // longest would be too much: 130 GB for DeepSeek-V3. 0: as many as they may have.
    std::int64_t max_splits = 0;
};

struct ModelSettings {
    ModelLimits limits;
    // Format of the cache. None: f32 for f32 and f16 checkpoints, bf16 for all others, which may
    // also have fp8_token (512 e4m3 with a scale per slot, the rotary part bf16) and fp8_tensor.
    std::optional<mla::KvFormat> kv_format = {};
    // Ranks that have the other parts of the model, as many as its weights' shard says; they
    // outlive it. Null: the weights are whole.
    parallel::Ranks* ranks = nullptr;
};

// Device memory of a model of these limits beside weights and cache.
struct StepMemory {
    std::size_t activations = 0;
    std::size_t scratch = 0;         // of one operation
    std::size_t attention_plan = 0;  // of a step

    std::size_t total() const { return activations + scratch + attention_plan; }
};
std::int32_t index_heads(const checkpoint::ModelConfig& config);  // 0: no indexer
// act: the type of the products' inputs.
StepMemory step_memory(const checkpoint::ModelConfig& config, DType act,
                       const ops::Backend& backend, const mla::Kernels& kernels, int workers,
                       const ModelLimits& limits, const Shard& shard = {});

// Views into the model's own memory on its device, valid until the next forward.
struct ForwardResult {
    Matrix logits;                            // [G, V] f32, of the gathered tokens
    const std::uint8_t* nonfinite = nullptr;  // [T]: 1 where a cache entry was flushed to zero
};

class DeepseekModel {
  public:
    // Kernels, backend and device outlive the model.
    static Expected<DeepseekModel> create(const checkpoint::ModelConfig& config, Weights weights,
                                          const ops::Backend& backend, const mla::Kernels& kernels,
                                          Device& device, const ModelSettings& settings);

    DeepseekModel(DeepseekModel&&) noexcept;
    DeepseekModel& operator=(DeepseekModel&&) noexcept;
    ~DeepseekModel();

    const checkpoint::ModelConfig& config() const;
    const Weights& weights() const;
    const ModelLimits& limits() const;
    Device& device() const;
    const cache::KvLayout& kv_layout() const;  // of the cache that it reads and writes

    // Writes the batch's latents into the cache, the hidden states that are asked for into the
    // taps, and computes the gathered tokens' logits.
    Expected<ForwardResult> forward(const batch::BatchView& batch, cache::KvStorage& kv,
                                    const Taps& taps = {});

    // Draws a token for every row of a forward's logits.
    void sample(const Matrix& logits, const ops::SamplingBatch& batch);

    // Makes a tree's accepted path contiguous in every target layer: slot destination[i] of the
    // pool gets slot source[i], for i ascending (mla::CompactCall).
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination, cache::KvStorage& kv);
    // compact() in two parts: upload_moves() brings the indices, run_moves() can be recorded.
    Expected<void> upload_moves(std::span<const std::int64_t> source,
                                std::span<const std::int64_t> destination);
    Expected<void> run_moves(std::int64_t moves, cache::KvStorage& kv);

    // For tests: 0xFF in everything that earlier steps may have left and no step may read.
    Expected<void> poison();

  private:
    struct State;
    explicit DeepseekModel(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace espalier::model
