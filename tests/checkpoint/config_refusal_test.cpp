// SPDX-License-Identifier: Apache-2.0
// Models and values that config.json may name and we do not run: each is refused with its name and
// both numbers.
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.hpp"
#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

using nlohmann::json;

json valid(const char* preset = "tiny-v3") {
    return json::parse(config_json_of(synthetic_preset(preset)->config, DType::bf16));
}

void expect_refused(const json& config, std::initializer_list<std::string_view> parts) {
    expect_error(parse_model_config(config.dump(), "config.json"), parts);
}

// The valid configuration with one field changed.
void expect_refused_with(const char* field, const json& value,
                         std::initializer_list<std::string_view> parts,
                         const char* preset = "tiny-v3") {
    json config = valid(preset);
    config[field] = value;
    SCOPED_TRACE(std::string(field) + " = " + value.dump());
    expect_refused(config, parts);
}

TEST(ConfigRefusal, TheUnchangedConfigurationsAreAccepted) {
    for (const char* preset :
         {"tiny-v2", "tiny-v3", "tiny-glm", "tiny-v32", "tiny-glm5", "tiny-mistral4"})
        EXPECT_TRUE(parse_model_config(valid(preset).dump(), "config.json")) << preset;
}

TEST(ConfigRefusal, OtherModelsByName) {
    const struct {
        const char *class_name, *model_type, *shown;
    } kCases[] = {
        {"DeepseekV3ForCausalLM", "deepseek_v32", "DeepSeek-V3.2"},
        {"DeepseekV4ForCausalLM", "deepseek_v4", "DeepSeek-V4"},
        {"KimiK3ForCausalLM", "kimi_k3", "Kimi K3"},
        {"KimiK3ForConditionalGeneration", "kimi_k3", "Kimi K3"},
        {"KimiLinearForCausalLM", "kimi_linear", "Kimi Linear"},
        {"MiniCPM3ForCausalLM", "minicpm3", "MiniCPM3 (32 rope columns"},
        {"MistralLarge3ForCausalLM", "", "Mistral Large 3 (published in Mistral's own files"},
        {"MistralLarge4ForConditionalGeneration", "mistral_large4", "Mistral Large 4 (sparse"},
        {"Glm5NextForConditionalGeneration", "glm5_next", "GLM-5.3-Flash (linear"},
        {"GlmMoeDsaForCausalLM", "deepseek_v32", "GlmMoeDsaForCausalLM"},
        {"Glm4MoeForCausalLM", "glm4_moe", "GLM-4.5 to GLM-4.7 (grouped heads"},
        {"Glm4MoeForCausalLM", "glm4_moe_lite", "GLM-4.5 to GLM-4.7"},
        {"DeepseekOCRForCausalLM", "deepseek_vl_v2", "DeepSeek-OCR"},
        {"LongcatFlashForCausalLM", "longcat_flash", "LongCat-Flash (two attentions"},
        {"AXK1ForCausalLM", "axk1", "A.X K1 (a norm behind the experts)"},
        {"LlamaForCausalLM", "llama", "LlamaForCausalLM"},
        {"DeepseekV2ForCausalLM", "deepseek_v3", "deepseek_v3"},
        {"", "", "model_type ''"},
    };
    for (const auto& [class_name, model_type, shown] : kCases) {
        json config = valid();
        config["architectures"] = {class_name};
        config["model_type"] = model_type;
        expect_refused(
            config, {"config.json", shown,
                     "supported are DeepSeek-V2 (DeepseekV2ForCausalLM, deepseek_v2)", "Kimi K2"});
    }
    expect_refused_with("architectures", "DeepseekV3ForCausalLM", {"architectures"});
    expect_refused_with("architectures", json::array(), {"architectures"});
    expect_refused_with("architectures", {5}, {"architectures"});
    expect_refused_with("index_topk", 2048, {"index_topk", "DeepSeek-V3 models have no indexer"});
    expect_refused(json::parse(R"({"architectures": ["KimiK25ForConditionalGeneration"]})"),
                   {"text_config"});
    json nested{{"architectures", {"KimiK25ForConditionalGeneration"}}, {"text_config", valid()}};
    nested["text_config"]["architectures"] = {"KimiK3ForCausalLM"};
    expect_refused(nested, {"config.json: text_config", "Kimi K3"});
}

TEST(ConfigRefusal, QuantisationsByName) {
    const auto method = [](const char* name) { return json{{"quant_method", name}}; };
    for (const char* name : {"gptq", "mxfp4", "bitsandbytes"})
        expect_refused_with("quantization_config", method(name), {name, "'fp8' in 128×128 blocks"});
    expect_refused_with("quantization_config", method("modelopt"), {"quant_algo is ''", "'NVFP4'"});
    expect_refused_with("quantization_config",
                        {{"quant_method", "compressed-tensors"}, {"format", "marlin-24"}},
                        {"'marlin-24'", "'pack-quantized'", "'nvfp4-pack-quantized'"});
    expect_refused_with("compression_config", {{"format", "pack-quantized"}},
                        {"compression_config", "config_groups has 0 groups"});
    expect_refused_with("quantization_config", {{"quant_method", "awq"}, {"bits", 8}},
                        {"bits is 8, only 4"});
    expect_refused_with("quantization_config", {{"quant_method", "awq"}, {"version", "gemv"}},
                        {"version is 'gemv', only 'gemm'"});
    expect_refused_with("quantization_config", {{"quant_method", "awq"}, {"zero_point", false}},
                        {"zero_point is false"});
    json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    json good = valid();
    good["quantization_config"] = fp8;
    EXPECT_TRUE(parse_model_config(good.dump(), "config.json"));
    fp8["weight_block_size"] = {64, 128};
    expect_refused_with("quantization_config", fp8,
                        {"weight_block_size", "[64,128]", "[128, 128]"});
    fp8.erase("weight_block_size");
    expect_refused_with("quantization_config", fp8, {"weight_block_size", "missing"});
    fp8["activation_scheme"] = "static";
    fp8["weight_block_size"] = {128, 128};
    expect_refused_with("quantization_config", fp8, {"'static'", "'dynamic'", "beside blocks"});
    // One scale for a matrix, as Mistral publishes it.
    fp8["weight_block_size"] = nullptr;
    good["quantization_config"] = fp8;
    EXPECT_EQ(parse_model_config(good.dump(), "config.json")->fp8_block, 0);
    fp8["activation_scheme"] = "token";
    expect_refused_with("quantization_config", fp8, {"'token'", "and 'static'"});
    fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e5m2"}};
    expect_refused_with("quantization_config", fp8, {"fmt", "e5m2"});
    // Around the text_config, as K2.5 publishes it.
    json nested{{"architectures", {"KimiK25ForConditionalGeneration"}},
                {"text_config", valid()},
                {"quantization_config", method("compressed-tensors")}};
    expect_refused(nested, {"quantization_config", "format ''"});
}

TEST(ConfigRefusal, ShapesTheAttentionLibraryDoesNotHave) {
    expect_refused_with("kv_lora_rank", 0, {"kv_lora_rank is 0"});
    expect_refused_with("qk_rope_head_dim", 32, {"qk_rope_head_dim is 32", "64"});
    expect_refused_with("qk_nope_head_dim", 96, {"qk_nope_head_dim is 96", "128"});
    expect_refused_with("v_head_dim", 160, {"v_head_dim is 160", "128 and 192"});
    // Each alone is known, the pair is not.
    expect_refused_with("v_head_dim", 256, {"qk_nope_head_dim is 128 and v_head_dim is 256"});
    expect_refused_with("qk_nope_head_dim", 128,
                        {"qk_nope_head_dim is 128 and v_head_dim is 256", "192 and 256"},
                        "tiny-glm");
    expect_refused_with("use_mla", false, {"use_mla is false"});
    expect_refused_with("num_attention_heads", 129, {"num_attention_heads is 129", "1 to 128"});
    expect_refused_with("num_attention_heads", 0, {"num_attention_heads is 0", "1 to 128"});
    expect_refused_with("num_key_value_heads", 1, {"num_key_value_heads is 1", "4"});
    expect_refused_with("attention_bias", true, {"attention_bias is true"});
    expect_refused_with("mlp_bias", true, {"mlp_bias is true"});
    expect_refused_with("rope_interleave", false, {"rope_interleave"});
    expect_refused_with("hidden_act", "gelu", {"hidden_act is 'gelu'", "'silu'"});
    expect_refused_with("moe_layer_freq", 0, {"moe_layer_freq is 0"});
    expect_refused_with("moe_layer_freq", -1, {"moe_layer_freq is -1"});
    expect_refused_with("ep_size", 8, {"ep_size is 8", "1"});
    expect_refused_with("pretraining_tp", 2, {"pretraining_tp is 2", "1"});
}

TEST(ConfigRefusal, KindsOfLayers) {
    const auto refused = [](const json& types, std::initializer_list<std::string_view> parts) {
        expect_refused_with("mlp_layer_types", types, parts, "tiny-glm");
    };
    refused("dense", {"mlp_layer_types is \"dense\"", "num_hidden_layers 3"});
    refused({"dense", "sparse"}, {"mlp_layer_types is a list of 2", "3"});
    refused({"dense", "sparse", "dense"}, {"mlp_layer_types[2] is \"dense\""});
    refused({"dense", "sparse", 7}, {"mlp_layer_types[2] is 7"});
    refused({"dense", "dense", "sparse"},
            {"mlp_layer_types begins with 2 dense layers", "first_k_dense_replace is 1"});
}

TEST(ConfigRefusal, WhatMistralsClassComputesOtherwise) {
    const auto refused = [](const char* key, const json& value,
                            std::initializer_list<std::string_view> parts) {
        expect_refused_with(key, value, parts, "tiny-mistral4");
    };
    refused("n_group", 2, {"n_group is 2", "only one group"});
    refused("topk_method", "noaux_tc", {"topk_method is 'noaux_tc'", "'greedy'"});
    refused("scoring_func", "sigmoid", {"scoring_func is 'sigmoid'", "'softmax'"});
    refused("rope_parameters", nullptr, {"rope_parameters is missing"});
    const auto refused_rope = [&](const char* key, const json& value,
                                  std::initializer_list<std::string_view> parts) {
        json rope = valid("tiny-mistral4")["rope_parameters"];
        rope[key] = value;
        refused("rope_parameters", rope, parts);
    };
    refused_rope("llama_4_scaling_beta", nullptr, {"llama_4_scaling_beta is missing"});
    refused_rope("llama_4_scaling_beta", -1, {"llama_4_scaling_beta is -1"});
    refused_rope("partial_rotary_factor", 1.0, {"partial_rotary_factor is 1", "0.5"});
    refused_rope("llama_5_scaling_beta", 1.0, {"llama_5_scaling_beta is not known"});
    refused("rope_parameters", {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}},
            {"llama_4_scaling_beta is 0.1 without 'yarn'"});
    // Elsewhere the field is as unknown as any other.
    json v3 = valid();
    v3["rope_scaling"]["llama_4_scaling_beta"] = 0.1;
    expect_refused(v3, {"llama_4_scaling_beta is not known"});
}

// Published code disagrees with itself here, and no published checkpoint has these.
TEST(ConfigRefusal, RoutingThatPublishedCodeReadsInTwoWays) {
    json v2 = valid("tiny-v2");
    v2["norm_topk_prob"] = true;
    EXPECT_TRUE(parse_model_config(v2.dump(), "config.json"));
    v2["routed_scaling_factor"] = 16.0;
    expect_refused(v2, {"norm_topk_prob is true", "routed_scaling_factor is 16"});
    v2["norm_topk_prob"] = false;
    EXPECT_TRUE(parse_model_config(v2.dump(), "config.json"));
    for (const char* preset : {"tiny-v2", "tiny-v3"}) {
        json one = valid(preset);
        one["num_experts_per_tok"] = 1;
        one["norm_topk_prob"] = false;
        EXPECT_TRUE(parse_model_config(one.dump(), "config.json")) << preset;
        one["norm_topk_prob"] = true;
        expect_refused(one, {"num_experts_per_tok is 1", "norm_topk_prob is true"});
    }
}

TEST(ConfigRefusal, RotationsThatAreNotComputed) {
    expect_refused_with("rope_theta", 1.0, {"rope_scaling", "rope_theta 1", "more than 1"});
    json plain = valid();
    plain["rope_theta"] = 1.0;
    plain["rope_scaling"] = nullptr;
    plain["partial_rotary_factor"] = 1.0;
    EXPECT_TRUE(parse_model_config(plain.dump(), "config.json"));
    expect_refused_with("partial_rotary_factor", 0.5, {"partial_rotary_factor is 0.5", "only 1"});
    json newer = valid();
    newer.erase("rope_scaling");
    newer["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}};
    expect_refused(newer, {"rope_parameters: partial_rotary_factor is 0.25"});
}

TEST(ConfigRefusal, RoutingThatContradictsItself) {
    expect_refused_with("n_group", 3, {"n_routed_experts is 8", "n_group 3"});
    expect_refused_with("n_group", 8, {"8", "best 2"});
    expect_refused_with("topk_group", 5, {"topk_group is 5 of 4"});
    expect_refused_with("num_experts_per_tok", 9, {"num_experts_per_tok is 9 of 8"});
    expect_refused_with("num_experts_per_tok", 5, {"num_experts_per_tok is 5", "2 groups hold 4"});
    expect_refused_with("topk_method", "greedy", {"topk_method is 'greedy'", "noaux_tc"});
    expect_refused_with("topk_method", "noaux_tc",
                        {"topk_method is 'noaux_tc'", "group_limited_greedy"}, "tiny-v2");
    expect_refused_with("scoring_func", "softmax", {"scoring_func is 'softmax'", "sigmoid"});
    expect_refused_with("scoring_func", "sigmoid", {"scoring_func is 'sigmoid'", "softmax"},
                        "tiny-v2");
    json config = valid();
    config.erase("n_routed_experts");
    expect_refused(config, {"n_routed_experts is missing"});
}

TEST(ConfigRefusal, RopeOfOtherKinds) {
    for (const char* type : {"linear", "dynamic", "llama3", "longrope", "su"})
        expect_refused_with("rope_scaling", {{"type", type}, {"factor", 2}},
                            {"rope_scaling", type, "'yarn'"});
    const json yarn = valid()["rope_scaling"];
    const auto changed = [&yarn](const char* field, const json& value) {
        json copy = yarn;
        copy[field] = value;
        return copy;
    };
    expect_refused_with("rope_scaling", changed("rope_type", "linear"), {"'yarn'", "'linear'"});
    expect_refused_with("rope_scaling", changed("factor", 0.5), {"factor is 0.5"});
    expect_refused_with("rope_scaling", changed("factor", nullptr), {"factor is missing"});
    expect_refused_with("rope_scaling", changed("beta_slow", 33), {"beta_fast is 32", "33"});
    expect_refused_with("rope_scaling", changed("attention_factor", 1.0), {"attention_factor"});
    expect_refused_with("rope_scaling", changed("truncate", false), {"truncate"});
    expect_refused_with("rope_scaling", changed("beta_fats", 32), {"beta_fats is not known"});
    expect_refused_with("rope_scaling", changed("type", nullptr), {"of 'yarn', but no type"});
    expect_refused_with("rope_scaling", changed("original_max_position_embeddings", 0),
                        {"original_max_position_embeddings is 0"});
    expect_refused_with("rope_parameters", {{"rope_type", "default"}},
                        {"rope_scaling", "rope_parameters"});
    json config = valid();
    config.erase("rope_scaling");
    config["rope_parameters"] = {{"rope_theta", 5.0}};
    expect_refused(config, {"rope_theta is 5", "10000"});
}

TEST(ConfigRefusal, EveryIntegerOfEveryWrongKind) {
    for (const char* field : {"vocab_size",
                              "hidden_size",
                              "num_hidden_layers",
                              "num_nextn_predict_layers",
                              "num_attention_heads",
                              "num_key_value_heads",
                              "q_lora_rank",
                              "kv_lora_rank",
                              "qk_rope_head_dim",
                              "qk_nope_head_dim",
                              "v_head_dim",
                              "intermediate_size",
                              "moe_intermediate_size",
                              "first_k_dense_replace",
                              "moe_layer_freq",
                              "n_routed_experts",
                              "n_shared_experts",
                              "num_experts_per_tok",
                              "n_group",
                              "topk_group",
                              "max_position_embeddings",
                              "bos_token_id",
                              "eos_token_id"})
        for (const json& value :
             {json(-1), json(INT64_MIN), json(INT64_MAX), json(UINT64_MAX), json(1.5), json(1e300),
              json("128"), json(true), json(json::object()), json({json::array()})})
            expect_refused_with(field, value, {"config.json", field});
    for (const char* field : {"rms_norm_eps", "rope_theta", "routed_scaling_factor"})
        for (const json& value :
             {json(-1), json(1e300), json("1"), json(true), json(json::array())})
            expect_refused_with(field, value, {"config.json", field});
    for (const char* field : {"norm_topk_prob", "tie_word_embeddings", "attention_bias"})
        for (const json& value : {json(1), json("true"), json(json::array())})
            expect_refused_with(field, value, {"config.json", field});
    for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers",
                              "num_attention_heads", "intermediate_size", "max_position_embeddings",
                              "moe_intermediate_size", "num_experts_per_tok"})
        expect_refused_with(field, nullptr, {field, "missing"});
    expect_refused_with("eos_token_id", 512, {"eos_token_id is 512", "511"});
    expect_refused_with("eos_token_id", std::vector<int>(2000, 1), {"2000", "1024"});
}

TEST(ConfigRefusal, TextThatIsNoConfiguration) {
    for (const std::string& text :
         {std::string(""), std::string("{"), std::string("[]"), std::string("null"),
          std::string("\xff\xfe"), std::string(R"({"a":)") + std::string(100'000, '[')})
        expect_error(parse_model_config(text, "config.json"), {"config.json"});
}

}  // namespace
}  // namespace espalier::checkpoint
