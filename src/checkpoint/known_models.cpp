// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/known_models.hpp"

#include <algorithm>
#include <array>

namespace espalier::checkpoint {
namespace {

// Sizes of the published config.json files.
struct KnownModel {
    std::string_view name;
    Architecture architecture;
    Wrapper wrapper;
    std::int64_t layers, hidden, heads, experts, vocabulary;
};
constexpr std::array<KnownModel, 15> kKnownModels = {{
    {"DeepSeek-V2", Architecture::deepseek_v2, Wrapper::none, 60, 5120, 128, 160, 102400},
    {"DeepSeek-V2-Lite", Architecture::deepseek_v2, Wrapper::none, 27, 2048, 16, 64, 102400},
    {"DeepSeek-V3, V3.1 or R1", Architecture::deepseek_v3, Wrapper::none, 61, 7168, 128, 256,
     129280},
    {"DeepSeek-VL2's language model", Architecture::deepseek_v2, Wrapper::deepseek_vl2, 30, 2560,
     32, 72, 129280},
    {"DeepSeek-VL2-Small's language model", Architecture::deepseek_v2, Wrapper::deepseek_vl2, 27,
     2048, 16, 64, 102400},
    {"Moonlight-16B-A3B", Architecture::deepseek_v3, Wrapper::none, 27, 2048, 16, 64, 163840},
    {"Kimi-VL-A3B's language model", Architecture::deepseek_v3, Wrapper::kimi_vl, 27, 2048, 16, 64,
     163840},
    {"Kimi K2", Architecture::kimi_k2, Wrapper::none, 61, 7168, 64, 384, 163840},
    {"Kimi K2.5 or K2.6", Architecture::kimi_k2, Wrapper::kimi_k25, 61, 7168, 64, 384, 163840},
    {"GLM-4.7-Flash", Architecture::glm4_moe_lite, Wrapper::none, 47, 2048, 20, 64, 154880},
    {"DeepSeek-V3.2", Architecture::deepseek_v32, Wrapper::none, 61, 7168, 128, 256, 129280},
    {"GLM-5, 5.1, 5.2 or 5.3", Architecture::glm_moe_dsa, Wrapper::none, 78, 6144, 64, 256, 154880},
    {"Youtu-LLM-2B", Architecture::youtu, Wrapper::none, 32, 2048, 16, 0, 128256},
    {"Mistral Small 4", Architecture::mistral4, Wrapper::mistral3, 36, 4096, 32, 128, 131072},
    {"Sarvam-105B", Architecture::sarvam_mla, Wrapper::none, 32, 4096, 64, 128, 262144},
}};

}  // namespace

std::string_view published_name(const ModelConfig& config) {
    const auto found = std::ranges::find_if(kKnownModels, [&](const KnownModel& model) {
        return model.architecture == config.architecture && model.wrapper == config.wrapper &&
               model.layers == config.num_hidden_layers && model.hidden == config.hidden_size &&
               model.heads == config.num_attention_heads &&
               model.experts == config.n_routed_experts && model.vocabulary == config.vocab_size;
    });
    return found == kKnownModels.end() ? std::string_view() : found->name;
}

}  // namespace espalier::checkpoint
