// SPDX-License-Identifier: Apache-2.0
// The model's weights in packed form, and how they are read from a checkpoint. Names of fields
// follow the tensors of the published checkpoints; shapes are [outputs, inputs].
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "linalg/packed.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

using linalg::PackedMatrix;

struct AttentionWeights {
    PackedMatrix q_a;              // [q_lora, hidden]; empty without q_lora
    std::vector<float> q_a_norm;   // [q_lora]; empty without q_lora
    PackedMatrix q;                // [H·192, q_lora] q_b_proj, or [H·192, hidden] q_proj
    PackedMatrix kv_a;             // [576, hidden] kv_a_proj_with_mqa
    std::vector<float> kv_a_norm;  // [512]
    // kv_b's key part is kept twice, for each form the way it is read (1 % of a DeepSeek-V3).
    PackedMatrix absorb_key;  // stack of H: [512, 128], kv_b's key part transposed: q_nope → latent
    PackedMatrix up_key;      // stack of H: [128, 512], kv_b's key part: latent → k_nope
    PackedMatrix up_value;    // stack of H: [128, 512], kv_b's value part: latent → v
    PackedMatrix o;           // [hidden, H·128]
};

struct FeedForwardWeights {
    PackedMatrix gate_up;  // [2·I, hidden], gate first
    PackedMatrix down;     // [hidden, I]
};

struct MoeWeights {
    PackedMatrix router;      // [experts, hidden] f32
    std::vector<float> bias;  // [experts] e_score_correction_bias; empty: none
    PackedMatrix gate_up;     // stack of experts: [2·I, hidden]
    PackedMatrix down;        // stack of experts: [hidden, I]
    std::optional<FeedForwardWeights> shared;
};

struct LayerWeights {
    std::vector<float> input_norm;  // [hidden]
    AttentionWeights attention;
    std::vector<float> post_attention_norm;   // [hidden]
    std::optional<FeedForwardWeights> dense;  // exactly one of dense and moe
    std::optional<MoeWeights> moe;
};

// One multi-token-prediction layer. Embedding and head are the target's own when the checkpoint
// does not repeat them.
struct MtpWeights {
    std::vector<float> embed_norm;   // enorm
    std::vector<float> hidden_norm;  // hnorm
    PackedMatrix eh_proj;            // [hidden, 2·hidden]
    LayerWeights layer;
    std::vector<float> head_norm;  // shared_head.norm
    std::optional<ops::EmbeddingTable> embedding;
    Buffer embedding_copy;  // only where the file does not align the rows
    std::optional<PackedMatrix> head;
};

struct Weights {
    ops::EmbeddingTable embedding;  // in the mapped file
    std::vector<LayerWeights> layers;
    std::vector<float> final_norm;
    PackedMatrix head;  // packed from embed_tokens when tied
    std::vector<MtpWeights> mtp;
    DType dtype = DType::bf16;  // of the products: decides the activation dtype

    // Called with bytes done and bytes in all.
    using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
    static Expected<Weights> load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                  CpuDevice& device, const Progress& progress = {});

  private:
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;  // keeps the embedding mapped
    Buffer embedding_copy_;  // only where the file does not align the rows
};

}  // namespace espalier::model
