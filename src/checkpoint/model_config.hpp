// SPDX-License-Identifier: Apache-2.0
// config.json and generation_config.json as typed, range-checked structs. No JSON goes past this
// header. Accepts the families and wrappers of config_words.hpp; relatives that compute something
// else are refused by name, with the reason (config_family.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/head_dims.hpp"
#include "base/numeric.hpp"

namespace espalier::checkpoint {

enum class Architecture : std::uint8_t {
    deepseek_v2,
    deepseek_v3,
    kimi_k2,
    glm4_moe_lite,
    youtu,
    mistral4,
    sarvam_mla,
    deepseek_v32,
    glm_moe_dsa,
};
std::string_view name_of(Architecture architecture);

// The multimodal model, if any, whose language part this is.
enum class Wrapper : std::uint8_t { none, kimi_k25, kimi_vl, deepseek_vl2, mistral3 };

enum class TopkMethod : std::uint8_t { greedy, group_limited_greedy, noaux_tc };
enum class ScoringFunction : std::uint8_t { softmax, sigmoid };

struct YarnScaling {
    double factor = 1.0;
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    double mscale = 1.0;
    double mscale_all_dim = 0.0;
    std::int64_t original_max_position_embeddings = 4096;

    bool operator==(const YarnScaling&) const = default;
};

// Layout of quantized matrices in files (checkpoint/quantization.hpp reads them), as config.json
// announces it. Which matrices these are the tensors themselves say.
enum class QuantizedLayout : std::uint8_t {
    none,
    packed_integers,  // compressed-tensors pack-quantized: weight_packed, weight_scale,
                      // weight_shape
    int8,             // compressed-tensors int-quantized, naive-quantized: weight, weight_scale
    nvfp4,            // ModelOpt: weight, weight_scale, weight_scale_2, input_scale
    packed_nvfp4,     // compressed-tensors: weight_packed, weight_scale, weight_global_scale,
                      // input_global_scale
    awq,              // AutoAWQ's gemm: qweight, qzeros, scales
};
struct Quantization {
    QuantizedLayout layout = QuantizedLayout::none;
    std::int64_t bits = 0;     // of one weight
    std::int64_t group = 0;    // inputs that share a scale; 0: all of an output
    bool zero_points = false;  // of groups: weight_zero_point of compressed-tensors, qzeros

    bool operator==(const Quantization&) const = default;
};
// True for the matrices of heads: lm_head and shared_head.head, without ".weight".
bool names_head(std::string_view matrix);

// Sparse attention: a layer's indexer scores the keys that a token sees, and the token attends to
// the best of them.
struct IndexerConfig {
    std::int64_t heads = 0;     // index_n_heads
    std::int64_t head_dim = 0;  // index_head_dim, of which the first 64 columns are rotated
    std::int64_t top_k = 0;     // index_topk
    // Rotated pairs are (2i, 2i + 1), as in attention; otherwise (i, i + 32).
    bool interleaved = false;
    // Layers without an indexer, which attend to the keys that the last one before them chose; a
    // layer beyond the list has one.
    std::vector<bool> shared = {};

    bool operator==(const IndexerConfig&) const = default;
};

struct ModelConfig {
    Architecture architecture = Architecture::deepseek_v3;
    Wrapper wrapper = Wrapper::none;
    std::int64_t vocab_size = 0;
    std::int64_t hidden_size = 0;
    std::int64_t num_hidden_layers = 0;
    std::int64_t num_nextn_predict_layers = 0;  // MTP layers after the last
    std::int64_t num_attention_heads = 0;
    std::int64_t q_lora_rank = 0;  // 0: q_proj instead of q_a/q_b
    std::int64_t kv_lora_rank = 512;
    std::int64_t qk_rope_head_dim = 64;   // fixed by the rotary operations
    std::int64_t qk_nope_head_dim = 128;  // these two are a pair of kHeadDims
    std::int64_t v_head_dim = 128;
    bool attention_bias = false;           // only false is supported
    std::optional<IndexerConfig> indexer;  // absent: a token attends to all keys that it sees
    std::int64_t intermediate_size = 0;
    std::int64_t moe_intermediate_size = 0;
    std::int64_t first_k_dense_replace = 0;
    std::int64_t moe_layer_freq = 1;
    std::int64_t n_routed_experts = 0;  // 0: every layer is dense
    std::int64_t n_shared_experts = 0;
    std::int64_t num_experts_per_tok = 0;
    std::int64_t n_group = 1;
    std::int64_t topk_group = 1;
    bool norm_topk_prob = false;
    double routed_scaling_factor = 1.0;
    TopkMethod topk_method = TopkMethod::greedy;
    ScoringFunction scoring = ScoringFunction::softmax;
    double rms_norm_eps = 1e-6;
    double rope_theta = 10000.0;
    std::optional<YarnScaling> yarn;
    // Queries of position p times 1 + beta · ln(1 + ⌊p / yarn's original_max_position_embeddings⌋);
    // 0: as they are.
    double query_scaling_beta = 0.0;
    std::int64_t max_position_embeddings = 0;
    bool tie_word_embeddings = false;
    // 128 where quantization_config is FP8 in blocks, 0 where each matrix has one scale.
    std::optional<std::int64_t> fp8_block;
    Quantization quantization;  // other kinds
    // Of heads, where config.json describes them apart; otherwise they may be stored as the others.
    std::optional<Quantization> head_quantization = {};
    // How the quantized ones among these are stored. matrix: without ".weight".
    const Quantization& quantization_of(std::string_view matrix) const {
        return head_quantization && names_head(matrix) ? *head_quantization : quantization;
    }
    std::vector<std::int32_t> eos_token_ids;  // config.json, then generation_config.json
    std::optional<std::int32_t> bos_token_id;

    std::string_view tensor_prefix() const;  // of its tensors in a wrapper's files, otherwise ""
    KeyDims key_dims() const { return {kv_lora_rank, qk_rope_head_dim}; }
    HeadDims head_dims() const { return {qk_nope_head_dim, v_head_dim}; }
    std::int64_t query_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
    // MTP layers, which lie behind the last, have one of their own.
    bool layer_has_indexer(std::int64_t layer) const {
        return indexer && (layer >= std::ssize(indexer->shared) ||
                           !indexer->shared[static_cast<std::size_t>(layer)]);
    }
    bool layer_is_moe(std::int64_t layer) const {
        return n_routed_experts > 0 && layer >= first_k_dense_replace &&
               layer % moe_layer_freq == 0;
    }
    bool operator==(const ModelConfig&) const = default;
};

// Sampling defaults a checkpoint recommends, as transformers reads them: without do_sample a
// temperature counts for nothing, and do_sample alone is temperature 1. (transformers' own default
// of top_k 50 is no recommendation of the checkpoint.)
struct GenerationDefaults {
    std::optional<double> temperature;  // absent: greedy
    std::optional<double> top_p;
    std::optional<std::int64_t> top_k;  // 0: off
    std::optional<double> repetition_penalty;
    std::optional<double> min_p;
    std::vector<std::int32_t> eos_token_ids;
    std::vector<std::string> unused;  // fields that change texts and are not honoured

    bool operator==(const GenerationDefaults&) const = default;
};

// `name` stands in error messages.
Expected<ModelConfig> parse_model_config(std::string_view json_text, std::string_view name);
Expected<GenerationDefaults> parse_generation_config(std::string_view json_text,
                                                     std::string_view name);

// A directory or a GGUF file as it is, or ORG/NAME[@REVISION] in the local hub cache (HF_HUB_CACHE,
// HF_HOME,
// ~/.cache); no network.
Expected<std::filesystem::path> resolve_model_path(std::string_view model);

}  // namespace espalier::checkpoint
