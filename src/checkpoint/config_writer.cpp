// SPDX-License-Identifier: Apache-2.0
// A ModelConfig as the config.json its family publishes; the inverse of parse_model_config.
#include <nlohmann/json.hpp>

#include "checkpoint/config_words.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

Json eos_json(const ModelConfig& config) {
    if (config.eos_token_ids.empty()) return nullptr;
    if (config.eos_token_ids.size() == 1) return config.eos_token_ids.front();
    return config.eos_token_ids;
}

Json bos_json(const ModelConfig& config) {
    return config.bos_token_id ? Json(*config.bos_token_id) : Json(nullptr);
}

const char* torch_name(DType dtype) {
    if (dtype == DType::f32) return "float32";
    if (dtype == DType::f16) return "float16";
    return "bfloat16";  // also FP8, whose unquantised tensors are bf16
}

Json rope_scaling_json(const ModelConfig& config) {
    const std::optional<YarnScaling>& yarn = config.yarn;
    if (!yarn) return nullptr;
    Json json = {{"beta_fast", yarn->beta_fast},
                 {"beta_slow", yarn->beta_slow},
                 {"factor", yarn->factor},
                 {"mscale", yarn->mscale},
                 {"mscale_all_dim", yarn->mscale_all_dim},
                 {"original_max_position_embeddings", yarn->original_max_position_embeddings},
                 {"type", "yarn"}};
    if (config.architecture == Architecture::mistral4) {
        json["rope_type"] = "yarn";  // transformers reads this one
        json["rope_theta"] = config.rope_theta;
        json["llama_4_scaling_beta"] = config.query_scaling_beta;
        json["partial_rotary_factor"] = static_cast<double>(config.qk_rope_head_dim) /
                                        static_cast<double>(config.query_head_dim());
    }
    return json;
}

const char* format_word(QuantizedLayout layout) {
    if (layout == QuantizedLayout::int8) return "int-quantized";
    return layout == QuantizedLayout::packed_nvfp4 ? "nvfp4-pack-quantized" : "pack-quantized";
}

// One of config_groups.
Json group_json(const Quantization& how, Json targets) {
    const bool nvfp4 = how.layout == QuantizedLayout::packed_nvfp4;
    const Json weights = {{"num_bits", how.bits},
                          {"type", nvfp4 ? "float" : "int"},
                          {"symmetric", !how.zero_points},
                          {"strategy", nvfp4           ? "tensor_group"
                                       : how.group > 0 ? "group"
                                                       : "channel"},
                          {"group_size", how.group > 0 ? Json(how.group) : Json(nullptr)},
                          {"dynamic", false},
                          {"actorder", nullptr}};
    return {{"targets", std::move(targets)}, {"weights", weights}};
}

// JSON from which read_quantization makes `how` and `head`; activations are not quantized.
Json quantization_json(const Quantization& how, const std::optional<Quantization>& head = {}) {
    if (how.layout == QuantizedLayout::nvfp4)
        return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", how.group}};
    if (how.layout == QuantizedLayout::awq)
        return {{"quant_method", "awq"},
                {"bits", how.bits},
                {"group_size", how.group > 0 ? how.group : -1},
                {"zero_point", true},
                {"version", "gemm"}};
    Json groups = {{"group_0", group_json(how, Json::array({"Linear"}))}};
    Json ignored = Json::array({"re:.*kv_b_proj$", "re:.*mlp\\.gate$"});
    const char* format = format_word(how.layout);
    if (head) {
        groups["group_1"] =
            group_json(*head, Json::array({"re:.*lm_head$", "re:.*shared_head\\.head$"}));
        if (head->layout != how.layout) {
            groups["group_0"]["format"] = format;
            groups["group_1"]["format"] = format_word(head->layout);
            format = "mixed-precision";
        }
    } else {
        ignored.insert(ignored.begin(), "lm_head");
    }
    return {{"quant_method", "compressed-tensors"},
            {"format", format},
            {"quantization_status", "compressed"},
            {"config_groups", std::move(groups)},
            {"ignore", std::move(ignored)}};
}

// A head that is quantized is no longer its embedding.
void untie(Json& json) {
    json["tie_word_embeddings"] = false;
    for (const WrapperWords& wrapper : kWrappers)
        if (const auto text = json.find(wrapper.text_key); text != json.end() && text->is_object())
            (*text)["tie_word_embeddings"] = false;
}

}  // namespace

std::string quantized_config_json(std::string_view config_text, const Quantization& how,
                                  const std::optional<Quantization>& head) {
    Json json = Json::parse(config_text);
    const auto take_out = [](Json& object) {
        for (const char* key : {"quantization_config", "compression_config"}) object.erase(key);
    };
    take_out(json);
    for (const WrapperWords& wrapper : kWrappers)
        if (const auto text = json.find(wrapper.text_key); text != json.end() && text->is_object())
            take_out(*text);
    json["quantization_config"] = quantization_json(how, head);
    if (head) untie(json);
    return json.dump(2) + "\n";
}

namespace {

// Fields that every layer's configuration has.
Json common_json(const ModelConfig& config, DType dtype) {
    Json json;
    json["attention_bias"] = config.attention_bias;
    json["bos_token_id"] = bos_json(config);
    json["eos_token_id"] = eos_json(config);
    json["first_k_dense_replace"] = config.first_k_dense_replace;
    json["hidden_act"] = "silu";
    json["hidden_size"] = config.hidden_size;
    json["intermediate_size"] = config.intermediate_size;
    json["kv_lora_rank"] = config.kv_lora_rank;
    json["max_position_embeddings"] = config.max_position_embeddings;
    json["moe_intermediate_size"] = config.moe_intermediate_size;
    json["moe_layer_freq"] = config.moe_layer_freq;
    json["n_group"] = config.n_group;
    const bool sarvam = config.architecture == Architecture::sarvam_mla;
    json[sarvam ? "num_experts" : "n_routed_experts"] =
        config.n_routed_experts > 0 ? Json(config.n_routed_experts) : Json(nullptr);
    json[sarvam ? "num_shared_experts" : "n_shared_experts"] =
        config.n_shared_experts > 0 ? Json(config.n_shared_experts) : Json(nullptr);
    json["norm_topk_prob"] = config.norm_topk_prob;
    json["num_attention_heads"] = config.num_attention_heads;
    json["num_experts_per_tok"] = config.num_experts_per_tok;
    json["num_hidden_layers"] = config.num_hidden_layers;
    json["num_key_value_heads"] = config.num_attention_heads;
    json["num_nextn_predict_layers"] = config.num_nextn_predict_layers;
    json["q_lora_rank"] = config.q_lora_rank > 0 ? Json(config.q_lora_rank) : Json(nullptr);
    json["qk_nope_head_dim"] = config.qk_nope_head_dim;
    json["qk_rope_head_dim"] = config.qk_rope_head_dim;
    if (dtype == DType::e4m3) {
        const bool blocks = config.fp8_block != 0;
        json["quantization_config"] = {
            {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"quant_method", "fp8"}};
        json["quantization_config"]["weight_block_size"] =
            blocks ? Json({128, 128}) : Json(nullptr);
    }
    if (config.quantization.layout != QuantizedLayout::none)
        json["quantization_config"] = quantization_json(config.quantization);
    json["rms_norm_eps"] = config.rms_norm_eps;
    const bool mistral = config.architecture == Architecture::mistral4;
    json[mistral ? "rope_parameters" : "rope_scaling"] = rope_scaling_json(config);
    json["rope_theta"] = config.rope_theta;
    json["routed_scaling_factor"] = config.routed_scaling_factor;
    json["scoring_func"] = name_of(config.scoring);
    json["tie_word_embeddings"] = config.tie_word_embeddings;
    json["topk_group"] = config.topk_group;
    json["topk_method"] = name_of(config.topk_method);
    json["torch_dtype"] = torch_name(dtype);
    json["use_cache"] = true;
    json["v_head_dim"] = config.v_head_dim;
    json["vocab_size"] = config.vocab_size;
    return json;
}

}  // namespace

namespace {

Json indexer_json(const ModelConfig& config) {
    const IndexerConfig& indexer = *config.indexer;
    Json json = {{"index_head_dim", indexer.head_dim},
                 {"index_n_heads", indexer.heads},
                 {"index_topk", indexer.top_k},
                 {"indexer_rope_interleave", indexer.interleaved}};
    if (indexer.shared.empty()) return json;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
        json["indexer_types"].push_back(config.layer_has_indexer(layer) ? "full" : "shared");
    return json;
}

}  // namespace

std::string eagle3_config_json_of(const Eagle3Config& config, DType dtype) {
    Json json;
    json["architectures"] = {"Eagle3DeepseekV2ForCausalLM"};
    json["model_type"] = "deepseek_v3";
    json.update(common_json(config.layer, dtype));
    json["draft_vocab_size"] = config.draft_vocab_size;
    json["target_hidden_size"] = config.target_hidden_size;
    json["norm_before_residual"] = config.norm_before_residual;
    json["norm_before_fc"] = config.norm_before_fc;
    json["fc_norm"] = config.fc_norm;
    json["norm_output"] = config.norm_output;
    if (!config.aux_layer_ids.empty())
        json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", config.aux_layer_ids},
                                {"use_aux_hidden_state", true}};
    return json.dump(2) + "\n";
}

std::string config_json_of(const ModelConfig& config, DType dtype) {
    const FamilyWords& family = words_of(config.architecture);
    Json json;
    json["architectures"] = {family.class_name};
    json["model_type"] = family.model_type;
    json.update(common_json(config, dtype));
    if (config.indexer) json.update(indexer_json(config));
    const WrapperWords* wrapper = words_of(config.wrapper);
    if (wrapper == nullptr) return json.dump(2) + "\n";
    Json outer;
    outer["architectures"] = {wrapper->class_name};
    outer["model_type"] = wrapper->model_type;
    outer[wrapper->text_key] = std::move(json);
    return outer.dump(2) + "\n";
}

std::string generation_config_json_of(const ModelConfig& config,
                                      const GenerationDefaults& defaults) {
    Json json = {{"_from_model_config", true},
                 {"bos_token_id", bos_json(config)},
                 {"eos_token_id", eos_json(config)}};
    const auto put = [&](const char* field, const auto& value) {
        if (value) json[field] = *value;
    };
    if (defaults.temperature) json["do_sample"] = true;
    put("temperature", defaults.temperature);
    put("top_p", defaults.top_p);
    put("top_k", defaults.top_k);
    put("repetition_penalty", defaults.repetition_penalty);
    put("min_p", defaults.min_p);
    return json.dump(2) + "\n";
}

}  // namespace espalier::checkpoint
