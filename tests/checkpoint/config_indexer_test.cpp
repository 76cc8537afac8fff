// SPDX-License-Identifier: Apache-2.0
// Sparse attention in config.json: DeepSeek-V3.2's and GLM-5's fields as published, the three ways
// of saying which layers share, and what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/model_config.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

using nlohmann::json;

json config_of(const char* preset) {
    const SyntheticModel model = *synthetic_preset(preset);
    return json::parse(config_json_of(model.config, model.dtype));
}

ModelConfig parsed(const json& config) {
    const auto result = parse_model_config(config.dump(), "config.json");
    if (!result) throw std::runtime_error(result.error().message);
    return *result;
}

std::string refusal(const json& config) {
    const auto result = parse_model_config(config.dump(), "config.json");
    return result ? "accepted" : result.error().message;
}

// Which of the layers have an indexer of their own: "FSF".
std::string kinds(const ModelConfig& config) {
    std::string letters;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
        letters += config.layer_has_indexer(layer) ? 'F' : 'S';
    return letters;
}

TEST(ConfigIndexer, FieldsAndTheirDefaults) {
    const ModelConfig v32 = parsed(config_of("tiny-v32"));
    EXPECT_EQ(v32.architecture, Architecture::deepseek_v32);
    EXPECT_EQ(*v32.indexer, (IndexerConfig{.heads = 8, .head_dim = 128, .top_k = 32}));
    json bare = config_of("tiny-v32");
    for (const char* field :
         {"index_n_heads", "index_head_dim", "index_topk", "indexer_rope_interleave"})
        bare.erase(field);
    EXPECT_EQ(*parsed(bare).indexer, (IndexerConfig{.heads = 64, .head_dim = 128, .top_k = 2048}));

    json glm = config_of("tiny-glm5");
    EXPECT_EQ(kinds(parsed(glm)), "FSF");
    for (const char* field : {"index_n_heads", "indexer_rope_interleave", "indexer_types",
                              "q_lora_rank", "routed_scaling_factor"})
        glm.erase(field);
    const ModelConfig absent = parsed(glm);
    EXPECT_EQ(absent.indexer->heads, 32);
    EXPECT_TRUE(absent.indexer->interleaved);
    EXPECT_EQ(absent.q_lora_rank, 2048);
    EXPECT_EQ(absent.routed_scaling_factor, 2.5);
    EXPECT_EQ(kinds(absent), "FFF");
    EXPECT_TRUE(absent.layer_has_indexer(3));  // the MTP layer
    EXPECT_FALSE(parsed(config_of("tiny-v3")).layer_has_indexer(0));
}

// GLM-5.2: 78 layers, every fourth chooses from the third on.
TEST(ConfigIndexer, LayersThatShare) {
    json glm = config_of("tiny-glm5");
    glm["num_hidden_layers"] = 12;
    glm.erase("indexer_types");
    glm["index_topk_freq"] = 4;
    glm["index_skip_topk_offset"] = 3;
    EXPECT_EQ(kinds(parsed(glm)), "FFFSSSFSSSFS");
    glm["index_topk_pattern"] = "FSSSFSSSFSSS";
    EXPECT_EQ(kinds(parsed(glm)), "FSSSFSSSFSSS");
    glm["indexer_types"] = json::array({"full"});
    for (int layer = 1; layer < 12; ++layer) glm["indexer_types"].push_back("shared");
    const ModelConfig config = parsed(glm);
    EXPECT_EQ(kinds(config), "FSSSSSSSSSSS");
    EXPECT_TRUE(config.layer_has_indexer(12));
    std::set<std::string> with;
    for (const TensorSpec& spec : list_tensors(config, {}))
        if (spec.name.ends_with("indexer.wk.weight")) with.insert(spec.name);
    EXPECT_EQ(with, (std::set<std::string>{"model.layers.0.self_attn.indexer.wk.weight",
                                           "model.layers.12.self_attn.indexer.wk.weight"}));
}

TEST(ConfigIndexer, WhatCannotBeRunIsRefusedByName) {
    const auto with = [](const char* field, const json& value) {
        json config = config_of("tiny-glm5");
        config[field] = value;
        return refusal(config);
    };
    EXPECT_NE(with("index_topk", 0).find("index_topk is 0, expected 1"), std::string::npos);
    EXPECT_NE(with("index_n_heads", 129).find("index_n_heads is 129"), std::string::npos);
    EXPECT_NE(with("index_head_dim", 32).find("index_head_dim is 32: 64 to 256"),
              std::string::npos);
    EXPECT_NE(with("q_lora_rank", nullptr).find("q_lora_rank is null"), std::string::npos);
    EXPECT_NE(with("indexer_types", {"full"})
                  .find("indexer_types is a list of 1, expected the "
                        "kinds of num_hidden_layers 3"),
              std::string::npos);
    EXPECT_NE(with("indexer_types", {"full", "none", "full"})
                  .find("indexer_types[1] is \"none\": only 'full' and 'shared'"),
              std::string::npos);
    EXPECT_NE(with("indexer_types", {"shared", "full", "full"}).find("[0] is 'shared'"),
              std::string::npos);
    EXPECT_NE(with("indexer_types", 5).find("indexer_types is 5"), std::string::npos);
}

}  // namespace
}  // namespace espalier::checkpoint
