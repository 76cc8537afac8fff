// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config_family.hpp"

#include <algorithm>
#include <array>

#include "checkpoint/config_fields.hpp"
#include "checkpoint/config_words.hpp"

namespace espalier::checkpoint {
namespace {

// Relatives that look alike but compute something else. A class or model_type that begins so is
// refused with the name people know it by and the reason, as far as their sources (transformers
// 5.22.2, vLLM's mistral_large_3.py) show it.
struct Relative {
    std::string_view class_prefix;
    std::string_view model_type_prefix;
    std::string_view name;
};
constexpr std::array<Relative, 14> kRelatives = {{
    {"DeepseekV4", "deepseek_v4", "DeepSeek-V4"},
    {"DeepseekO", "deepseek_ocr", "DeepSeek-OCR (keys and values of each head, no latents)"},
    {"KimiK3", "kimi_k3", "Kimi K3"},
    {"KimiLinear", "kimi_linear", "Kimi Linear (linear attention in three layers of four)"},
    {"Glm5Next", "glm5_next", "GLM-5.3-Flash (linear attention, and an indexer over pooled keys)"},
    {"Glm4MoeFor", "glm4_moe", "GLM-4.5 to GLM-4.7 (grouped heads, no latents)"},
    {"MiniCPM3", "minicpm3", "MiniCPM3 (32 rope columns where the attention library has 64)"},
    {"MistralLarge3", "mistral_large_3",
     "Mistral Large 3 (published in Mistral's own files, params.json and consolidated tensors)"},
    {"MistralLarge4", "mistral_large4", "Mistral Large 4 (sparse attention with an indexer)"},
    {"LongcatFlash", "longcat_flash",
     "LongCat-Flash (two attentions in a layer, experts that compute nothing)"},
    {"BailingHybrid", "bailing_hybrid", "Ling 2.5 (linear attention in most layers)"},
    {"AXK1", "axk1", "A.X K1 (a norm behind the experts)"},
    {"AXK2", "axk2", "A.X K2 (sparse attention with an indexer)"},
    {"HYV4", "hy_v4", "Hunyuan V4 (sparse attention with an indexer)"},
}};

std::string supported_list() {
    std::string list;
    for (const FamilyWords& family : kFamilies)
        fmt::format_to(std::back_inserter(list), "{} ({}, {}), ", family.name, family.class_name,
                       family.model_type);
    list += "also inside";
    for (const WrapperWords& wrapper : kWrappers)
        fmt::format_to(std::back_inserter(list), "{} {}",
                       wrapper.wrapper == kWrappers.front().wrapper ? "" : ",", wrapper.class_name);
    return list;
}

struct ClassNames {
    std::string class_name;  // empty when the object names none
    std::string model_type;
};

ClassNames class_names(ConfigFields& fields) {
    return {class_name_of(fields), fields.text("model_type", "")};
}

std::optional<Architecture> architecture_of(const ClassNames& names) {
    for (const FamilyWords& family : kFamilies) {
        const bool class_fits = names.class_name == family.class_name ||
                                (family.architecture == Architecture::kimi_k2 &&
                                 names.class_name == "KimiK2ForCausalLM");
        const bool type_fits = names.model_type == family.model_type;
        if ((class_fits && type_fits) || (class_fits && names.model_type.empty()) ||
            (type_fits && names.class_name.empty()))
            return family.architecture;
    }
    return std::nullopt;
}

Expected<void> refuse_relatives(const ClassNames& names, std::string_view place) {
    if (architecture_of(names)) return {};
    for (const Relative& relative : kRelatives)
        if (names.class_name.starts_with(relative.class_prefix) ||
            names.model_type.starts_with(relative.model_type_prefix))
            return fail(ErrorKind::unsupported,
                        "{}: architecture '{}', model_type '{}' is {}, which is not supported; "
                        "supported are {}",
                        place, names.class_name, names.model_type, relative.name, supported_list());
    return {};
}

// By class, or by model_type where no class is named (DeepSeek-VL2's config.json names none).
const WrapperWords* wrapper_of(const ClassNames& names) {
    const auto found = std::ranges::find_if(kWrappers, [&](const WrapperWords& wrapper) {
        return names.class_name == wrapper.class_name ||
               (names.class_name.empty() && names.model_type == wrapper.model_type);
    });
    return found == kWrappers.end() ? nullptr : &*found;
}

}  // namespace

std::string class_name_of(ConfigFields& fields) {
    const nlohmann::json* list = fields.find("architectures");
    if (list == nullptr) return "";
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
        fields.refuse(ErrorKind::invalid, "architectures is {}, expected a list of class names",
                      list->is_array() ? "a list without a name" : ConfigFields::shown(*list));
        return "";
    }
    return list->front().get<std::string>();
}

Expected<ConfigFamily> find_family(const nlohmann::json& document, std::string_view name) {
    ConfigFields outer(document, std::string(name));
    const ClassNames outer_names = class_names(outer);
    ESPALIER_RETURN_IF_ERROR(outer.status());
    ESPALIER_RETURN_IF_ERROR(refuse_relatives(outer_names, name));

    ConfigFamily family{
        .architecture = Architecture::deepseek_v3, .text = &document, .place = std::string(name)};
    ClassNames names = outer_names;
    if (const WrapperWords* wrapper = wrapper_of(outer_names)) {
        family.wrapper = wrapper->wrapper;
        family.text = outer.object(wrapper->text_key);
        ESPALIER_RETURN_IF_ERROR(outer.status());
        if (family.text == nullptr)
            return fail(ErrorKind::not_found, "{}: {} without {}", name, wrapper->class_name,
                        wrapper->text_key);
        family.place = fmt::format("{}: {}", name, wrapper->text_key);
        ConfigFields inner(*family.text, family.place);
        names = class_names(inner);
        ESPALIER_RETURN_IF_ERROR(inner.status());
        ESPALIER_RETURN_IF_ERROR(refuse_relatives(names, family.place));
    }
    const auto architecture = architecture_of(names);
    if (!architecture)
        return fail(ErrorKind::unsupported,
                    "{}: architecture '{}', model_type '{}' is not supported; supported are {}",
                    family.place, names.class_name, names.model_type, supported_list());
    family.architecture = *architecture;
    for (const char* field : {"index_topk", "index_n_heads", "index_head_dim"})
        if (!has_indexer(family.architecture) && family.text->contains(field))
            return fail(ErrorKind::unsupported, "{}: has {}: {} models have no indexer",
                        family.place, field, name_of(family.architecture));
    return family;
}

namespace {

std::string rope_type(ConfigFields& rope, Architecture architecture) {
    const std::string type = rope.text("type", "");
    const std::string rope_type = rope.text("rope_type", type);
    if (!type.empty() && type != rope_type)
        rope.refuse(ErrorKind::invalid, "type is '{}' but rope_type is '{}'", type, rope_type);
    // Sarvam's word for YaRN with DeepSeek's mscale, which is what "yarn" is here.
    if (architecture == Architecture::sarvam_mla && rope_type == "deepseek_yarn") return "yarn";
    return rope_type.empty() ? "default" : rope_type;
}

// Mistral's class counts the rotated columns as a share of a head's, the others as all there are.
void refuse_partial_rotation(ConfigFields& fields, const ModelConfig& config) {
    const double only = config.architecture == Architecture::mistral4
                            ? static_cast<double>(config.qk_rope_head_dim) /
                                  static_cast<double>(config.query_head_dim())
                            : 1.0;
    if (const double factor = fields.number("partial_rotary_factor", 0.0, 1e6, only);
        factor != only)
        fields.refuse(ErrorKind::unsupported, "partial_rotary_factor is {}, only {} is supported",
                      factor, only);
}

// A misspelt field would leave its default in place, and one of YaRN without a type none of it.
void refuse_unknown_fields(ConfigFields& rope, const nlohmann::json& object, bool yarn,
                           Architecture architecture) {
    constexpr std::array<std::string_view, 4> kAlways = {"type", "rope_type", "rope_theta",
                                                         "partial_rotary_factor"};
    constexpr std::array<std::string_view, 8> kYarn = {
        "factor",           "beta_fast",      "beta_slow",
        "mscale",           "mscale_all_dim", "original_max_position_embeddings",
        "attention_factor", "truncate"};
    // The class repeats the model's own number of positions here.
    constexpr std::array<std::string_view, 2> kMistral = {"llama_4_scaling_beta",
                                                          "max_position_embeddings"};
    for (const auto& [key, value] : object.items()) {
        if (architecture == Architecture::mistral4 &&
            std::ranges::find(kMistral, key) != kMistral.end())
            continue;
        if (value.is_null() || std::ranges::find(kAlways, key) != kAlways.end()) continue;
        const bool of_yarn = std::ranges::find(kYarn, key) != kYarn.end();
        if (of_yarn && !yarn)
            rope.refuse(ErrorKind::invalid, "has {} of 'yarn', but no type", key);
        else if (!of_yarn)
            rope.refuse(ErrorKind::unsupported, "{} is not known; known are {}, {}", key,
                        fmt::join(kAlways, ", "), fmt::join(kYarn, ", "));
    }
}

void read_yarn(ConfigFields& rope, ModelConfig& config) {
    if (config.rope_theta <= 1.0)
        rope.refuse(ErrorKind::invalid, "type is 'yarn' with rope_theta {}, expected more than 1",
                    config.rope_theta);
    YarnScaling yarn;
    yarn.factor = rope.number("factor", 1.0, 1e4);
    yarn.beta_fast = rope.number("beta_fast", 1e-3, 1e4, yarn.beta_fast);
    yarn.beta_slow = rope.number("beta_slow", 1e-3, 1e4, yarn.beta_slow);
    yarn.mscale = rope.number("mscale", 0.0, 100.0, yarn.mscale);
    yarn.mscale_all_dim = rope.number("mscale_all_dim", 0.0, 100.0, yarn.mscale_all_dim);
    yarn.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", 1, 1 << 30);
    if (yarn.beta_fast < yarn.beta_slow)
        rope.refuse(ErrorKind::invalid, "beta_fast is {}, below beta_slow {}", yarn.beta_fast,
                    yarn.beta_slow);
    if (rope.has("attention_factor"))
        rope.refuse(ErrorKind::unsupported,
                    "attention_factor is given; only mscale and mscale_all_dim are supported");
    if (!rope.boolean("truncate", true))
        rope.refuse(ErrorKind::unsupported, "truncate is false, only true is supported");
    config.yarn = yarn;
}

// Published code divides positions by YaRN's original context, and fails without either number.
void read_query_scaling(ConfigFields& rope, ModelConfig& config) {
    config.query_scaling_beta = rope.number("llama_4_scaling_beta", 0.0, 100.0);
    if (!config.yarn && config.query_scaling_beta != 0.0)
        rope.refuse(ErrorKind::unsupported,
                    "llama_4_scaling_beta is {} without 'yarn', whose original context it counts "
                    "positions in",
                    config.query_scaling_beta);
}

}  // namespace

void read_rope(ConfigFields& fields, ModelConfig& config) {
    constexpr double kMaxTheta = 1e12;
    config.rope_theta = fields.number("rope_theta", 1.0, kMaxTheta, 10000.0);
    refuse_partial_rotation(fields, config);
    const nlohmann::json* scaling = fields.object("rope_scaling");
    const nlohmann::json* parameters = fields.object("rope_parameters");
    if (scaling != nullptr && parameters != nullptr) {
        fields.refuse(ErrorKind::invalid, "has both rope_scaling and rope_parameters");
        return;
    }
    if (scaling == nullptr && parameters == nullptr) {
        if (config.architecture == Architecture::mistral4)
            fields.refuse(ErrorKind::not_found, "rope_parameters is missing");
        return;
    }
    ConfigFields rope(scaling != nullptr ? *scaling : *parameters,
                      fmt::format("{}: {}", fields.place(),
                                  scaling != nullptr ? "rope_scaling" : "rope_parameters"));
    if (rope.has("rope_theta")) {
        const double theta = rope.number("rope_theta", 1.0, kMaxTheta);
        if (fields.has("rope_theta") && theta != config.rope_theta)
            rope.refuse(ErrorKind::invalid, "rope_theta is {} but {} outside", theta,
                        config.rope_theta);
        config.rope_theta = theta;
    }
    refuse_partial_rotation(rope, config);
    const std::string type = rope_type(rope, config.architecture);
    if (type == "yarn")
        read_yarn(rope, config);
    else if (type != "default")
        rope.refuse(ErrorKind::unsupported,
                    "type '{}' is not supported; supported are none and 'yarn'", type);
    if (config.architecture == Architecture::mistral4) read_query_scaling(rope, config);
    refuse_unknown_fields(rope, scaling != nullptr ? *scaling : *parameters, type == "yarn",
                          config.architecture);
    fields.absorb(rope);
}

}  // namespace espalier::checkpoint
