// SPDX-License-Identifier: Apache-2.0
// The model's weights in a backend's layout, and how they are read from a checkpoint. Names of
// fields follow the tensors of the published checkpoints; shapes are [outputs, inputs].
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/device_vector.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "linalg/weight.hpp"
#include "mla/types.hpp"
#include "model/cost.hpp"
#include "model/mapped_experts.hpp"
#include "model/shard_plan.hpp"
#include "model/weight_shelf.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

using linalg::Weight;

// In the mapped file where the device can read it there and rows are aligned, in `copy` otherwise.
struct Embedding {
    ops::EmbeddingTable table;
    Buffer copy;
};

struct IndexerWeights {
    Weight q;             // [heads · width, q_lora] wq_b
    Weight k;             // [width, hidden] wk
    DeviceVector k_norm;  // [width] weight and bias of a layer norm
    DeviceVector k_bias;
    Weight weights;  // [heads, hidden] f32 weights_proj
};

struct AttentionWeights {
    Weight q_a;             // [q_lora, hidden]; empty without q_lora
    DeviceVector q_a_norm;  // [q_lora]; empty without q_lora
    Weight q;               // [H·(nope + 64), q_lora] q_b_proj, or [H·(nope + 64), hidden] q_proj
    Weight kv_a;            // [latent + 64, hidden] kv_a_proj_with_mqa
    DeviceVector kv_a_norm;  // [latent]
    // kv_b is kept for each form the way it is read: its key part twice (0.08 % of DeepSeek-V3's
    // weights, 1.4 % of those that one token uses), where the backend joins up-projections its
    // value part too.
    Weight absorb_key;  // stack of H: [latent, nope], kv_b's key part transposed: q_nope → latent
    Weight
        up_key;  // stack of H: [nope, latent], kv_b's key part: latent → k_nope; empty where joined
    Weight up_value;  // stack of H: [value, latent], kv_b's value part: latent → v
    Weight up_rows;   // joined, stack of H: [nope + value, latent] bf16 rows: up_key, then up_value
    Weight o;         // [hidden, H·value]
    std::optional<IndexerWeights> indexer;  // of sparse attention; a layer that shares has none
    float kv_scale = 1.0f;  // of an fp8_tensor cache: the checkpoint's, where it has one

    // A layer's pages with the scale that its rows are stored by.
    mla::KvPages scaled(mla::KvPages pages) const {
        if (pages.format == mla::KvFormat::fp8_tensor) pages.scale = kv_scale;
        return pages;
    }

    // The up-projections as decompressed attention reads them.
    struct UpProjections {
        linalg::WeightView key;
        linalg::WeightView value;
    };
    UpProjections up() const;
};

struct FeedForwardWeights {
    Weight gate_up;  // [2·I, hidden], gate first
    Weight down;     // [hidden, I]
};

struct MoeWeights {
    Weight router;      // [experts, hidden] f32
    DeviceVector bias;  // [experts] e_score_correction_bias; empty: none
    Weight gate_up;     // stack of experts: [2·I, hidden]
    Weight down;        // stack of experts: [hidden, I]
    std::optional<FeedForwardWeights> shared;
    std::optional<MappedExperts> mapped = {};  // gate_up and down are read ahead from disk
    // On ranks the stacks have the experts that are here, ascending.
    std::shared_ptr<const ops::ExpertDeal> deal = {};
};

struct LayerWeights {
    DeviceVector input_norm;  // [hidden]; empty: the layer is handed its normed input
    AttentionWeights attention;
    DeviceVector post_attention_norm;         // [hidden]
    std::optional<FeedForwardWeights> dense;  // exactly one of dense and moe
    std::optional<MoeWeights> moe;
};

// One multi-token-prediction layer. Embedding and head are the target's own when the checkpoint
// does not repeat them.
struct MtpWeights {
    DeviceVector embed_norm;   // enorm
    DeviceVector hidden_norm;  // hnorm
    Weight eh_proj;            // [hidden, 2·hidden]
    LayerWeights layer;
    DeviceVector head_norm;  // shared_head.norm
    std::optional<Embedding> embedding;
    std::optional<Weight> head;
};

// Called with bytes done and bytes in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct LoadOptions {
    bool mtp = false;  // the checkpoint's multi-token-prediction layers, for a drafter
    // Projections become int8 or int4 in groups of 32 inputs; embedding, router, norms and kv_b,
    // which is read along both axes, keep their numbers (FP8 of kv_b rounded to bf16).
    std::optional<WeightCode> rounding = {};
    // The head becomes int8 likewise, and those of MTP layers; an embedding that is tied to it
    // keeps its numbers.
    std::optional<WeightCode> head_rounding = {};
    // As which products with INT8 and INT4 codes read their inputs; MTP layers keep their own.
    NumberMode activations = NumberMode::own;
    // Weights are taken from it, or left there, but for a rounded head; not with rounding, nor on a
    // device that cannot read the host's memory. Null: everything is packed.
    std::shared_ptr<WeightShelf> shelf = {};
    bool mmap_experts = false;  // routed experts of a packed file are read ahead as steps need them
    Shard shard = {};           // the part that is loaded
    Progress progress = {};
};

struct Weights {
    Embedding embedding;
    std::vector<LayerWeights> layers;
    DeviceVector final_norm;
    Weight head;  // packed from embed_tokens when tied
    std::vector<MtpWeights> mtp;
    WeightFormat format;             // of o_proj: its input() is the activation dtype of all
    Shard shard;                     // the part of the model that these are
    std::uint64_t packed_bytes = 0;  // packed while loading; what was mapped is not
    std::shared_ptr<ExpertReads> expert_reads;  // with LoadOptions::mmap_experts

    // Formats of the matrices that a step reads.
    StepFormats formats() const;

    // Into the device's memory, in the backend's layout.
    static Expected<Weights> load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                  Device& device, const ops::Backend& backend,
                                  const LoadOptions& options = {});

  private:
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;  // keeps the embedding mapped
    std::shared_ptr<WeightShelf> shelf_;                        // and weights of a packed file
};

}  // namespace espalier::model
