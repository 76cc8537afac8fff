// SPDX-License-Identifier: Apache-2.0
// Which tensors make a model, by the names DeepSeek publishes. One function per block of the
// network.
#include "model/weights.hpp"

#include <string>
#include <utility>

#include "checkpoint/tensor_check.hpp"
#include "mla/contract.hpp"
#include "model/weight_reader.hpp"

namespace espalier::model {
namespace {

using checkpoint::ModelConfig;
using linalg::WeightSource;

// kv_b holds, head after head, 128 rows that make k_nope and 128 rows that make v.
Expected<void> load_kv_b(WeightReader& reader, const std::string& name, std::int64_t heads,
                         AttentionWeights& to) {
    constexpr std::int64_t kRows = mla::kNope + mla::kValue;
    ESPALIER_ASSIGN_OR_RETURN(const StoredMatrix kv_b,
                              reader.stored(name, heads * kRows, mla::kLatent));
    std::vector<std::vector<WeightSource>> absorb, key, value;
    for (std::int64_t head = 0; head < heads; ++head) {
        absorb.push_back({kv_b.rows(head * kRows, mla::kNope, true)});
        key.push_back({kv_b.rows(head * kRows, mla::kNope)});
        value.push_back({kv_b.rows(head * kRows + mla::kNope, mla::kValue)});
    }
    ESPALIER_ASSIGN_OR_RETURN(to.absorb_key, reader.pack(absorb));
    ESPALIER_ASSIGN_OR_RETURN(to.up_key, reader.pack(key));
    ESPALIER_ASSIGN_OR_RETURN(to.up_value, reader.pack(value));
    reader.release(kv_b.stored.weights);
    return {};
}

Expected<AttentionWeights> load_attention(WeightReader& reader, const ModelConfig& config,
                                          const std::string& name) {
    const std::int64_t heads = config.num_attention_heads;
    const std::int64_t q_lora = config.q_lora_rank;
    AttentionWeights to;
    if (q_lora > 0) {
        ESPALIER_ASSIGN_OR_RETURN(to.q_a,
                                  reader.matrix(name + "q_a_proj", q_lora, config.hidden_size));
        ESPALIER_ASSIGN_OR_RETURN(to.q_a_norm,
                                  reader.vector(name + "q_a_layernorm.weight", q_lora));
        ESPALIER_ASSIGN_OR_RETURN(to.q,
                                  reader.matrix(name + "q_b_proj", heads * mla::kQuery, q_lora));
    } else {
        ESPALIER_ASSIGN_OR_RETURN(
            to.q, reader.matrix(name + "q_proj", heads * mla::kQuery, config.hidden_size));
    }
    ESPALIER_ASSIGN_OR_RETURN(
        to.kv_a, reader.matrix(name + "kv_a_proj_with_mqa", mla::kKey, config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(to.kv_a_norm,
                              reader.vector(name + "kv_a_layernorm.weight", mla::kLatent));
    ESPALIER_RETURN_IF_ERROR(load_kv_b(reader, name + "kv_b_proj", heads, to));
    ESPALIER_ASSIGN_OR_RETURN(
        to.o, reader.matrix(name + "o_proj", config.hidden_size, heads * mla::kValue));
    return to;
}

Expected<FeedForwardWeights> load_feed_forward(WeightReader& reader, const ModelConfig& config,
                                               const std::string& name, std::int64_t width) {
    FeedForwardWeights to;
    ESPALIER_ASSIGN_OR_RETURN(
        to.gate_up, reader.joined({{name + "gate_proj", width}, {name + "up_proj", width}},
                                  config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(to.down,
                              reader.matrix(name + "down_proj", config.hidden_size, width));
    return to;
}

Expected<MoeWeights> load_moe(WeightReader& reader, const ModelConfig& config,
                              const std::string& name) {
    const std::int64_t width = config.moe_intermediate_size;
    MoeWeights to;
    ESPALIER_ASSIGN_OR_RETURN(
        to.router,
        reader.widened(name + "gate.weight", config.n_routed_experts, config.hidden_size));
    if (config.topk_method == checkpoint::TopkMethod::noaux_tc) {
        ESPALIER_ASSIGN_OR_RETURN(
            to.bias, reader.vector(name + "gate.e_score_correction_bias", config.n_routed_experts));
    }
    std::vector<std::vector<WeightReader::Part>> gate_up, down;
    for (std::int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
        const std::string expert_name = name + "experts." + std::to_string(expert) + ".";
        gate_up.push_back({{expert_name + "gate_proj", width}, {expert_name + "up_proj", width}});
        down.push_back({{expert_name + "down_proj", config.hidden_size}});
    }
    ESPALIER_ASSIGN_OR_RETURN(to.gate_up, reader.stack(gate_up, config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(to.down, reader.stack(down, width));
    if (config.n_shared_experts > 0) {
        ESPALIER_ASSIGN_OR_RETURN(to.shared,
                                  load_feed_forward(reader, config, name + "shared_experts.",
                                                    width * config.n_shared_experts));
    }
    return to;
}

Expected<LayerWeights> load_layer(WeightReader& reader, const ModelConfig& config,
                                  std::int64_t layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    LayerWeights to;
    ESPALIER_ASSIGN_OR_RETURN(to.input_norm,
                              reader.vector(name + "input_layernorm.weight", config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(to.attention, load_attention(reader, config, name + "self_attn."));
    ESPALIER_ASSIGN_OR_RETURN(
        to.post_attention_norm,
        reader.vector(name + "post_attention_layernorm.weight", config.hidden_size));
    if (config.layer_is_moe(layer)) {
        ESPALIER_ASSIGN_OR_RETURN(to.moe, load_moe(reader, config, name + "mlp."));
    } else {
        ESPALIER_ASSIGN_OR_RETURN(
            to.dense, load_feed_forward(reader, config, name + "mlp.", config.intermediate_size));
    }
    return to;
}

Expected<MtpWeights> load_mtp(WeightReader& reader, const ModelConfig& config, std::int64_t layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const std::int64_t hidden = config.hidden_size;
    MtpWeights to;
    ESPALIER_ASSIGN_OR_RETURN(to.embed_norm, reader.vector(name + "enorm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.hidden_norm, reader.vector(name + "hnorm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.eh_proj, reader.matrix(name + "eh_proj", hidden, 2 * hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.layer, load_layer(reader, config, layer));
    ESPALIER_ASSIGN_OR_RETURN(to.head_norm,
                              reader.vector(name + "shared_head.norm.weight", hidden));
    if (reader.has(name + "embed_tokens.weight")) {
        ESPALIER_ASSIGN_OR_RETURN(to.embedding, reader.embedding(name + "embed_tokens.weight",
                                                                 config.vocab_size, hidden));
    }
    if (reader.has(name + "shared_head.head.weight")) {
        ESPALIER_ASSIGN_OR_RETURN(
            to.head, reader.matrix(name + "shared_head.head", config.vocab_size, hidden));
    }
    return to;
}

}  // namespace

Expected<Weights> Weights::load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                Device& device, const ops::Backend& backend,
                                const LoadOptions& options) {
    const ModelConfig& config = checkpoint->config();
    ESPALIER_RETURN_IF_ERROR(checkpoint::check_tensors(*checkpoint));
    WeightReader reader(*checkpoint, device, backend, options.progress);
    Weights weights;
    ESPALIER_ASSIGN_OR_RETURN(
        weights.embedding,
        reader.embedding("model.embed_tokens.weight", config.vocab_size, config.hidden_size));
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
        ESPALIER_ASSIGN_OR_RETURN(LayerWeights loaded, load_layer(reader, config, layer));
        weights.layers.push_back(std::move(loaded));
    }
    ESPALIER_ASSIGN_OR_RETURN(weights.final_norm,
                              reader.vector("model.norm.weight", config.hidden_size));
    const std::string head = config.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
    ESPALIER_ASSIGN_OR_RETURN(weights.head,
                              reader.matrix(head, config.vocab_size, config.hidden_size));
    for (std::int64_t mtp = 0; options.mtp && mtp < config.num_nextn_predict_layers; ++mtp) {
        // Published checkpoints may announce MTP layers and leave their tensors out (Kimi K2 does).
        const std::int64_t layer = config.num_hidden_layers + mtp;
        if (!reader.has("model.layers." + std::to_string(layer) + ".eh_proj.weight")) break;
        ESPALIER_ASSIGN_OR_RETURN(MtpWeights loaded, load_mtp(reader, config, layer));
        weights.mtp.push_back(std::move(loaded));
    }
    weights.format = weights.layers.front().attention.o.view().format;
    // The embedding and scales were not counted, nor layers that were not asked for.
    if (options.progress) options.progress(checkpoint->total_bytes(), checkpoint->total_bytes());
    weights.checkpoint_ = std::move(checkpoint);
    return weights;
}

}  // namespace espalier::model
