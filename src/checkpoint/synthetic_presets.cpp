// SPDX-License-Identifier: Apache-2.0
// The models `espalier make-model --preset` knows: tiny ones, for tests; two whose attention has
// the width of the published models but whose weights fit a small machine, for benchmarks; and
// published models' own dimensions: DeepSeek-V2-Lite's (31 GB), in FP8 blocks the first six
// layers of V3's (60 GB) and the first four of Kimi K2's (56 GB), GLM-4.7-Flash's (62 GB,
// 18.4 GB with INT4) and six layers of it (9.1 GB, 3.5 GB with INT4), Mistral Small 4's (238 GB, 68
// GB with INT4).
#include <algorithm>
#include <array>

#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

ModelConfig common_config() {
    ModelConfig config;
    config.vocab_size = 512;
    config.hidden_size = 128;
    config.num_hidden_layers = 3;
    config.num_attention_heads = 4;
    config.intermediate_size = 256;
    config.moe_intermediate_size = 64;
    config.first_k_dense_replace = 1;
    config.n_routed_experts = 8;
    config.num_experts_per_tok = 2;
    config.max_position_embeddings = 163840;
    config.bos_token_id = 0;
    config.eos_token_ids = {1};
    return config;
}

YarnScaling published_yarn(double mscale) {
    YarnScaling yarn;
    yarn.factor = 40.0;
    yarn.mscale = mscale;
    yarn.mscale_all_dim = mscale;
    return yarn;
}

SyntheticModel tiny_v2() {
    SyntheticModel model{.config = common_config()};
    model.config.architecture = Architecture::deepseek_v2;
    model.config.n_shared_experts = 2;
    model.config.yarn = published_yarn(0.707);
    return model;
}

SyntheticModel tiny_v3() {
    SyntheticModel model{.config = common_config()};
    ModelConfig& config = model.config;
    config.architecture = Architecture::deepseek_v3;
    config.num_nextn_predict_layers = 1;
    config.q_lora_rank = 96;
    config.n_shared_experts = 1;
    config.n_group = 4;
    config.topk_group = 2;
    config.norm_topk_prob = true;
    config.routed_scaling_factor = 2.5;
    config.topk_method = TopkMethod::noaux_tc;
    config.scoring = ScoringFunction::sigmoid;
    config.yarn = published_yarn(1.0);
    return model;
}

SyntheticModel bench(std::int64_t heads) {
    SyntheticModel model = tiny_v3();
    ModelConfig& config = model.config;
    config.vocab_size = 8192;
    config.hidden_size = 1024;
    config.num_hidden_layers = 4;
    config.num_nextn_predict_layers = 0;
    config.num_attention_heads = heads;
    config.q_lora_rank = 512;
    config.intermediate_size = 3072;
    config.moe_intermediate_size = 512;
    config.n_routed_experts = 16;
    config.num_experts_per_tok = 4;
    config.n_group = 1;
    config.topk_group = 1;
    config.yarn.reset();
    config.max_position_embeddings = 131072;
    return model;
}

SyntheticModel v2_lite() {
    SyntheticModel model = tiny_v2();
    ModelConfig& config = model.config;
    config.vocab_size = 102400;
    config.hidden_size = 2048;
    config.num_hidden_layers = 27;
    config.num_attention_heads = 16;
    config.intermediate_size = 10944;
    config.moe_intermediate_size = 1408;
    config.n_routed_experts = 64;
    config.num_experts_per_tok = 6;
    return model;
}

SyntheticModel v3_slice() {
    SyntheticModel model = tiny_v3();
    ModelConfig& config = model.config;
    config.vocab_size = 129280;
    config.hidden_size = 7168;
    config.num_hidden_layers = 6;
    config.num_nextn_predict_layers = 0;
    config.num_attention_heads = 128;
    config.q_lora_rank = 1536;
    config.intermediate_size = 18432;
    config.moe_intermediate_size = 2048;
    config.n_routed_experts = 256;
    config.num_experts_per_tok = 8;
    config.n_group = 8;
    config.topk_group = 4;
    config.fp8_block = 128;
    model.dtype = DType::e4m3;
    return model;
}

SyntheticModel k2_slice() {
    SyntheticModel model = v3_slice();
    ModelConfig& config = model.config;
    config.architecture = Architecture::kimi_k2;
    config.vocab_size = 163840;
    config.num_hidden_layers = 4;
    config.num_attention_heads = 64;
    config.n_routed_experts = 384;
    config.n_group = 1;
    config.topk_group = 1;
    config.routed_scaling_factor = 2.827;
    config.rope_theta = 50000.0;
    config.yarn->factor = 32.0;
    config.yarn->beta_fast = 1.0;
    config.max_position_embeddings = 131072;
    return model;
}

ModelConfig glm_config() {
    ModelConfig config = common_config();
    config.architecture = Architecture::glm4_moe_lite;
    config.num_nextn_predict_layers = 1;
    config.qk_nope_head_dim = 192;
    config.v_head_dim = 256;
    config.n_shared_experts = 1;
    config.norm_topk_prob = true;
    config.routed_scaling_factor = 1.8;
    config.topk_method = TopkMethod::noaux_tc;
    config.scoring = ScoringFunction::sigmoid;
    config.rms_norm_eps = 1e-5;
    config.rope_theta = 1e6;
    config.max_position_embeddings = 202752;
    return config;
}

SyntheticModel tiny_glm() {
    SyntheticModel model{.config = glm_config()};
    model.config.num_attention_heads = 5;
    model.config.q_lora_rank = 48;
    return model;
}

// Indexers choose 32 keys, so that the choice bites in tests.
SyntheticModel tiny_v32() {
    SyntheticModel model = tiny_v3();
    model.config.architecture = Architecture::deepseek_v32;
    model.config.indexer = {.heads = 8, .head_dim = 128, .top_k = 32};
    return model;
}

SyntheticModel tiny_glm5() {
    SyntheticModel model = tiny_glm();
    ModelConfig& config = model.config;
    config.architecture = Architecture::glm_moe_dsa;
    config.routed_scaling_factor = 2.5;
    config.indexer = {.heads = 4,
                      .head_dim = 128,
                      .top_k = 32,
                      .interleaved = true,
                      .shared = {false, true, false}};
    return model;
}

SyntheticModel glm_flash(std::int64_t layers) {
    SyntheticModel model{.config = glm_config()};
    ModelConfig& config = model.config;
    config.vocab_size = 154880;
    config.hidden_size = 2048;
    config.num_hidden_layers = layers;
    config.num_attention_heads = 20;
    config.q_lora_rank = 768;
    config.intermediate_size = 10240;
    config.moe_intermediate_size = 1536;
    config.n_routed_experts = 64;
    config.num_experts_per_tok = 4;
    return model;
}

// The tiny one's queries grow from position 64 on, where the published model's do from 8,192.
ModelConfig mistral_config(std::int64_t original_positions) {
    ModelConfig config = common_config();
    config.architecture = Architecture::mistral4;
    config.q_lora_rank = 96;
    config.kv_lora_rank = 256;
    config.qk_nope_head_dim = 64;
    config.first_k_dense_replace = 0;
    config.n_shared_experts = 1;
    config.norm_topk_prob = true;
    config.yarn = YarnScaling{.factor = 128.0,
                              .mscale_all_dim = 1.0,
                              .original_max_position_embeddings = original_positions};
    config.query_scaling_beta = 0.1;
    config.max_position_embeddings = 128 * original_positions;
    return config;
}

SyntheticModel tiny_mistral4() { return {.config = mistral_config(64)}; }

SyntheticModel mistral_small_4() {
    SyntheticModel model{.config = mistral_config(8192)};
    ModelConfig& config = model.config;
    config.vocab_size = 131072;
    config.hidden_size = 4096;
    config.num_hidden_layers = 36;
    config.num_attention_heads = 32;
    config.q_lora_rank = 1024;
    config.intermediate_size = 12288;
    config.moe_intermediate_size = 2048;
    config.n_routed_experts = 128;
    config.num_experts_per_tok = 4;
    config.bos_token_id = 1;
    config.eos_token_ids = {2};
    return model;
}

struct Preset {
    std::string_view name;
    SyntheticModel (*make)();
};
constexpr auto kPresets = std::to_array<Preset>({
    {"tiny-v2", tiny_v2},
    {"tiny-v3", tiny_v3},
    {"tiny-glm", tiny_glm},
    {"tiny-v32", tiny_v32},
    {"tiny-glm5", tiny_glm5},
    {"tiny-mistral4", tiny_mistral4},
    {"bench-128h", [] { return bench(128); }},
    {"bench-16h", [] { return bench(16); }},
    {"v2-lite", v2_lite},
    {"v3-slice", v3_slice},
    {"k2-slice", k2_slice},
    {"glm-flash", [] { return glm_flash(47); }},
    {"glm-flash-slice", [] { return glm_flash(6); }},
    {"mistral-small-4", mistral_small_4},
});

struct NamedDtype {
    std::string_view name;
    DType dtype = DType::bf16;
    Quantization quantization = {};
};
constexpr std::array<NamedDtype, 9> kDtypes = {{
    {"f32", DType::f32},
    {"f16", DType::f16},
    {"bf16", DType::bf16},
    {"fp8", DType::e4m3},
    {"int8", DType::bf16, {QuantizedLayout::int8, 8, 32}},
    {"int4", DType::bf16, {QuantizedLayout::packed_integers, 4, 32}},
    {"nvfp4", DType::bf16, {QuantizedLayout::nvfp4, 4, 16}},
    {"awq", DType::bf16, {QuantizedLayout::awq, 4, 32, true}},
    {"int4_zero", DType::bf16, {QuantizedLayout::packed_integers, 4, 32, true}},
}};

}  // namespace

std::vector<std::string_view> synthetic_dtype_names() {
    std::vector<std::string_view> names;
    for (const NamedDtype& dtype : kDtypes) names.push_back(dtype.name);
    return names;
}

Expected<void> store_as(std::string_view dtype, SyntheticModel& model) {
    const auto found = std::ranges::find(kDtypes, dtype, &NamedDtype::name);
    if (found == kDtypes.end())
        return fail(ErrorKind::not_found, "dtype '{}' is unknown; there are {}", dtype,
                    fmt::join(synthetic_dtype_names(), ", "));
    model.dtype = found->dtype;
    model.config.quantization = found->quantization;
    // AWQ cuts inputs into whole groups.
    if (Quantization& stored = model.config.quantization;
        stored.layout == QuantizedLayout::awq && model.config.q_lora_rank % stored.group != 0)
        stored.group = 16;
    model.config.fp8_block =
        model.dtype == DType::e4m3 ? std::optional<std::int64_t>(128) : std::nullopt;
    return {};
}

std::vector<std::string_view> synthetic_preset_names() {
    std::vector<std::string_view> names;
    for (const Preset& preset : kPresets) names.push_back(preset.name);
    return names;
}

SyntheticDraft synthetic_draft_for(const SyntheticModel& model) {
    const ModelConfig& target = model.config;
    SyntheticDraft draft;
    ModelConfig& layer = draft.config.layer;
    layer.vocab_size = target.vocab_size;
    layer.hidden_size = target.hidden_size;
    layer.num_hidden_layers = 1;
    layer.num_attention_heads = target.num_attention_heads;
    layer.q_lora_rank = target.q_lora_rank;
    layer.kv_lora_rank = target.kv_lora_rank;
    layer.qk_nope_head_dim = target.qk_nope_head_dim;
    layer.v_head_dim = target.v_head_dim;
    layer.intermediate_size = target.intermediate_size;
    layer.rms_norm_eps = target.rms_norm_eps;
    layer.rope_theta = target.rope_theta;
    layer.yarn = target.yarn;
    layer.max_position_embeddings = target.max_position_embeddings;
    layer.fp8_block = target.fp8_block;
    draft.config.target_hidden_size = target.hidden_size;
    draft.config.draft_vocab_size = std::max<std::int64_t>(1, target.vocab_size / 2);
    const std::int64_t layers = target.num_hidden_layers;
    draft.config.aux_layer_ids = {0, layers / 2, layers};
    draft.tensors.dtype = model.dtype;
    draft.seed = model.seed;
    return draft;
}

Expected<SyntheticModel> synthetic_preset(std::string_view name) {
    for (const Preset& preset : kPresets)
        if (preset.name == name) return preset.make();
    return fail(ErrorKind::not_found, "preset '{}' is unknown; there are {}", name,
                fmt::join(synthetic_preset_names(), ", "));
}

}  // namespace espalier::checkpoint
