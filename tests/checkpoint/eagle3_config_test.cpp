// SPDX-License-Identifier: Apache-2.0
// config.json of EAGLE3 drafts: what is published is read, what we do not run is refused by name.
#include "checkpoint/eagle3_config.hpp"

#include <nlohmann/json.hpp>

#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"
#include "support/paths.hpp"

namespace espalier::checkpoint {
namespace {

using nlohmann::json;

Eagle3Config tiny() { return synthetic_draft_for(*synthetic_preset("tiny-v3")).config; }
json valid() { return json::parse(eagle3_config_json_of(tiny(), DType::bf16)); }

void expect_refused(const json& config, std::initializer_list<std::string_view> parts) {
    expect_error(parse_eagle3_config(config.dump(), "config.json"), parts);
}

TEST(Eagle3Config, WhatIsWrittenIsReadBack) {
    Eagle3Config config = tiny();
    for (int i = 0; i < 4; ++i) {
        config.norm_before_residual = i == 1;
        config.fc_norm = config.norm_output = i == 2;
        config.norm_before_fc = i == 3;
        if (i == 3) config.aux_layer_ids.clear();
        const auto read = parse_eagle3_config(eagle3_config_json_of(config, DType::bf16), "x");
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(*read, config) << i;
    }
}

TEST(Eagle3Config, SaplingsDraft) {
    const std::string text = read_file(std::filesystem::path(test::source_directory()) /
                                       "models/sapling-eagle3/config.json");
    const auto config = parse_eagle3_config(text, "config.json");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->draft_vocab_size, 3072);
    EXPECT_EQ(config->layer.intermediate_size, 768);
    EXPECT_EQ(config->layer.fp8_block, 128);
    EXPECT_EQ(*config->tap_layers(8), (std::vector<std::int32_t>{2, 5, 7}));
}

TEST(Eagle3Config, TapsByBothConventions) {
    Eagle3Config config = tiny();
    config.aux_layer_ids = {1, 29, 57};  // layers' outputs
    EXPECT_EQ(*config.tap_layers(61), (std::vector<std::int32_t>{2, 30, 58}));
    config.aux_layer_ids = {2, 30, 58};  // what enters them
    EXPECT_EQ(*config.tap_layers(61), (std::vector<std::int32_t>{2, 30, 58}));
    config.aux_layer_ids.clear();
    EXPECT_EQ(*config.tap_layers(61), (std::vector<std::int32_t>{2, 30, 58}));
    config.aux_layer_ids = {2, 30, 61};  // behind the last layer
    EXPECT_TRUE(config.tap_layers(61));
    expect_error(config.tap_layers(60), {"2, 30, 61", "60 layers"});
    config.aux_layer_ids = {5, 5, 7};
    expect_error(config.tap_layers(61), {"ascending"});
    config.aux_layer_ids.clear();
    expect_error(config.tap_layers(4), {"are not given", "2, 2, 1"});
}

TEST(Eagle3Config, SwitchesMayStandInEagleConfig) {
    json config = valid();
    config.erase("norm_before_fc");
    config["eagle_config"]["norm_before_fc"] = true;
    EXPECT_TRUE(parse_eagle3_config(config.dump(), "x")->norm_before_fc);
    config["norm_before_fc"] = false;
    expect_refused(config, {"norm_before_fc is false here and true in eagle_config"});
    config = valid();
    config["eagle_aux_hidden_state_layer_ids"] = {3, 4};
    config.erase("eagle_config");
    EXPECT_EQ(parse_eagle3_config(config.dump(), "x")->aux_layer_ids,
              (std::vector<std::int64_t>{3, 4}));
}

TEST(Eagle3Config, OtherDraftsByName) {
    for (const char* name :
         {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"}) {
        json config = valid();
        config["architectures"] = {name};
        expect_refused(config,
                       {name, "grouped heads", "latent pages", "Eagle3DeepseekV2ForCausalLM"});
    }
    json config = valid();
    config["architectures"] = {"DeepseekV3ForCausalLM"};
    expect_refused(config, {"DeepseekV3ForCausalLM", "no EAGLE3 draft"});
    config["architectures"] = {"EagleMistralLarge3ForCausalLM"};
    expect_refused(config, {"Mistral's EAGLE head (several MLA layers"});
    config.erase("architectures");
    expect_refused(config, {"architecture ''"});
}

TEST(Eagle3Config, RefusesWhatItCannotRun) {
    const auto with = [](const char* field, const json& value) {
        json config = valid();
        config[field] = value;
        return config;
    };
    expect_refused(with("num_hidden_layers", 2), {"num_hidden_layers is 2, only 1"});
    expect_refused(with("draft_vocab_size", 513), {"draft_vocab_size is 513", "512"});
    expect_refused(with("draft_vocab_size", 0), {"draft_vocab_size is 0"});
    expect_refused(with("kv_lora_rank", 0), {"kv_lora_rank is 0"});
    expect_refused(with("num_key_value_heads", 1), {"grouped heads"});
    expect_refused(with("logit_scale", 0.5), {"logit_scale is 0.5"});
    expect_refused(with("eagle_config", 3), {"eagle_config is 3"});
    expect_refused(with("eagle_config", {{"eagle_aux_hidden_state_layer_ids", {1, -2}}}),
                   {"has -2"});
    expect_refused(with("eagle_config", {{"eagle_aux_hidden_state_layer_ids", json::array()}}),
                   {"a list of 0"});
    expect_refused(with("eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0.5}}}),
                   {"has 0.5"});
    expect_refused(with("eagle_config", {{"use_aux_hidden_state", false}}),
                   {"use_aux_hidden_state is false"});
    json both = with("fc_norm", true);
    both["norm_before_fc"] = true;
    expect_refused(both, {"norm_before_fc and fc_norm are both true"});
    expect_refused(json::array(), {"not a JSON object"});
    expect_error(parse_eagle3_config("{", "config.json"), {"config.json"});
}

}  // namespace
}  // namespace espalier::checkpoint
