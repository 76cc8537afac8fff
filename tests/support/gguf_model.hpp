// SPDX-License-Identifier: Apache-2.0
// A GGUF file of a model's configuration, for tests: the keys that llama.cpp's converter writes,
// and the tensors of a safetensors file under the names that it gives them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_config.hpp"
#include "support/gguf_writer.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier {

inline void add_config(GgufWriter& file, const checkpoint::ModelConfig& config,
                       bool groups = true) {
    const auto u32 = [&](const std::string& key, std::int64_t value) {
        file.u32("deepseek2." + key, static_cast<std::uint32_t>(value));
    };
    const auto f32 = [&](const std::string& key, double value) {
        file.f32("deepseek2." + key, static_cast<float>(value));
    };
    // Names that llama.cpp has for other architectures.
    const auto name = [&] {
        if (config.architecture == checkpoint::Architecture::mistral4) return "mistral4";
        if (!config.indexer) return "deepseek2";
        return config.architecture == checkpoint::Architecture::glm_moe_dsa ? "glm-dsa"
                                                                            : "deepseek32";
    };
    file.text("general.architecture", name());
    u32("context_length", config.max_position_embeddings);
    u32("embedding_length", config.hidden_size);
    u32("block_count", config.num_hidden_layers + config.num_nextn_predict_layers);
    if (config.num_nextn_predict_layers > 0)
        u32("nextn_predict_layers", config.num_nextn_predict_layers);
    u32("feed_forward_length", config.intermediate_size);
    u32("attention.head_count", config.num_attention_heads);
    u32("attention.head_count_kv", 1);
    if (config.q_lora_rank > 0) u32("attention.q_lora_rank", config.q_lora_rank);
    u32("attention.kv_lora_rank", config.kv_lora_rank);
    u32("attention.key_length", config.kv_lora_rank + config.qk_rope_head_dim);
    u32("attention.value_length", config.kv_lora_rank);
    u32("attention.key_length_mla", config.query_head_dim());
    u32("attention.value_length_mla", config.v_head_dim);
    u32("rope.dimension_count", config.qk_rope_head_dim);
    u32("vocab_size", config.vocab_size);
    u32("leading_dense_block_count", config.first_k_dense_replace);
    u32("expert_count", config.n_routed_experts);
    u32("expert_used_count", config.num_experts_per_tok);
    u32("expert_shared_count", config.n_shared_experts);
    u32("expert_feed_forward_length", config.moe_intermediate_size);
    if (groups) u32("expert_group_count", config.n_group);
    if (groups) u32("expert_group_used_count", config.topk_group);
    u32("expert_gating_func", config.scoring == checkpoint::ScoringFunction::sigmoid ? 2 : 1);
    f32("expert_weights_scale", config.routed_scaling_factor);
    file.boolean("deepseek2.expert_weights_norm", config.norm_topk_prob);
    f32("attention.layer_norm_rms_epsilon", config.rms_norm_eps);
    f32("rope.freq_base", config.rope_theta);
    if (!config.yarn) return;
    file.text("deepseek2.rope.scaling.type", "yarn");
    f32("rope.scaling.factor", config.yarn->factor);
    u32("rope.scaling.original_context_length", config.yarn->original_max_position_embeddings);
    f32("rope.scaling.yarn_beta_fast", config.yarn->beta_fast);
    f32("rope.scaling.yarn_beta_slow", config.yarn->beta_slow);
    f32("rope.scaling.yarn_log_multiplier", 0.1 * config.yarn->mscale_all_dim);
}

// A tensor on its way into a GGUF file; shape is outermost first.
struct GgufData {
    std::vector<std::uint64_t> shape;
    std::uint32_t type = 0;
    std::string bytes;
};
using GgufTensors = std::map<std::string, GgufData>;  // by the published name, as stored

inline std::string gguf_name_of(std::string name) {
    static const std::vector<std::pair<std::string, std::string>> kNames = {
        {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},
        {"lm_head", "output"},
        {"model.layers.", "blk."},
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "ffn_norm"},
        {"self_attn.q_a_layernorm", "attn_q_a_norm"},
        {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
        {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
        {"self_attn.q_a_proj", "attn_q_a"},
        {"self_attn.q_b_proj", "attn_q_b"},
        {"self_attn.kv_b_proj", "attn_kv_b"},
        {"self_attn.k_b_proj", "attn_k_b"},
        {"self_attn.v_b_proj", "attn_v_b"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.o_proj", "attn_output"},
        {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
        {"mlp.gate.weight", "ffn_gate_inp.weight"},
        {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
        {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
        {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
        {"mlp.experts.gate_proj", "ffn_gate_exps"},
        {"mlp.experts.up_proj", "ffn_up_exps"},
        {"mlp.experts.down_proj", "ffn_down_exps"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"shared_head.head", "nextn.shared_head_head"},
        {"shared_head.norm", "nextn.shared_head_norm"},
        {"embed_tokens", "nextn.embed_tokens"},
        {"eh_proj", "nextn.eh_proj"},
        {"enorm", "nextn.enorm"},
        {"hnorm", "nextn.hnorm"}};
    for (const auto& [ours, theirs] : kNames)
        if (const std::size_t at = name.find(ours); at != std::string::npos)
            name.replace(at, ours.size(), theirs);
    return name;
}

// Experts' matrices become one tensor; others stay.
inline GgufTensors with_stacked_experts(GgufTensors tensors, std::int64_t experts) {
    GgufTensors stacked;
    for (auto& [name, data] : tensors) {
        const std::string marker = ".mlp.experts.";
        const std::size_t at = name.find(marker);
        if (at == std::string::npos) {
            stacked[name] = std::move(data);
            continue;
        }
        const std::size_t dot = name.find('.', at + marker.size());
        if (name.substr(at + marker.size(), dot - at - marker.size()) != "0") continue;
        GgufData all{.shape = data.shape, .type = data.type, .bytes = {}};
        all.shape.insert(all.shape.begin(), static_cast<std::uint64_t>(experts));
        for (std::int64_t expert = 0; expert < experts; ++expert)
            all.bytes += tensors
                             .at(name.substr(0, at + marker.size()) + std::to_string(expert) +
                                 name.substr(dot))
                             .bytes;
        stacked[name.substr(0, at + marker.size() - 1) + name.substr(dot)] = std::move(all);
    }
    return stacked;
}

inline void add_tensors(GgufWriter& file, const GgufTensors& tensors) {
    for (const auto& [name, data] : tensors)
        file.tensor(gguf_name_of(name), data.shape, data.type, data.bytes);
}

// A safetensors file's tensors as they are: F32, F16 or BF16; norms and biases as F32 too.
inline GgufTensors plain_tensors(const SafetensorsEditor& source) {
    GgufTensors tensors;
    for (const auto& [name, entry] : source.tensors) {
        const std::uint32_t type = entry.dtype == "F32" ? 0 : entry.dtype == "F16" ? 1 : 30;
        tensors[name] = {
            .shape = {entry.shape.begin(), entry.shape.end()}, .type = type, .bytes = entry.bytes};
    }
    return tensors;
}

}  // namespace espalier
