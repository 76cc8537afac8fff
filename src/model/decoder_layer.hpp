// SPDX-License-Identifier: Apache-2.0
// One DeepSeek decoder layer over a ragged batch: latent attention, then a dense MLP or a mixture
// of experts. The target runs its layers through this, and so does a draft model, which also needs
// the KV half alone: write_kv() fills a cache from known hidden states without attending.
//
// A layer says which calls of the backend's program (ops/layer_program.hpp) come in which order.
// The program decides what a device runs as one kernel, and what beside what.
#pragma once

#include <cstdint>
#include <optional>

#include "base/error.hpp"
#include "base/op_context.hpp"
#include "batch/batch_view.hpp"
#include "cache/kv_storage.hpp"
#include "checkpoint/model_config.hpp"
#include "mla/contract.hpp"
#include "model/activations.hpp"
#include "model/weights.hpp"
#include "ops/layer_program.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

// Parameters of the indexers of one model.
struct IndexRule {
    std::int32_t heads = 0;
    std::int64_t top_k = 0;
    float scale = 0.0f;         // of a query's product with a key
    float weight_scale = 0.0f;  // of a head's weight
    bool interleaved = false;   // pairs of rope
};

// Parameters that the layers of one model have in common.
struct DecoderRule {
    explicit DecoderRule(const checkpoint::ModelConfig& config, const Shard& shard = {});

    std::int32_t heads = 0;  // of this rank
    HeadDims head_dims;
    float epsilon = 0.0f;        // of the norms before attention and MLP, and of the final one
    float softmax_scale = 0.0f;  // YaRN applied
    ops::RopeRule rope;
    ops::QueryScaling scaling;
    ops::RouterRule router;
    std::optional<IndexRule> index;
    std::int32_t first_slot = 0;  // of its KV, as in mla::RaggedRows
};

// Device parts that a pass runs on. All borrowed.
struct DecoderParts {
    const DecoderRule& rule;
    const ops::Backend& backend;
    const mla::Kernels& kernels;
    Activations& activations;
    OpContext& context;
};

// One layer of a pass. Before the first layer: the batch's hidden states are in
// activations.residual [T, hidden], the angles of its positions in activations.cos_sin, and
// activations.nonfinite [T] is cleared.
class DecoderLayer {
  public:
    DecoderLayer(const DecoderParts& parts, const LayerWeights& weights)
        : rule_(parts.rule),
          backend_(parts.backend),
          program_(parts.backend.program()),
          kernels_(parts.kernels),
          a_(parts.activations),
          context_(parts.context),
          weights_(weights) {}

    // residual: the layer norms its input itself. normed: the layer before left the norm in
    // activations.attention_input (`next`).
    enum class Input : std::uint8_t { residual, normed };

    // The KV half: norm → kv_a → norm, rope → the batch's slots of the cache. Leaves the input's
    // norm in activations.attention_input; a layer without input_norm finds it there.
    Expected<void> write_kv(const batch::BatchView& batch, const cache::LayerPages& kv) const;
    // Once for all layers, where activations.attention_plan is: from the batch's lengths.
    Expected<void> plan_attention(const batch::BatchView& batch, const cache::LayerPages& kv) const;
    // The rest, after write_kv of the same layer: residual += attention, residual +=
    // MLP(norm(residual)).
    Expected<void> finish(const batch::BatchView& batch, const cache::LayerPages& kv) const;
    // write_kv and finish of the same batch. Leaves the norm with which layer `next` begins (null:
    // none) in activations.attention_input.
    Expected<void> run(const batch::BatchView& batch, const cache::LayerPages& kv, Input given,
                       const LayerWeights* next = nullptr) const;

  private:
    Matrix normed_input(std::int64_t tokens, Input given) const;
    // The layer's normed input in f32, where something reads it.
    Matrix exact_input(const LayerWeights& weights, std::int64_t tokens) const;
    ops::IndexKeysCall index_keys_call(const batch::BatchView& batch,
                                       const cache::LayerPages& kv) const;
    ops::IndexCall index_call(const batch::BatchView& batch, const cache::LayerPages& kv) const;
    // True if some absorbed token may see more keys than the indexer chooses.
    bool chooses(const batch::BatchView& batch) const;
    ops::KeysCall keys_call(const batch::BatchView& batch, const cache::LayerPages& kv) const;
    ops::AttentionCall attention_call(const batch::BatchView& batch,
                                      const cache::LayerPages& kv) const;
    mla::AbsorbedCall absorbed_call(const batch::BatchView& batch,
                                    const cache::LayerPages& kv) const;
    mla::DecompressedCall decompressed_call(const batch::BatchView& batch,
                                            const cache::LayerPages& kv) const;
    ops::FeedForward network(const FeedForwardWeights& weights, std::int64_t tokens,
                             const Matrix& sums) const;
    Matrix sums_of(const Weight& w, std::int64_t tokens, const Matrix& room) const;
    ops::RowNorm post_attention_norm(std::int64_t tokens) const;
    void mlp(const batch::BatchView& batch, const ops::Terms& attention,
             const LayerWeights* next) const;
    ops::Terms mixture_of_experts(const batch::BatchView& batch, const ops::Terms& attention) const;

    const DecoderRule& rule_;
    const ops::Backend& backend_;
    const ops::LayerProgram& program_;
    const mla::Kernels& kernels_;
    Activations& a_;
    OpContext& context_;
    const LayerWeights& weights_;
};

}  // namespace espalier::model
