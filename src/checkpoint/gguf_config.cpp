// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/config_words.hpp"

namespace espalier::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kArchitecture = "deepseek2";

// Architectures that people may take for ours, with the reason.
struct RelativeGguf {
    std::string_view architecture;
    std::string_view reason;
};
constexpr std::array<RelativeGguf, 9> kRelativeGgufs = {{
    {"deepseek", "DeepSeek's first models: keys and values of each head, no latents"},
    {"deepseek2-ocr", "DeepSeek-OCR: keys and values of each head, no latents"},
    {"deepseek32", "DeepSeek-V3.2: sparse attention with an indexer"},
    {"deepseek4", "DeepSeek-V4"},
    {"glm-dsa", "GLM-5: sparse attention with an indexer"},
    {"glm4moe", "GLM-4.5 to GLM-4.7: grouped heads, no latents"},
    {"kimi-linear", "Kimi Linear: linear attention in three layers of four"},
    {"minicpm3", "MiniCPM3: 32 rope columns where the attention library has 64"},
    {"mistral4", "Mistral Small 4: its safetensors are read"},
}};

// Keys behind "deepseek2." whose value becomes a field as it is.
struct PlainKey {
    std::string_view key;
    const char* field;
};
constexpr std::array<PlainKey, 14> kPlainKeys = {{
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.q_lora_rank", "q_lora_rank"},
    {"attention.kv_lora_rank", "kv_lora_rank"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"rope.dimension_count", "qk_rope_head_dim"},
    {"rope.freq_base", "rope_theta"},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"expert_shared_count", "n_shared_experts"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"nextn_predict_layers", "num_nextn_predict_layers"},
    {"vocab_size", "vocab_size"},
}};
// Keys that the code below reads, or that say again what others do.
constexpr std::array<std::string_view, 27> kOtherKeys = {
    "block_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "expert_count",
    "expert_used_count",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_scale",
    "expert_weights_norm",
    "expert_gating_func",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "attention.causal",
    "use_parallel_residual",
    "moe_every_n_layers",
};

// Groups of experts of published models whose files were written before the format had keys for
// them.
struct SilentGroups {
    std::int64_t layers, hidden, experts, groups, chosen;
};
constexpr std::array<SilentGroups, 2> kSilentGroups = {{
    {60, 5120, 160, 8, 3},  // DeepSeek-V2, V2.5
    {61, 7168, 256, 8, 4},  // DeepSeek-V3, R1, V3.1
}};

// Reads keys behind "deepseek2."; the first problem sticks, as in ConfigFields.
class Metadata {
  public:
    Metadata(const GgufHeader& header, std::string_view name) : header_(header), name_(name) {}

    const GgufValue* find(std::string_view key) const { return header_.find(full(key)); }

    std::optional<std::int64_t> integer(std::string_view key) {
        const GgufValue* value = find(key);
        if (value == nullptr) return std::nullopt;
        const auto whole = value->integer();
        if (!whole) refuse(key, *value, "an integer");
        return whole;
    }
    std::optional<double> number(std::string_view key) {
        const GgufValue* value = find(key);
        if (value == nullptr) return std::nullopt;
        const auto real = value->number();
        if (!real) refuse(key, *value, "a finite number");
        return real;
    }
    bool boolean(std::string_view key, bool absent) {
        const GgufValue* value = find(key);
        if (value == nullptr) return absent;
        const auto truth = value->boolean();
        if (!truth) refuse(key, *value, "true or false");
        return truth.value_or(absent);
    }
    std::string text(std::string_view key, std::string_view absent) {
        const GgufValue* value = find(key);
        if (value == nullptr) return std::string(absent);
        const auto string = value->text();
        if (!string) refuse(key, *value, "a string");
        return std::string(string.value_or(absent));
    }
    // A key that may be there with the only value that is supported.
    void require(std::string_view key, double only) {
        if (const auto value = number(key); value && *value != only)
            refuse(key, *find(key), fmt::format("{}, which alone is supported", only),
                   ErrorKind::unsupported);
    }

    void refuse(std::string_view key, const GgufValue& value, std::string_view expected,
                ErrorKind kind = ErrorKind::invalid) {
        if (!error_)
            error_ = Error{kind, fmt::format("{}: {} is {}, expected {}", name_, full(key),
                                             value.shown(), expected)};
    }
    void missing(std::string_view key) {
        if (!error_)
            error_ =
                Error{ErrorKind::not_found, fmt::format("{}: {} is missing", name_, full(key))};
    }
    Expected<void> status() const {
        if (error_) return tl::unexpected<Error>(*error_);
        return {};
    }

  private:
    static std::string full(std::string_view key) {
        return fmt::format("{}.{}", kArchitecture, key);
    }

    const GgufHeader& header_;
    std::string_view name_;
    std::optional<Error> error_;
};

Expected<void> check_architecture(const GgufHeader& header, std::string_view name) {
    const GgufValue* value = header.find("general.architecture");
    const auto architecture = value == nullptr ? std::nullopt : value->text();
    if (!architecture)
        return fail(ErrorKind::invalid, "{}: no general.architecture; is this a model?", name);
    if (const GgufValue* type = header.find("general.type"))
        if (const auto kind = type->text(); !kind || *kind != "model")
            return fail(ErrorKind::unsupported, "{}: general.type is {}, only 'model' is read",
                        name, type->shown());
    if (*architecture == kArchitecture) return {};
    const auto* relative =
        std::ranges::find(kRelativeGgufs, *architecture, &RelativeGguf::architecture);
    return fail(ErrorKind::unsupported,
                "{}: architecture {} is not supported ({}); supported is '{}': DeepSeek-V2, V3, "
                "R1, Kimi K2, GLM-4.7-Flash, Moonlight, Youtu",
                name, value->shown(),
                relative == kRelativeGgufs.end()
                    ? std::string_view("no latent attention of this kind")
                    : relative->reason,
                kArchitecture);
}

// A key that is not known may change what is computed.
Expected<void> check_keys(const GgufHeader& header, std::string_view name) {
    for (const auto& [key, value] : header.values) {
        std::string_view own = key;
        if (!own.starts_with(kArchitecture) || own.substr(kArchitecture.size(), 1) != ".") continue;
        own.remove_prefix(kArchitecture.size() + 1);
        if (std::ranges::find(kPlainKeys, own, &PlainKey::key) == kPlainKeys.end() &&
            std::ranges::find(kOtherKeys, own) == kOtherKeys.end())
            return fail(ErrorKind::unsupported, "{}: key '{}' ({}) is not known", name, key,
                        value.shown());
    }
    return {};
}

Json plain_json(const GgufValue& value) {
    if (const auto whole = value.integer()) return *whole;
    if (const auto real = value.number()) return *real;
    return value.shown();  // no number: the reader of the field says so
}

void add_heads(Metadata& data, Json& json) {
    // Files from before April 2025 keep heads as they are computed for prompts, without the keys
    // of latents.
    const auto key =
        data.integer(data.find("attention.key_length_mla") != nullptr ? "attention.key_length_mla"
                                                                      : "attention.key_length");
    const auto value = data.integer(data.find("attention.value_length_mla") != nullptr
                                        ? "attention.value_length_mla"
                                        : "attention.value_length");
    if (!key) return data.missing("attention.key_length_mla");
    if (!value) return data.missing("attention.value_length_mla");
    const auto rope = data.integer("rope.dimension_count");
    json["qk_nope_head_dim"] = *key - std::clamp<std::int64_t>(rope.value_or(0), 0, *key);
    json["v_head_dim"] = *value;
    if (data.find("attention.q_lora_rank") == nullptr) json["q_lora_rank"] = nullptr;
}

// 1: softmax, 2: sigmoid. Files without the key: softmax, but for GLM-4.7-Flash's first ones.
std::int64_t gating_of(Metadata& data, std::int64_t blocks, const Json& json) {
    const auto told = data.integer("expert_gating_func");
    if (told && *told != 1 && *told != 2)
        data.refuse("expert_gating_func", *data.find("expert_gating_func"),
                    "1 (softmax) or 2 (sigmoid)", ErrorKind::unsupported);
    if (told && *told != 0) return *told;
    return (blocks == 47 || blocks == 48) && json["vocab_size"] == 154880 ? 2 : 1;
}

// Routing that published V2 code calls greedy or group_limited_greedy, and V3 noaux_tc.
void add_experts(Metadata& data, std::int64_t blocks, Json& json) {
    const std::int64_t experts = data.integer("expert_count").value_or(0);
    if (experts == 0) {
        json["n_routed_experts"] = nullptr;
        return;
    }
    json["n_routed_experts"] = experts;
    json["num_experts_per_tok"] = data.integer("expert_used_count").value_or(0);
    json["norm_topk_prob"] = data.boolean("expert_weights_norm", false);
    const double scale = data.number("expert_weights_scale").value_or(1.0);
    json["routed_scaling_factor"] = scale == 0.0 ? 1.0 : scale;  // 0: none, as the format has it
    std::int64_t groups = data.integer("expert_group_count").value_or(0);
    std::int64_t chosen = data.integer("expert_group_used_count").value_or(0);
    if (groups == 0)
        for (const SilentGroups& known : kSilentGroups)
            if (known.layers == blocks && json["hidden_size"] == known.hidden &&
                known.experts == experts)
                groups = known.groups, chosen = known.chosen;
    json["n_group"] = std::max<std::int64_t>(groups, 1);
    json["topk_group"] = std::max<std::int64_t>(chosen, 1);
    const bool sigmoid = gating_of(data, blocks, json) == 2;
    json["scoring_func"] = name_of(sigmoid ? ScoringFunction::sigmoid : ScoringFunction::softmax);
    json["topk_method"] = name_of(sigmoid      ? TopkMethod::noaux_tc
                                  : groups > 1 ? TopkMethod::group_limited_greedy
                                               : TopkMethod::greedy);
}

// The file's multiplier is 0.1 · mscale_all_dim, and rope has magnitude 1, which is mscale equal to
// mscale_all_dim: so it is in every published model.
void add_rope(Metadata& data, Json& json) {
    const std::string type = data.text("rope.scaling.type", "none");
    for (const char* key : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
                            "rope.scaling.yarn_ext_factor"})
        data.require(key, 1.0);
    if (type == "none") return;
    if (type != "yarn")
        return data.refuse("rope.scaling.type", *data.find("rope.scaling.type"), "'none' or 'yarn'",
                           ErrorKind::unsupported);
    Json yarn = {{"type", "yarn"}};
    const auto copy = [&](std::string_view key, const char* field) {
        if (const GgufValue* value = data.find(key)) yarn[field] = plain_json(*value);
    };
    copy("rope.scaling.factor", "factor");
    copy("rope.scaling.original_context_length", "original_max_position_embeddings");
    copy("rope.scaling.yarn_beta_fast", "beta_fast");
    copy("rope.scaling.yarn_beta_slow", "beta_slow");
    // Times ten in decimals: 0.0707 means 0.707.
    const double tenth = data.number("rope.scaling.yarn_log_multiplier").value_or(0.0);
    const double mscale = std::round(tenth * 10.0 * 1e7) / 1e7;
    yarn["mscale"] = mscale;
    yarn["mscale_all_dim"] = mscale;
    json["rope_scaling"] = std::move(yarn);
}

Architecture architecture_of(const Json& json) {
    if (json["n_routed_experts"].is_null()) return Architecture::youtu;
    if (json["scoring_func"] == name_of(ScoringFunction::softmax)) return Architecture::deepseek_v2;
    if (json["v_head_dim"] == 256) return Architecture::glm4_moe_lite;
    return json["n_routed_experts"] == 384 ? Architecture::kimi_k2 : Architecture::deepseek_v3;
}

// Tokens that end a text, and the one that begins it.
void add_token_ids(const GgufHeader& header, Json& json) {
    Json ends = Json::array();
    for (const char* kind : {"eos", "eot", "eom", "eog"})
        if (const GgufValue* value = header.find(fmt::format("tokenizer.ggml.{}_token_id", kind)))
            if (Json id = plain_json(*value); std::ranges::find(ends, id) == ends.end())
                ends.push_back(std::move(id));
    json["eos_token_id"] = std::move(ends);
    if (const GgufValue* value = header.find("tokenizer.ggml.bos_token_id"))
        json["bos_token_id"] = plain_json(*value);
}

void add_vocabulary(const GgufHeader& header, Json& json) {
    if (json.contains("vocab_size")) return;
    if (const GgufValue* tokens = header.find("tokenizer.ggml.tokens"))
        json["vocab_size"] = tokens->count;
}

}  // namespace

Expected<ModelConfig> read_gguf_config(const GgufHeader& header, bool has_head,
                                       std::string_view name) {
    ESPALIER_RETURN_IF_ERROR(check_architecture(header, name));
    ESPALIER_RETURN_IF_ERROR(check_keys(header, name));
    Metadata data(header, name);
    Json json;
    for (const PlainKey& plain : kPlainKeys)
        if (const GgufValue* value = data.find(plain.key)) json[plain.field] = plain_json(*value);
    const auto blocks = data.integer("block_count");
    if (!blocks) data.missing("block_count");
    const std::int64_t extra = data.integer("nextn_predict_layers").value_or(0);
    if (extra < 0 || extra > blocks.value_or(0))
        data.refuse("nextn_predict_layers", *data.find("nextn_predict_layers"),
                    fmt::format("0 to {} blocks", blocks.value_or(0)));
    ESPALIER_RETURN_IF_ERROR(data.status());
    json["num_hidden_layers"] = *blocks - extra;
    json["tie_word_embeddings"] = !has_head;
    add_vocabulary(header, json);
    add_heads(data, json);
    add_experts(data, *blocks - extra, json);
    add_rope(data, json);
    add_token_ids(header, json);
    ESPALIER_RETURN_IF_ERROR(data.status());
    const FamilyWords& family = words_of(architecture_of(json));
    json["architectures"] = {family.class_name};
    json["model_type"] = family.model_type;
    return parse_model_config(json.dump(-1, ' ', true), name);
}

Expected<GenerationDefaults> read_gguf_generation(const GgufHeader& header, std::string_view name) {
    constexpr std::string_view kPrefix = "general.sampling.";
    constexpr std::array<PlainKey, 5> kKnown = {{{"temp", "temperature"},
                                                 {"top_p", "top_p"},
                                                 {"top_k", "top_k"},
                                                 {"min_p", "min_p"},
                                                 {"penalty_repeat", "repetition_penalty"}}};
    Json json = Json::object();
    std::vector<std::string> unused;
    for (const auto& [key, value] : header.values) {
        if (!key.starts_with(kPrefix)) continue;
        const std::string_view own = std::string_view(key).substr(kPrefix.size());
        const auto* known = std::ranges::find(kKnown, own, &PlainKey::key);
        if (known == kKnown.end())
            unused.push_back(key);
        else
            json[known->field] = plain_json(value);
    }
    json["do_sample"] = json.contains("temperature");
    ESPALIER_ASSIGN_OR_RETURN(GenerationDefaults defaults,
                              parse_generation_config(json.dump(-1, ' ', true), name));
    defaults.unused = std::move(unused);
    return defaults;
}

}  // namespace espalier::checkpoint
