// SPDX-License-Identifier: Apache-2.0
// config.json → ModelConfig. Defaults of absent fields are those of the published configuration
// classes (configuration_deepseek_v2.py, _v3.py, configuration_glm4_moe_lite.py,
// configuration_youtu.py, configuration_mistral4.py, configuration_deepseek_v32.py,
// configuration_glm_moe_dsa.py, vLLM's sarvam.py); sizes that no checkpoint leaves out must be
// there.
#include "checkpoint/model_config.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json.hpp"
#include "checkpoint/config_family.hpp"
#include "checkpoint/config_fields.hpp"
#include "checkpoint/config_words.hpp"
#include "checkpoint/quantization.hpp"

namespace espalier::checkpoint {
namespace {

// Far above any published model, low enough that products of any three stay below 2^63.
constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxPositions = 1 << 30;
constexpr double kAboveZero = 1e-6;

// Values that a configuration class takes for fields that are not there.
struct Defaults {
    std::int64_t q_lora_rank = 1536;
    std::int64_t kv_lora_rank = 512;
    HeadDims head_dims = {};
    std::int64_t n_group = 8;
    std::int64_t topk_group = 4;
    bool norm_topk_prob = true;
    double routed_scaling_factor = 2.5;
    std::int64_t first_k_dense_replace = 3;
    std::int64_t n_shared_experts = 1;
    double rms_norm_eps = 1e-6;
    bool tie_word_embeddings = false;
};
constexpr Defaults defaults_of(Architecture architecture) {
    switch (architecture) {
        case Architecture::deepseek_v2:
            return {.n_group = 1,
                    .topk_group = 1,
                    .norm_topk_prob = false,
                    .routed_scaling_factor = 1.0,
                    .first_k_dense_replace = 0,
                    .n_shared_experts = 2};
        case Architecture::glm4_moe_lite:
            return {.q_lora_rank = 768,
                    .head_dims = {192, 256},
                    .n_group = 1,
                    .topk_group = 1,
                    .routed_scaling_factor = 1.8,
                    .first_k_dense_replace = 1,
                    .rms_norm_eps = 1e-5};
        case Architecture::youtu:
            return {.tie_word_embeddings = true};
        case Architecture::mistral4:
            return {.q_lora_rank = 1024,
                    .kv_lora_rank = 256,
                    .head_dims = {64, 128},
                    .n_group = 1,
                    .topk_group = 1,
                    .routed_scaling_factor = 1.0,
                    .first_k_dense_replace = 0};
        case Architecture::sarvam_mla:
            return {.q_lora_rank = 0, .n_group = 16, .topk_group = 2, .first_k_dense_replace = 1};
        case Architecture::glm_moe_dsa:
            return {.q_lora_rank = 2048,
                    .head_dims = {192, 256},
                    .n_group = 1,
                    .topk_group = 1,
                    .rms_norm_eps = 1e-5};
        case Architecture::deepseek_v3:
        case Architecture::kimi_k2:
        case Architecture::deepseek_v32:
            break;
    }
    return {};
}

// transformers leaves fields that have their class's value out of a nested configuration, sizes
// too: those of DeepSeek-VL2's own configuration_deepseek.py. Elsewhere sizes must be there.
struct SizeDefaults {
    std::optional<std::int64_t> vocab_size, hidden_size, num_hidden_layers, num_attention_heads,
        intermediate_size, max_position_embeddings;
};
SizeDefaults sizes_of(Wrapper wrapper) {
    if (wrapper != Wrapper::deepseek_vl2) return {};
    return {.vocab_size = 102400,
            .hidden_size = 4096,
            .num_hidden_layers = 30,
            .num_attention_heads = 32,
            .intermediate_size = 11008,
            .max_position_embeddings = 2048};
}

// null means none of it; only a field that is not there takes the class's default.
std::int64_t read_count(ConfigFields& fields, const char* key, std::int64_t high,
                        std::int64_t absent) {
    return fields.integer(key, 0, high, fields.is_null(key) ? 0 : absent);
}

}  // namespace

void read_attention(ConfigFields& fields, ModelConfig& config) {
    config.num_attention_heads =
        fields.integer("num_attention_heads", 1, 128, sizes_of(config.wrapper).num_attention_heads);
    const std::int64_t kv_heads =
        fields.integer("num_key_value_heads", 1, kMaxWidth, config.num_attention_heads);
    if (kv_heads != config.num_attention_heads)
        fields.refuse(
            ErrorKind::unsupported,
            "num_key_value_heads is {} but num_attention_heads is {}: grouped heads are not MLA",
            kv_heads, config.num_attention_heads);
    const Defaults absent = defaults_of(config.architecture);
    if (!fields.boolean("use_mla", true))
        fields.refuse(ErrorKind::unsupported,
                      "use_mla is false: keys and values of each head, no latents");
    config.q_lora_rank = read_count(fields, "q_lora_rank", kMaxWidth, absent.q_lora_rank);
    config.kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxWidth, absent.kv_lora_rank);
    config.qk_rope_head_dim = fields.integer("qk_rope_head_dim", 0, kMaxWidth, 64);
    config.qk_nope_head_dim =
        fields.integer("qk_nope_head_dim", 0, kMaxWidth, absent.head_dims.nope);
    config.v_head_dim = fields.integer("v_head_dim", 0, kMaxWidth, absent.head_dims.value);
    // Latents of any width: kernels say which they have (mla::Kernels::check_dims).
    if (config.qk_rope_head_dim != KeyDims{}.rope)
        fields.refuse(ErrorKind::unsupported,
                      "qk_rope_head_dim is {}, the attention library supports only {}",
                      config.qk_rope_head_dim, KeyDims{}.rope);
    if (index_of(config.head_dims()) == kHeadDimsCount) {
        std::vector<std::string> possible;
        for (const HeadDims& dims : kHeadDims)
            possible.push_back(fmt::format("{} and {}", dims.nope, dims.value));
        fields.refuse(ErrorKind::unsupported,
                      "qk_nope_head_dim is {} and v_head_dim is {}, the attention library supports "
                      "{}",
                      config.qk_nope_head_dim, config.v_head_dim, fmt::join(possible, ", or "));
    }
    config.attention_bias = fields.boolean("attention_bias", false);
    for (const char* key : {"attention_bias", "mlp_bias"})
        if (fields.boolean(key, false))
            fields.refuse(ErrorKind::unsupported, "{} is true, only false is supported", key);
    if (!fields.boolean("rope_interleave", true))
        fields.refuse(ErrorKind::unsupported, "rope_interleave is false, only true is supported");
}

namespace {

// Softmax over all experts, the best ones' weights normalised. Its class also ranks groups by their
// two best scores and masks the others with 0 instead of -inf: published models have one group.
void read_mistral_routing(ConfigFields& fields, ModelConfig& config) {
    config.topk_method = TopkMethod::greedy;
    config.scoring = ScoringFunction::softmax;
    if (config.n_group != 1 || config.topk_group != 1)
        fields.refuse(ErrorKind::unsupported,
                      "n_group is {} and topk_group {}: Mistral models support only one group",
                      config.n_group, config.topk_group);
    const auto only = [&](const char* key, std::string_view value) {
        if (const std::string has = fields.text(key, value); has != value)
            fields.refuse(ErrorKind::unsupported, "{} is '{}', {} models support only '{}'", key,
                          has, name_of(config.architecture), value);
    };
    only("topk_method", name_of(config.topk_method));
    only("scoring_func", name_of(config.scoring));
}

void read_routing(ConfigFields& fields, ModelConfig& config) {
    const Defaults absent = defaults_of(config.architecture);
    config.n_group =
        fields.integer("n_group", 1, kMaxExperts, fields.is_null("n_group") ? 1 : absent.n_group);
    config.topk_group = fields.integer("topk_group", 1, kMaxExperts,
                                       fields.is_null("topk_group") ? 1 : absent.topk_group);
    config.norm_topk_prob = fields.boolean("norm_topk_prob", absent.norm_topk_prob);
    config.routed_scaling_factor =
        fields.number("routed_scaling_factor", 1e-6, 1e6, absent.routed_scaling_factor);

    if (config.architecture == Architecture::mistral4) return read_mistral_routing(fields, config);
    // DeepSeek-VL2's largest has V3's router in a model of V2's class.
    const bool v2_class = config.architecture == Architecture::deepseek_v2;
    const bool v2 = v2_class && !(config.wrapper == Wrapper::deepseek_vl2 &&
                                  fields.text("topk_method", "") == name_of(TopkMethod::noaux_tc));
    if (v2 && config.norm_topk_prob && config.routed_scaling_factor != 1.0)
        fields.refuse(ErrorKind::unsupported,
                      "norm_topk_prob is true and routed_scaling_factor is {}: published V2 code "
                      "either normalises or scales, and disagrees on which",
                      config.routed_scaling_factor);

    const std::string method = fields.text("topk_method", v2 ? "greedy" : "noaux_tc");
    const std::string scoring = fields.text("scoring_func", v2_class ? "softmax" : "sigmoid");
    config.scoring = v2 ? ScoringFunction::softmax : ScoringFunction::sigmoid;
    if (scoring != name_of(config.scoring))
        fields.refuse(ErrorKind::unsupported, "scoring_func is '{}', {} models support only '{}'",
                      scoring, name_of(config.architecture), name_of(config.scoring));
    if (!v2) {
        config.topk_method = TopkMethod::noaux_tc;
        if (method != name_of(TopkMethod::noaux_tc))
            fields.refuse(ErrorKind::unsupported,
                          "topk_method is '{}', {} models support only 'noaux_tc'", method,
                          name_of(config.architecture));
    } else if (method == name_of(TopkMethod::group_limited_greedy)) {
        config.topk_method = TopkMethod::group_limited_greedy;
    } else if (method != name_of(TopkMethod::greedy)) {
        fields.refuse(
            ErrorKind::unsupported,
            "topk_method is '{}', {} models support only 'greedy' and 'group_limited_greedy'",
            method, name_of(config.architecture));
    }
}

void check_groups(ConfigFields& fields, const ModelConfig& config) {
    const std::int64_t experts = config.n_routed_experts;
    if (config.num_experts_per_tok > experts)
        fields.refuse(ErrorKind::invalid, "num_experts_per_tok is {} of {} n_routed_experts",
                      config.num_experts_per_tok, experts);
    if (config.num_experts_per_tok == 1 && config.norm_topk_prob)
        fields.refuse(ErrorKind::unsupported,
                      "num_experts_per_tok is 1 and norm_topk_prob is true: published code "
                      "disagrees on whether one expert's weight is normalised");
    if (config.topk_method == TopkMethod::greedy) return;  // no groups
    if (experts % config.n_group != 0)
        fields.refuse(ErrorKind::invalid, "n_routed_experts is {}, no multiple of n_group {}",
                      experts, config.n_group);
    if (config.topk_group > config.n_group)
        fields.refuse(ErrorKind::invalid, "topk_group is {} of {} n_group", config.topk_group,
                      config.n_group);
    const std::int64_t group_experts = experts / config.n_group;
    if (config.topk_method == TopkMethod::noaux_tc && config.n_group > 1 && group_experts < 2)
        fields.refuse(ErrorKind::invalid,
                      "{} n_routed_experts in {} n_group: a group is ranked by its best 2", experts,
                      config.n_group);
    if (config.num_experts_per_tok > config.topk_group * group_experts)
        fields.refuse(ErrorKind::invalid, "num_experts_per_tok is {} but {} groups hold {} experts",
                      config.num_experts_per_tok, config.topk_group,
                      config.topk_group * group_experts);
}

// The kind of each layer, as transformers writes it where the class has no first_k_dense_replace:
// dense ones, then sparse ones.
void read_layer_types(ConfigFields& fields, ModelConfig& config) {
    constexpr const char* kKey = "mlp_layer_types";
    const nlohmann::json* list = fields.find(kKey);
    if (list == nullptr) return;
    const auto count = static_cast<std::size_t>(config.num_hidden_layers);
    if (!list->is_array() || list->size() != count)
        return fields.refuse(ErrorKind::invalid,
                             "{} is {}, expected a list of num_hidden_layers {}", kKey,
                             list->is_array() ? fmt::format("a list of {}", list->size())
                                              : ConfigFields::shown(*list),
                             count);
    std::size_t dense = 0;
    while (dense < count && (*list)[dense] == "dense") ++dense;
    for (std::size_t layer = dense; layer < count; ++layer)
        if ((*list)[layer] != "sparse")
            return fields.refuse(
                ErrorKind::unsupported,
                "{}[{}] is {}: only 'dense' for the first layers, then 'sparse' is supported", kKey,
                layer, ConfigFields::shown((*list)[layer]));
    const auto first = static_cast<std::int64_t>(dense);
    if (fields.has("first_k_dense_replace") && config.first_k_dense_replace != first)
        fields.refuse(ErrorKind::invalid,
                      "{} begins with {} dense layers, first_k_dense_replace is {}", kKey, first,
                      config.first_k_dense_replace);
    config.first_k_dense_replace = first;
}

// Fields that vLLM's sarvam.py reads with these values when they are absent.
void check_sarvam(ConfigFields& fields, const ModelConfig& config) {
    if (const std::string score = fields.text("score_function", "sigmoid"); score != "sigmoid")
        fields.refuse(ErrorKind::unsupported, "score_function is '{}', only 'sigmoid' is supported",
                      score);
    if (!fields.boolean("moe_router_enable_expert_bias", true))
        fields.refuse(ErrorKind::unsupported,
                      "moe_router_enable_expert_bias is false, only true is supported");
    if (const std::int64_t width = fields.integer("moe_shared_expert_intermediate_size", 1,
                                                  kMaxWidth, config.moe_intermediate_size);
        width != config.moe_intermediate_size)
        fields.refuse(ErrorKind::unsupported,
                      "moe_shared_expert_intermediate_size is {}, but moe_intermediate_size {}: "
                      "one width is supported",
                      width, config.moe_intermediate_size);
}

void read_experts(ConfigFields& fields, ModelConfig& config) {
    if (config.architecture == Architecture::youtu) return;  // all layers are dense
    const Defaults absent = defaults_of(config.architecture);
    config.first_k_dense_replace =
        fields.integer("first_k_dense_replace", 0, kMaxLayers, absent.first_k_dense_replace);
    config.moe_layer_freq = fields.integer("moe_layer_freq", 1, kMaxLayers, 1);
    read_layer_types(fields, config);
    read_routing(fields, config);
    const bool sarvam = config.architecture == Architecture::sarvam_mla;
    const char* const experts = sarvam ? "num_experts" : "n_routed_experts";
    if (!fields.contains(experts))
        fields.refuse(ErrorKind::not_found, "{} is missing (null stands for a dense model)",
                      experts);
    config.n_routed_experts = read_count(fields, experts, kMaxExperts, 0);
    config.n_shared_experts = read_count(fields, sarvam ? "num_shared_experts" : "n_shared_experts",
                                         64, absent.n_shared_experts);
    const bool dense = config.n_routed_experts == 0;
    config.moe_intermediate_size =
        fields.integer("moe_intermediate_size", dense ? 0 : 1, kMaxWidth,
                       dense ? std::optional<std::int64_t>(0) : std::nullopt);
    config.num_experts_per_tok =
        fields.integer("num_experts_per_tok", dense ? 0 : 1, kMaxExperts,
                       dense ? std::optional<std::int64_t>(0) : std::nullopt);
    if (!dense) check_groups(fields, config);
    if (sarvam) check_sarvam(fields, config);
    for (const char* key : {"ep_size", "pretraining_tp"})
        if (const std::int64_t ranks = fields.integer(key, 0, kMaxWidth, 1); ranks != 1)
            fields.refuse(ErrorKind::unsupported, "{} is {}, only 1 is supported", key, ranks);
}

}  // namespace

void read_sizes(ConfigFields& fields, ModelConfig& config) {
    const SizeDefaults sizes = sizes_of(config.wrapper);
    config.vocab_size = fields.integer("vocab_size", 1, kMaxVocabulary, sizes.vocab_size);
    config.hidden_size = fields.integer("hidden_size", 1, kMaxWidth, sizes.hidden_size);
    config.num_hidden_layers =
        fields.integer("num_hidden_layers", 1, kMaxLayers, sizes.num_hidden_layers);
    config.num_nextn_predict_layers = fields.integer("num_nextn_predict_layers", 0, 64, 0);
    config.intermediate_size =
        fields.integer("intermediate_size", 1, kMaxWidth, sizes.intermediate_size);
    config.max_position_embeddings =
        fields.integer("max_position_embeddings", 1, kMaxPositions, sizes.max_position_embeddings);
    const Defaults absent = defaults_of(config.architecture);
    config.rms_norm_eps = fields.number("rms_norm_eps", 0.0, 1.0, absent.rms_norm_eps);
    config.tie_word_embeddings = fields.boolean("tie_word_embeddings", absent.tie_word_embeddings);
    if (const std::string act = fields.text("hidden_act", "silu"); act != "silu")
        fields.refuse(ErrorKind::unsupported, "hidden_act is '{}', only 'silu' is supported", act);
}

namespace {

void read_token_ids(ConfigFields& fields, ModelConfig& config) {
    config.eos_token_ids = fields.token_ids("eos_token_id", config.vocab_size);
    if (fields.has("bos_token_id"))
        config.bos_token_id =
            static_cast<std::int32_t>(fields.integer("bos_token_id", 0, config.vocab_size - 1));
}

}  // namespace

std::string_view name_of(Architecture architecture) { return words_of(architecture).name; }

std::string_view ModelConfig::tensor_prefix() const {
    const WrapperWords* words = words_of(wrapper);
    return words == nullptr ? std::string_view() : words->tensor_prefix;
}

Expected<ModelConfig> parse_model_config(std::string_view json_text, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(json_text, name));
    ESPALIER_ASSIGN_OR_RETURN(const ConfigFamily family, find_family(document, name));

    ModelConfig config;
    config.architecture = family.architecture;
    config.wrapper = family.wrapper;
    ConfigFields fields(*family.text, family.place);
    read_sizes(fields, config);
    read_attention(fields, config);
    read_indexer(fields, config);
    read_experts(fields, config);
    read_rope(fields, config);
    read_quantization(fields, config);
    read_token_ids(fields, config);
    ESPALIER_RETURN_IF_ERROR(fields.status());
    if (family.text == &document) return config;

    // Fields that a wrapper gives for the whole model.
    ConfigFields outer(document, std::string(name));
    read_quantization(outer, config);
    ModelConfig ids;
    ids.vocab_size = config.vocab_size;
    read_token_ids(outer, ids);
    ESPALIER_RETURN_IF_ERROR(outer.status());
    if (config.eos_token_ids.empty()) config.eos_token_ids = ids.eos_token_ids;
    if (!config.bos_token_id) config.bos_token_id = ids.bos_token_id;
    return config;
}

namespace {

// Fields of transformers' GenerationConfig that change which tokens are drawn, and the value at
// which they do not.
struct UnusedField {
    const char* name;
    int neutral;
};
constexpr std::array<UnusedField, 10> kUnusedFields = {{{"suppress_tokens", 0},
                                                        {"begin_suppress_tokens", 0},
                                                        {"bad_words_ids", 0},
                                                        {"no_repeat_ngram_size", 0},
                                                        {"sequence_bias", 0},
                                                        {"min_length", 0},
                                                        {"min_new_tokens", 0},
                                                        {"typical_p", 1},
                                                        {"num_beams", 1},
                                                        {"num_beam_groups", 1}}};

}  // namespace

Expected<GenerationDefaults> parse_generation_config(std::string_view json_text,
                                                     std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(json_text, name));
    ConfigFields fields(document, std::string(name));
    GenerationDefaults defaults;
    // Ranges are those of a request, so that a value out of range is this file's error.
    const double temperature = fields.number("temperature", 0.0, 100.0, 1.0);
    if (fields.boolean("do_sample", false)) defaults.temperature = temperature;
    if (fields.has("top_p")) defaults.top_p = fields.number("top_p", kAboveZero, 1.0);
    if (fields.has("top_k"))
        defaults.top_k = std::max<std::int64_t>(0, fields.integer("top_k", -1, kMaxVocabulary));
    if (fields.has("repetition_penalty"))
        defaults.repetition_penalty = fields.number("repetition_penalty", kAboveZero, 100.0);
    if (fields.has("min_p")) defaults.min_p = fields.number("min_p", 0.0, 1.0);
    defaults.eos_token_ids = fields.token_ids("eos_token_id", kMaxVocabulary);
    for (const UnusedField& field : kUnusedFields)
        if (const nlohmann::json* value = fields.find(field.name);
            value != nullptr && *value != field.neutral &&
            !(value->is_structured() && value->empty()))
            defaults.unused.emplace_back(field.name);
    ESPALIER_RETURN_IF_ERROR(fields.status());
    return defaults;
}

}  // namespace espalier::checkpoint
