// SPDX-License-Identifier: Apache-2.0
// The words config.json uses for what ModelConfig holds as enums: one table for the reader and the
// writer.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "checkpoint/model_config.hpp"

namespace espalier::checkpoint {

struct FamilyWords {
    Architecture architecture;
    std::string_view name;        // for people
    std::string_view class_name;  // first of "architectures"
    std::string_view model_type;
};
inline constexpr std::array<FamilyWords, 9> kFamilies = {{
    {Architecture::deepseek_v2, "DeepSeek-V2", "DeepseekV2ForCausalLM", "deepseek_v2"},
    {Architecture::deepseek_v3, "DeepSeek-V3", "DeepseekV3ForCausalLM", "deepseek_v3"},
    {Architecture::kimi_k2, "Kimi K2", "DeepseekV3ForCausalLM", "kimi_k2"},
    {Architecture::glm4_moe_lite, "GLM-4 MoE Lite", "Glm4MoeLiteForCausalLM", "glm4_moe_lite"},
    {Architecture::youtu, "Youtu", "YoutuForCausalLM", "youtu"},
    {Architecture::mistral4, "Mistral Small 4", "Mistral4ForCausalLM", "mistral4"},
    {Architecture::sarvam_mla, "Sarvam MLA", "SarvamMLAForCausalLM", "sarvam_mla"},
    {Architecture::deepseek_v32, "DeepSeek-V3.2", "DeepseekV32ForCausalLM", "deepseek_v32"},
    {Architecture::glm_moe_dsa, "GLM-5", "GlmMoeDsaForCausalLM", "glm_moe_dsa"},
}};

constexpr bool has_indexer(Architecture architecture) {
    return architecture == Architecture::deepseek_v32 || architecture == Architecture::glm_moe_dsa;
}

// Models that also see: one of the families stands in their config.json under a key of its own, and
// its tensors under a prefix. What else the files hold is left out by these lists.
struct WrapperWords {
    Wrapper wrapper;
    std::string_view class_name;
    std::string_view model_type;
    const char* text_key;
    std::string_view tensor_prefix;
    std::array<std::string_view, 5> vision_prefixes;  // empty ones are none
};
inline constexpr std::array<WrapperWords, 4> kWrappers = {{
    {Wrapper::kimi_k25,
     "KimiK25ForConditionalGeneration",
     "kimi_k25",
     "text_config",
     "language_model.",
     {"vision_tower.", "mm_projector."}},
    {Wrapper::kimi_vl,
     "KimiVLForConditionalGeneration",
     "kimi_vl",
     "text_config",
     "language_model.",
     {"vision_tower.", "multi_modal_projector."}},
    {Wrapper::deepseek_vl2,
     "DeepseekVLV2ForCausalLM",
     "deepseek_vl_v2",
     "language_config",
     "language.",
     {"vision.", "projector.", "image_newline", "view_seperator", "tile_indicators"}},
    {Wrapper::mistral3,
     "Mistral3ForConditionalGeneration",
     "mistral3",
     "text_config",
     "language_model.",
     {"vision_tower.", "multi_modal_projector."}},
}};

// Null: none.
constexpr const WrapperWords* words_of(Wrapper wrapper) {
    for (const WrapperWords& words : kWrappers)
        if (words.wrapper == wrapper) return &words;
    return nullptr;
}

constexpr const FamilyWords& words_of(Architecture architecture) {
    for (const FamilyWords& family : kFamilies)
        if (family.architecture == architecture) return family;
    return kFamilies[0];
}

constexpr std::string_view name_of(TopkMethod method) {
    switch (method) {
        case TopkMethod::greedy:
            return "greedy";
        case TopkMethod::group_limited_greedy:
            return "group_limited_greedy";
        case TopkMethod::noaux_tc:
            return "noaux_tc";
    }
    return "?";
}

constexpr std::string_view name_of(ScoringFunction scoring) {
    return scoring == ScoringFunction::softmax ? "softmax" : "sigmoid";
}

}  // namespace espalier::checkpoint
