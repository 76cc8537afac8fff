// SPDX-License-Identifier: Apache-2.0
// The words config.json uses for what ModelConfig holds as enums: one table for the reader and the
// writer.
#pragma once

#include <array>
#include <string_view>

#include "checkpoint/model_config.hpp"

namespace espalier::checkpoint {

struct FamilyWords {
    Architecture architecture;
    std::string_view name;        // for people
    std::string_view class_name;  // first of "architectures"
    std::string_view model_type;
};
inline constexpr std::array<FamilyWords, 3> kFamilies = {{
    {Architecture::deepseek_v2, "DeepSeek-V2", "DeepseekV2ForCausalLM", "deepseek_v2"},
    {Architecture::deepseek_v3, "DeepSeek-V3", "DeepseekV3ForCausalLM", "deepseek_v3"},
    {Architecture::kimi_k2, "Kimi K2", "DeepseekV3ForCausalLM", "kimi_k2"},
}};

// Classes that wrap one of the families in text_config, tensors under "language_model.".
inline constexpr std::array<std::string_view, 2> kWrapperClasses = {
    "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration"};

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
