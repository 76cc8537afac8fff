// SPDX-License-Identifier: Apache-2.0
// The published configurations, trimmed to what matters, and the defaults of what a file leaves
// out.
#include "checkpoint/model_config.hpp"

#include "checkpoint/known_models.hpp"
#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

constexpr const char* kV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
  "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu",
  "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
  "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
  "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
  "v_head_dim": 128, "vocab_size": 102400})";

constexpr const char* kV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 0, "eos_token_id": 1,
  "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                          "weight_block_size": [128, 128]},
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
  "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128,
  "vocab_size": 129280})";

constexpr const char* kKimiFields =
    R"("architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
  "bos_token_id": 163584, "eos_token_id": 163585, "first_k_dense_replace": 1, "hidden_act": "silu",
  "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
  "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
  "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
  "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
  "vocab_size": 163840)";

constexpr const char* kGlmFlash = R"({
  "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829], "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 10240, "max_position_embeddings": 202752, "model_type": "glm4_moe_lite",
  "moe_intermediate_size": 1536, "topk_method": "noaux_tc", "norm_topk_prob": true, "num_attention_heads": 20,
  "n_group": 1, "topk_group": 1, "n_routed_experts": 64, "n_shared_experts": 1, "routed_scaling_factor": 1.8,
  "num_experts_per_tok": 4, "first_k_dense_replace": 1, "num_hidden_layers": 47, "num_key_value_heads": 20,
  "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 1000000, "tie_word_embeddings": false, "dtype": "bfloat16", "q_lora_rank": 768,
  "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880})";

constexpr const char* kMoonlight = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "bos_token_id": 163584, "eos_token_id": 163585, "ep_size": 1,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11264,
  "kv_lora_rank": 512, "max_position_embeddings": 8192, "model_type": "deepseek_v3",
  "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
  "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts_per_tok": 6,
  "num_hidden_layers": 27, "num_key_value_heads": 16, "num_nextn_predict_layers": 0, "pretraining_tp": 1,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 50000, "routed_scaling_factor": 2.446, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
  "vocab_size": 163840})";

constexpr const char* kYoutu = R"({
  "architectures": ["YoutuForCausalLM"], "model_type": "youtu", "bos_token_id": 128000, "eos_token_id": 128001,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "kv_lora_rank": 512,
  "max_position_embeddings": 131072, "num_attention_heads": 16, "num_hidden_layers": 32,
  "num_key_value_heads": 16, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06, "rope_interleave": true, "rope_theta": 1600000, "v_head_dim": 128, "vocab_size": 128256})";

// DeepSeek-VL2's largest names no class and leaves sizes out that have its class's value.
constexpr const char* kVl2 = R"({
  "model_type": "deepseek_vl_v2", "tile_tag": "2D", "projector_config": {"n_embed": 2560}, "vision_config": {},
  "language_config": {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "bos_token_id": 0,
    "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_size": 2560, "intermediate_size": 12288,
    "kv_lora_rank": 512, "max_position_embeddings": 4096, "moe_intermediate_size": 1536, "n_group": 1,
    "n_routed_experts": 72, "n_shared_experts": 2, "norm_topk_prob": true, "num_experts_per_tok": 6,
    "q_lora_rank": null, "routed_scaling_factor": 2.0, "scoring_func": "sigmoid", "topk_group": 1,
    "topk_method": "noaux_tc", "use_mla": true, "vocab_size": 129280}})";

constexpr const char* kMistralSmall4 = R"({
  "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "image_token_index": 10,
  "quantization_config": {"activation_scheme": "static", "quant_method": "fp8", "weight_block_size": null,
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]},
  "text_config": {
    "model_type": "mistral4", "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
    "first_k_dense_replace": 0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 12288, "kv_lora_rank": 256, "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 4, "num_hidden_layers": 36,
    "num_key_value_heads": 32, "pretraining_tp": 1, "q_lora_rank": 1024, "qk_head_dim": 128,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": true,
    "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 128.0, "llama_4_scaling_beta": 0.1,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 8192,
      "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "yarn", "type": "yarn"},
    "routed_scaling_factor": 1.0, "sliding_window": null, "tie_word_embeddings": false, "topk_group": 1,
    "v_head_dim": 128, "vocab_size": 131072},
  "vision_config": {"model_type": "pixtral"}})";

// Fields of the class of vLLM's sarvam.py, whose names for experts are its own.
constexpr const char* kSarvam = R"({
  "architectures": ["SarvamMLAForCausalLM"], "model_type": "sarvam_mla", "hidden_size": 4096,
  "intermediate_size": 16384, "moe_intermediate_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 64,
  "num_experts": 128, "num_shared_experts": 1, "num_experts_per_tok": 8, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 576, "first_k_dense_replace": 1,
  "max_position_embeddings": 131072, "rope_theta": 10000.0, "score_function": "sigmoid", "vocab_size": 262144,
  "rope_scaling": {"type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}})";

// The fewest fields a file may have, with `more` added.
std::string minimal(const std::string& family, const std::string& more) {
    return R"({"architectures": ["Deepseek)" + family +
           R"(ForCausalLM"], "vocab_size": 512, "hidden_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 4096)" +
           more + "}";
}

ModelConfig parsed(const std::string& text) {
    const auto config = parse_model_config(text, "config.json");
    EXPECT_TRUE(config) << config.error().message;
    return config ? *config : ModelConfig{};
}

TEST(ModelConfig, DeepseekV2Lite) {
    const ModelConfig config = parsed(kV2Lite);
    EXPECT_EQ(config.architecture, Architecture::deepseek_v2);
    EXPECT_EQ(config.q_lora_rank, 0);
    EXPECT_EQ(config.n_shared_experts, 2);
    EXPECT_EQ(config.num_experts_per_tok, 6);
    EXPECT_EQ(config.num_nextn_predict_layers, 0);
    EXPECT_EQ(config.topk_method, TopkMethod::greedy);
    EXPECT_EQ(config.scoring, ScoringFunction::softmax);
    EXPECT_FALSE(config.norm_topk_prob);
    ASSERT_TRUE(config.yarn);
    EXPECT_EQ(config.yarn->mscale, 0.707);
    EXPECT_EQ(config.yarn->factor, 40.0);
    EXPECT_FALSE(config.fp8_block);
    EXPECT_EQ(config.eos_token_ids, std::vector<std::int32_t>{100001});
    EXPECT_EQ(config.bos_token_id, 100000);
    EXPECT_FALSE(config.layer_is_moe(0));
    EXPECT_TRUE(config.layer_is_moe(1));
}

TEST(ModelConfig, DeepseekV3) {
    const ModelConfig config = parsed(kV3);
    EXPECT_EQ(config.architecture, Architecture::deepseek_v3);
    EXPECT_EQ(config.fp8_block, 128);
    EXPECT_EQ(config.n_group, 8);
    EXPECT_EQ(config.topk_group, 4);
    EXPECT_EQ(config.num_nextn_predict_layers, 1);
    EXPECT_EQ(config.topk_method, TopkMethod::noaux_tc);
    EXPECT_EQ(config.scoring, ScoringFunction::sigmoid);
    EXPECT_EQ(config.routed_scaling_factor, 2.5);
    EXPECT_EQ(config.vocab_size, 129280);
    EXPECT_EQ(config.tensor_prefix(), "");
    EXPECT_EQ(published_name(config), "DeepSeek-V3, V3.1 or R1");
}

TEST(ModelConfig, K2SliceHasKimiK2sDimensions) {
    ModelConfig slice = parsed("{" + std::string(kKimiFields) + "}");
    const SyntheticModel made = *synthetic_preset("k2-slice");
    slice.num_hidden_layers = 4;
    slice.fp8_block = 128;
    slice.bos_token_id = made.config.bos_token_id;  // of the tokenizer that is made with it
    slice.eos_token_ids = made.config.eos_token_ids;
    EXPECT_EQ(made.config, slice);
    EXPECT_EQ(made.dtype, DType::e4m3);
}

TEST(ModelConfig, KimiK2AlsoNestedInTextConfig) {
    const std::string fields = kKimiFields;
    ModelConfig plain = parsed("{" + fields + "}");
    EXPECT_EQ(plain.architecture, Architecture::kimi_k2);
    EXPECT_EQ(plain.rope_theta, 50000.0);
    EXPECT_EQ(plain.routed_scaling_factor, 2.827);
    EXPECT_EQ(plain.yarn->beta_fast, 1.0);
    const ModelConfig nested = parsed(
        R"({"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "vision_config": {},
            "tie_word_embeddings": false, "eos_token_id": 163586, "text_config": {)" +
        fields + "}}");
    EXPECT_EQ(nested.wrapper, Wrapper::kimi_k25);
    EXPECT_EQ(nested.tensor_prefix(), "language_model.");
    EXPECT_EQ(published_name(plain), "Kimi K2");
    EXPECT_EQ(published_name(nested), "Kimi K2.5 or K2.6");
    plain.wrapper = nested.wrapper;
    EXPECT_EQ(nested, plain);
    // The class of its own that some conversions name.
    std::string renamed = fields;
    renamed.replace(renamed.find("DeepseekV3"), 10, "KimiK2");
    plain.wrapper = Wrapper::none;
    EXPECT_EQ(parsed("{" + renamed + "}"), plain);
}

TEST(ModelConfig, GlmFlash) {
    const ModelConfig config = parsed(kGlmFlash);
    EXPECT_EQ(config.architecture, Architecture::glm4_moe_lite);
    EXPECT_EQ(config.head_dims(), (HeadDims{192, 256}));
    EXPECT_EQ(config.query_head_dim(), 256);
    EXPECT_EQ(config.topk_method, TopkMethod::noaux_tc);
    EXPECT_EQ(config.scoring, ScoringFunction::sigmoid);
    EXPECT_EQ(config.routed_scaling_factor, 1.8);
    EXPECT_EQ(config.num_nextn_predict_layers, 1);
    EXPECT_EQ(config.rope_theta, 1e6);
    EXPECT_EQ(config.eos_token_ids, (std::vector<std::int32_t>{154820, 154827, 154829}));
    EXPECT_FALSE(config.bos_token_id);
    EXPECT_FALSE(config.layer_is_moe(0));
    EXPECT_TRUE(config.layer_is_moe(47));
    EXPECT_EQ(published_name(config), "GLM-4.7-Flash");
}

// Transformers 5's form: rope_parameters, the kinds of layers, nothing that has its default.
TEST(ModelConfig, AbsentFieldsOfGlmTakeItsClassDefaults) {
    const std::string start = R"({"architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32)";
    const ModelConfig config = parsed(start + "}");
    EXPECT_EQ(config.head_dims(), (HeadDims{192, 256}));
    EXPECT_EQ(config.q_lora_rank, 768);
    EXPECT_EQ(config.n_group, 1);
    EXPECT_EQ(config.first_k_dense_replace, 1);
    EXPECT_EQ(config.n_shared_experts, 1);
    EXPECT_EQ(config.routed_scaling_factor, 1.8);
    EXPECT_TRUE(config.norm_topk_prob);
    EXPECT_EQ(config.rms_norm_eps, 1e-5);
    EXPECT_EQ(parsed(start + R"(, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})"),
              config);
    EXPECT_EQ(parsed(start + R"(, "mlp_layer_types": ["dense", "dense", "sparse"]})")
                  .first_k_dense_replace,
              2);
}

TEST(ModelConfig, OtherPublishedModelsByName) {
    const ModelConfig moonlight = parsed(kMoonlight);
    EXPECT_EQ(moonlight.architecture, Architecture::deepseek_v3);
    EXPECT_EQ(moonlight.routed_scaling_factor, 2.446);
    EXPECT_EQ(published_name(moonlight), "Moonlight-16B-A3B");
    EXPECT_EQ(published_name(parsed(kV2Lite)), "DeepSeek-V2-Lite");
    const ModelConfig kimi_vl = parsed(
        R"({"architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "text_config": )" +
        std::string(kMoonlight) + "}");
    EXPECT_EQ(kimi_vl.tensor_prefix(), "language_model.");
    EXPECT_EQ(published_name(kimi_vl), "Kimi-VL-A3B's language model");
    const ModelConfig youtu = parsed(kYoutu);
    EXPECT_EQ(youtu.n_routed_experts, 0);
    EXPECT_TRUE(youtu.tie_word_embeddings);
    EXPECT_EQ(published_name(youtu), "Youtu-LLM-2B");
    ModelConfig other = moonlight;
    other.num_hidden_layers = 26;
    EXPECT_EQ(published_name(other), "");
}

TEST(ModelConfig, MistralSmall4InsideItsMultimodalWrapper) {
    const ModelConfig config = parsed(kMistralSmall4);
    EXPECT_EQ(config.architecture, Architecture::mistral4);
    EXPECT_EQ(config.wrapper, Wrapper::mistral3);
    EXPECT_EQ(published_name(config), "Mistral Small 4");
    EXPECT_EQ(config.key_dims(), (KeyDims{256, 64}));
    EXPECT_EQ(config.head_dims(), (HeadDims{64, 128}));
    EXPECT_EQ(config.topk_method, TopkMethod::greedy);
    EXPECT_EQ(config.scoring, ScoringFunction::softmax);
    EXPECT_TRUE(config.norm_topk_prob);
    EXPECT_TRUE(config.layer_is_moe(0));
    ASSERT_TRUE(config.yarn);
    EXPECT_EQ(config.yarn->factor, 128.0);
    EXPECT_EQ(config.yarn->original_max_position_embeddings, 8192);
    EXPECT_EQ(config.query_scaling_beta, 0.1);
    EXPECT_EQ(config.rope_theta, 10000.0);
    EXPECT_EQ(config.fp8_block, 0);
    ModelConfig preset = synthetic_preset("mistral-small-4")->config;
    preset.wrapper = Wrapper::mistral3;
    preset.fp8_block = 0;
    EXPECT_EQ(config, preset);
}

TEST(ModelConfig, SarvamIsV3UnderOtherNames) {
    const ModelConfig config = parsed(kSarvam);
    EXPECT_EQ(published_name(config), "Sarvam-105B");
    EXPECT_EQ(config.q_lora_rank, 0);
    EXPECT_EQ(config.n_routed_experts, 128);
    EXPECT_EQ(config.n_shared_experts, 1);
    EXPECT_EQ(config.n_group, 16);
    EXPECT_EQ(config.topk_group, 2);
    EXPECT_EQ(config.topk_method, TopkMethod::noaux_tc);
    EXPECT_EQ(config.routed_scaling_factor, 2.5);
    ASSERT_TRUE(config.yarn);
    EXPECT_EQ(config.yarn->factor, 40.0);
}

// GigaChat3 is of V3's class, with values of 192 columns.
TEST(ModelConfig, GigaChat3HasHeadsOfItsOwn) {
    EXPECT_EQ(parsed(minimal("V3", R"(, "n_routed_experts": null, "v_head_dim": 192)")).head_dims(),
              (HeadDims{128, 192}));
}

TEST(ModelConfig, DeepseekVl2HasV3sRouterInAModelOfV2sClass) {
    const ModelConfig config = parsed(kVl2);
    EXPECT_EQ(config.architecture, Architecture::deepseek_v2);
    EXPECT_EQ(config.wrapper, Wrapper::deepseek_vl2);
    EXPECT_EQ(config.tensor_prefix(), "language.");
    EXPECT_EQ(config.topk_method, TopkMethod::noaux_tc);
    EXPECT_EQ(config.scoring, ScoringFunction::sigmoid);
    EXPECT_EQ(config.num_hidden_layers, 30);
    EXPECT_EQ(config.num_attention_heads, 32);
    EXPECT_EQ(published_name(config), "DeepSeek-VL2's language model");
}

TEST(ModelConfig, AbsentFieldsOfV2TakeItsClassDefaults) {
    const ModelConfig config = parsed(minimal(
        "V2", R"(, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32)"));
    EXPECT_EQ(config.topk_method, TopkMethod::greedy);
    EXPECT_EQ(config.scoring, ScoringFunction::softmax);
    EXPECT_EQ(config.n_group, 1);
    EXPECT_EQ(config.topk_group, 1);
    EXPECT_FALSE(config.norm_topk_prob);
    EXPECT_EQ(config.routed_scaling_factor, 1.0);
    EXPECT_EQ(config.first_k_dense_replace, 0);
    EXPECT_EQ(config.n_shared_experts, 2);
    EXPECT_EQ(config.q_lora_rank, 1536);
    EXPECT_EQ(config.rope_theta, 10000.0);
    EXPECT_EQ(config.rms_norm_eps, 1e-6);
    EXPECT_FALSE(config.yarn);
    EXPECT_TRUE(config.eos_token_ids.empty());
    EXPECT_FALSE(config.bos_token_id);
}

TEST(ModelConfig, AbsentFieldsOfV3TakeItsClassDefaults) {
    const ModelConfig config = parsed(minimal(
        "V3",
        R"(, "n_routed_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 32)"));
    EXPECT_EQ(config.topk_method, TopkMethod::noaux_tc);
    EXPECT_EQ(config.scoring, ScoringFunction::sigmoid);
    EXPECT_EQ(config.n_group, 8);
    EXPECT_EQ(config.topk_group, 4);
    EXPECT_TRUE(config.norm_topk_prob);
    EXPECT_EQ(config.routed_scaling_factor, 2.5);
    EXPECT_EQ(config.first_k_dense_replace, 3);
    EXPECT_EQ(config.n_shared_experts, 1);
}

TEST(ModelConfig, NullExpertsAreADenseModel) {
    const ModelConfig config =
        parsed(minimal("V2", R"(, "n_routed_experts": null, "n_shared_experts": null)"));
    EXPECT_EQ(config.n_routed_experts, 0);
    EXPECT_EQ(config.n_shared_experts, 0);
    EXPECT_FALSE(config.layer_is_moe(1));
}

TEST(ModelConfig, RopeInAllItsSpellings) {
    const std::string dense = R"(, "n_routed_experts": null)";
    const std::string yarn = R"("factor": 4, "original_max_position_embeddings": 1024})";
    const YarnScaling expected{4.0, 32.0, 1.0, 1.0, 0.0, 1024};
    for (const std::string& text :
         {R"(, "rope_scaling": {"type": "yarn", )" + yarn,
          R"(, "rope_scaling": {"rope_type": "yarn", )" + yarn,
          R"(, "rope_scaling": {"type": "yarn", "rope_type": "yarn", )" + yarn,
          R"(, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, )" + yarn})
        EXPECT_EQ(parsed(minimal("V2", dense + text)).yarn, expected) << text;
    for (const char* text :
         {"", R"(, "rope_scaling": null)", R"(, "rope_parameters": {"rope_type": "default"})",
          R"(, "rope_parameters": {})"})
        EXPECT_FALSE(parsed(minimal("V2", dense + text)).yarn) << text;
    EXPECT_EQ(
        parsed(minimal(
                   "V2",
                   dense + R"(, "rope_parameters": {"rope_theta": 50000, "rope_type": "default"})"))
            .rope_theta,
        50000.0);
}

TEST(ModelConfig, EndTokensAreOneOrAList) {
    const std::string dense = R"(, "n_routed_experts": null)";
    EXPECT_EQ(parsed(minimal("V2", dense + R"(, "eos_token_id": [3, 5])")).eos_token_ids,
              (std::vector<std::int32_t>{3, 5}));
    EXPECT_EQ(parsed(minimal("V2", dense + R"(, "eos_token_id": 3)")).eos_token_ids,
              std::vector<std::int32_t>{3});
}

TEST(ModelConfig, WritesAndReadsBackAsItself) {
    std::vector<ModelConfig> configs = {
        parsed(kV2Lite), parsed(kV3),  parsed(kGlmFlash),
        parsed(kYoutu),  parsed(kVl2), parsed("{" + std::string(kKimiFields) + "}")};
    configs.push_back(configs.back());
    configs.back().wrapper = Wrapper::kimi_k25;
    for (const ModelConfig& config : configs) {
        const auto again = parse_model_config(
            config_json_of(config, config.fp8_block ? DType::e4m3 : DType::bf16), "again");
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_EQ(*again, config);
    }
}

TEST(GenerationConfig, ReadsWhatIsThere) {
    const auto defaults = parse_generation_config(
        R"({"do_sample": true, "eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.95, "top_k": 50})",
        "g.json");
    ASSERT_TRUE(defaults) << defaults.error().message;
    EXPECT_EQ(*defaults, (GenerationDefaults{.temperature = 0.6,
                                             .top_p = 0.95,
                                             .top_k = 50,
                                             .repetition_penalty = std::nullopt,
                                             .min_p = std::nullopt,
                                             .eos_token_ids = {1, 2},
                                             .unused = {}}));
    EXPECT_EQ(*parse_generation_config("{}", "g.json"), GenerationDefaults{});
}

// Transformers' rule: do_sample decides whether there is a temperature at all.
TEST(GenerationConfig, SamplesOnlyWhereTheFileSaysSo) {
    const auto parsed = [](const char* text) { return *parse_generation_config(text, "g.json"); };
    EXPECT_EQ(parsed(R"({"do_sample": true})").temperature, 1.0);
    EXPECT_EQ(parsed(R"({"do_sample": true, "temperature": null})").temperature, 1.0);
    EXPECT_EQ(parsed(R"({"do_sample": true, "temperature": 0.3})").temperature, 0.3);
    EXPECT_EQ(parsed(R"({"temperature": 0.3})").temperature, std::nullopt);
    EXPECT_EQ(parsed(R"({"temperature": 0.3, "do_sample": false})").temperature, std::nullopt);
    EXPECT_EQ(parsed(R"({"temperature": 0.3, "do_sample": null})").temperature, std::nullopt);
    EXPECT_EQ(parsed(R"({"top_k": -1})").top_k, 0);
    EXPECT_EQ(parsed(R"({"top_k": 0})").top_k, 0);
    EXPECT_EQ(parsed(R"({"top_k": 7, "min_length": 3, "new_field": {}})").top_k, 7);
    EXPECT_EQ(parsed(R"({"repetition_penalty": 1.05})").repetition_penalty, 1.05);
}

TEST(GenerationConfig, FieldsThatAreNotHonouredAreListed) {
    const auto parsed = [](const char* text) { return *parse_generation_config(text, "g.json"); };
    EXPECT_EQ(parsed(R"({"min_p": 0.05})").min_p, 0.05);
    EXPECT_EQ(
        parsed(R"({"suppress_tokens": [3], "bad_words_ids": [[4, 5]], "no_repeat_ngram_size": 2,
                         "num_beams": 4})")
            .unused,
        (std::vector<std::string>{"suppress_tokens", "bad_words_ids", "no_repeat_ngram_size",
                                  "num_beams"}));
    EXPECT_TRUE(parsed(R"({"suppress_tokens": [], "bad_words_ids": null, "no_repeat_ngram_size": 0,
                           "num_beams": 1, "typical_p": 1.0, "sequence_bias": {}})")
                    .unused.empty());
}

TEST(GenerationConfig, ErrorsNameTheFileAndTheField) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"temperature": -1})", "temperature"},
        {R"({"temperature": 101})", "temperature"},
        {R"({"temperature": "hot"})", "temperature"},
        {R"({"top_p": 0})", "top_p is 0"},
        {R"({"top_p": 1.5})", "top_p"},
        {R"({"top_k": 1.5})", "top_k"},
        {R"({"top_k": -2})", "top_k is -2"},
        {R"({"repetition_penalty": 0})", "repetition_penalty is 0"},
        {R"({"min_p": 2})", "min_p is 2"},
        {R"({"do_sample": 1})", "do_sample"},
        {R"({"eos_token_id": -1})", "eos_token_id"},
        {R"({"eos_token_id": ["a"]})", "eos_token_id"},
        {"[]", "not a JSON object"},
        {"5", "not a JSON object"},
        {"{", "not valid JSON"},
        {"", "empty"},
    };
    for (const auto& [text, part] : cases)
        expect_error(parse_generation_config(text, "g.json"), {"g.json: ", part});
}

}  // namespace
}  // namespace espalier::checkpoint
