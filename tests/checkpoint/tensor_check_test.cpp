// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_check.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/quantization.hpp"
#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"
#include "support/paths.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::checkpoint {
namespace {

class TensorCheckTest : public testing::Test {
  protected:
    void write(SyntheticModel model) {
        prefix_ = model.config.tensor_prefix();
        directory_.emplace();
        ThreadPool pool(1);
        const auto written = write_synthetic(model, path(), pool);
        ASSERT_TRUE(written) << written.error().message;
    }
    void write(const char* preset, DType dtype = DType::bf16) {
        SyntheticModel model = *synthetic_preset(preset);
        model.dtype = dtype;
        write(std::move(model));
    }
    void configure(const char* field, const nlohmann::json& value) {
        auto config = nlohmann::json::parse(read_file(path() / "config.json"));
        config[field] = value;
        write_file(path() / "config.json", config.dump());
    }
    void put(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape) {
        SafetensorsEditor file(path() / "model.safetensors");
        file.put(prefix_ + name, dtype, std::move(shape), dtype == "F32" ? 4 : 2);
        file.save();
    }
    Expected<void> check() {
        const auto checkpoint = Checkpoint::open(path().string());
        if (!checkpoint) return tl::unexpected<Error>(checkpoint.error());
        return check_tensors(*checkpoint);
    }
    void expect_fine() {
        const auto result = check();
        EXPECT_TRUE(result) << result.error().message;
    }
    std::filesystem::path path() const { return directory_->path() / "model"; }

    std::string prefix_;
    std::optional<TemporaryDirectory> directory_;
};

TEST_F(TensorCheckTest, WholeModelsPass) {
    for (const char* preset :
         {"tiny-v2", "tiny-v3", "tiny-glm", "tiny-v32", "tiny-glm5", "tiny-mistral4"})
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
            SCOPED_TRACE(std::string(preset) + " " + std::string(name_of(dtype)));
            write(preset, dtype);
            expect_fine();
        }
    SyntheticModel model = *synthetic_preset("tiny-v3");
    model.repeat_mtp_embeddings = true;
    model.config.wrapper = Wrapper::kimi_k25;
    model.config.architecture = Architecture::kimi_k2;
    write(model);
    expect_fine();
}

TEST_F(TensorCheckTest, TheShippedModelPasses) {
    const auto sapling =
        Checkpoint::open(std::string(test::source_directory()) + "/models/sapling");
    ASSERT_TRUE(sapling) << sapling.error().message;
    const auto result = check_tensors(*sapling);
    EXPECT_TRUE(result) << result.error().message;
}

TEST_F(TensorCheckTest, AConfigThatLeavesTensorsOutIsRefused) {
    write("tiny-v2");
    configure("num_hidden_layers", 2);
    // 3 attention and dense norms and projections, 8 experts, the shared one, the router.
    expect_error(check(), {"model.safetensors: ", "'model.layers.2.input_layernorm.weight'",
                           "no part of the model config.json describes", " more"});
    write("tiny-v2");
    configure("n_shared_experts", 0);
    expect_error(check(), {"6 tensor(s)", "'model.layers.1.mlp.shared_experts.down_proj.weight'",
                           "and 3 more"});
    write("tiny-v2");
    configure("n_routed_experts", 7);
    expect_error(check(), {"6 tensor(s)", "'model.layers.1.mlp.experts.7.down_proj.weight'"});
}

TEST_F(TensorCheckTest, TensorsOfOtherArchitecturesAreRefused) {
    const struct {
        const char* name;
        std::vector<std::int64_t> shape;
    } kCases[] = {
        {"model.layers.0.self_attn.o_proj.bias", {128}},
        {"model.layers.1.self_attn.q_a_proj.bias", {96}},
        {"model.layers.2.self_attn.indexer.wq_b.weight", {64, 96}},
        {"model.layers.1.mlp.experts.8.gate_proj.weight", {64, 128}},
        {"model.layers.1.mlp.gate.e_score_correction_bias_2", {8}},
        {"model.layers.4.input_layernorm.weight", {128}},
        {"model.layers.03.input_layernorm.weight", {128}},
        {"model.layers.3.self_attn.o_proj.bias", {128}},  // of an MTP layer that is read
        {"model.layers.0.self_attn.o_proj.weight_scale_inv", {1, 4}},  // beside a BF16 matrix
        {"model.norm.bias", {128}},
        {"surprise", {1}},
    };
    for (const auto& [name, shape] : kCases) {
        SCOPED_TRACE(name);
        write("tiny-v3");
        put(name, "F32", shape);
        expect_error(check(), {"1 tensor(s)", fmt::format("'{}'", name)});
    }
    write("tiny-v2");
    put("model.layers.1.mlp.gate.e_score_correction_bias", "F32", {8});
    expect_error(check(), {"e_score_correction_bias"});
}

TEST_F(TensorCheckTest, WhatTheModelDoesNotNeedPasses) {
    write("tiny-v3");
    put("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {32});
    expect_fine();
    configure("num_nextn_predict_layers", 0);  // the file's MTP layer is not used
    expect_fine();
    put("model.layers.3.something_new", "F32", {1});
    expect_fine();
    put("model.layers.4.input_layernorm.weight", "F32", {128});
    expect_error(check(), {"'model.layers.4.input_layernorm.weight'"});
}

TEST_F(TensorCheckTest, ScalesOfTheCacheAreRead) {
    write("tiny-v3");
    const std::string attention = "model.layers.1.self_attn.";
    SafetensorsEditor file(path() / "model.safetensors");
    const auto put_scale = [&](const std::string& name, float value) {
        file.put(name, "F32", {}, 4);
        std::memcpy(file.tensors[name].bytes.data(), &value, 4);
    };
    const auto scale_of = [&](const char* layer) -> Expected<std::optional<float>> {
        file.save();
        const auto checkpoint = Checkpoint::open(path().string());
        if (!checkpoint) return tl::unexpected<Error>(checkpoint.error());
        ESPALIER_RETURN_IF_ERROR(check_tensors(*checkpoint));
        return kv_scale_of(*checkpoint, fmt::format("model.layers.{}.self_attn.", layer));
    };
    for (const char* key : {"k_proj.k_scale", "attn.k_scale", "k_scale", "kv_scale"}) {
        SCOPED_TRACE(key);
        put_scale(attention + key, 0.25f);
        put_scale(attention + "v_proj.v_scale", 0.5f);
        const auto scale = scale_of("1");
        ASSERT_TRUE(scale) << scale.error().message;
        EXPECT_EQ(*scale, 0.25f);
        EXPECT_EQ(*scale_of("0"), std::nullopt);
        file.tensors.erase(attention + key);
    }
    put_scale(attention + "k_scale", 0.25f);
    put_scale(attention + "kv_scale", 0.5f);
    expect_error(scale_of("1"), {"kv_scale' is 0.5", "another says 0.25"});
    put_scale(attention + "kv_scale", -1.0f);
    expect_error(scale_of("1"), {"kv_scale' is -1", "a positive number"});
    file.tensors.erase(attention + "kv_scale");
    put_scale("model.layers.9.self_attn.k_scale", 1.0f);
    expect_error(scale_of("1"), {"'model.layers.9.self_attn.k_scale'"});
}

TEST_F(TensorCheckTest, AnMtpLayerWithoutItsProjectionIsNotRead) {
    write("tiny-v3");
    SafetensorsEditor file(path() / "model.safetensors");
    file.tensors.erase("model.layers.3.eh_proj.weight");
    file.save();
    expect_error(check(), {"'model.layers.3."});
}

TEST_F(TensorCheckTest, ATiedHeadMayOnlyRepeatTheEmbedding) {
    SyntheticModel model = *synthetic_preset("tiny-v2");
    model.config.tie_word_embeddings = true;
    write(model);
    expect_fine();
    SafetensorsEditor file(path() / "model.safetensors");
    file.tensors["lm_head.weight"] = file.tensors["model.embed_tokens.weight"];
    file.save();
    expect_fine();
    file.tensors["lm_head.weight"].bytes.back() ^= 1;
    file.save();
    expect_error(check(), {"'lm_head.weight'"});
}

TEST_F(TensorCheckTest, MixedActivationsNameBothTensors) {
    write("tiny-v3");
    put("model.layers.0.self_attn.o_proj.weight", "F32", {128, 512});
    expect_error(check(), {"'model.layers.0.self_attn.o_proj.weight' is F32",
                           "'model.layers.0.self_attn.q_a_proj.weight' is BF16"});
    write("tiny-v3");
    put("lm_head.weight", "F32", {512, 128});
    expect_error(check(),
                 {"'lm_head.weight' is F32", "'model.layers.0.self_attn.q_a_proj.weight' is BF16"});
    write("tiny-v2", DType::f32);
    put("model.layers.2.mlp.experts.3.up_proj.weight", "BF16", {64, 128});
    expect_error(check(), {"'model.layers.2.mlp.experts.3.up_proj.weight' is BF16", "is F32"});
}

}  // namespace
}  // namespace espalier::checkpoint
