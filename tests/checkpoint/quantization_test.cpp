// SPDX-License-Identifier: Apache-2.0
// Quantized checkpoints: what config.json may say, and tensors that are missing, misshapen or too
// many beside a matrix. Each refusal names the tensor and the matrix.
#include "checkpoint/quantization.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/block_format.hpp"
#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"
#include "checkpoint/tensor_check.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::checkpoint {
namespace {

using nlohmann::json;

constexpr Quantization kInt4{QuantizedLayout::packed_integers, 4, 32};
constexpr Quantization kInt8Row{QuantizedLayout::int8, 8, 0};
constexpr Quantization kNv{QuantizedLayout::nvfp4, 4, 16};
constexpr Quantization kPackedNv{QuantizedLayout::packed_nvfp4, 4, 16};
constexpr Quantization kAwq{QuantizedLayout::awq, 4, 64, true};
constexpr Quantization kShifted{QuantizedLayout::packed_integers, 4, 32, true};
const std::string kMatrix = "model.layers.0.self_attn.o_proj";

class QuantizedCheckpoint : public testing::Test {
  protected:
    void write(const Quantization& how) {
        SyntheticModel model = *synthetic_preset("tiny-v3");
        model.config.quantization = how;
        directory_.emplace();
        ThreadPool pool(1);
        const auto written = write_synthetic(model, path(), pool);
        ASSERT_TRUE(written) << written.error().message;
    }
    SafetensorsEditor edit() { return SafetensorsEditor(path() / "model.safetensors"); }
    // Everything that loading checks of this matrix.
    Expected<StoredWeight> read() {
        ESPALIER_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::open(path().string()));
        opened_.emplace(std::move(opened));
        ESPALIER_RETURN_IF_ERROR(check_tensors(*opened_));
        const ModelConfig& config = opened_->config();
        return find_weight(*opened_, kMatrix, config.hidden_size,
                           config.num_attention_heads * config.v_head_dim);
    }
    // `change` makes of a good model one that is refused with these words.
    void expect_refused(const Quantization& how,
                        const std::function<void(SafetensorsEditor&)>& change,
                        std::initializer_list<std::string_view> words) {
        write(how);
        SafetensorsEditor file = edit();
        change(file);
        file.save();
        expect_error(read(), words);
    }
    std::filesystem::path path() const { return directory_->path() / "model"; }

    std::optional<TemporaryDirectory> directory_;
    std::optional<Checkpoint> opened_;
};

TEST_F(QuantizedCheckpoint, EveryLayoutIsReadAsWhatItIs) {
    const struct {
        Quantization how;
        WeightFormat format;
        bool offset;
    } kCases[] = {
        {kInt4, grouped(WeightCode::int4, 32, ScaleType::bf16), true},
        {{QuantizedLayout::packed_integers, 8, 128},
         grouped(WeightCode::int8, 128, ScaleType::bf16),
         true},
        {{QuantizedLayout::int8, 8, 64}, grouped(WeightCode::int8, 64, ScaleType::bf16), false},
        {kInt8Row, grouped(WeightCode::int8, 512, ScaleType::bf16), false},
        {kNv, kNvfp4, false},
        {kPackedNv, kNvfp4, false},
        {kAwq, with_zero_points(grouped(WeightCode::int4, 64, ScaleType::f32)), false},
        {{QuantizedLayout::packed_integers, 4, 32, true},
         with_zero_points(grouped(WeightCode::int4, 32, ScaleType::f32)),
         true},
        {{QuantizedLayout::int8, 8, 64, true},
         with_zero_points(grouped(WeightCode::int8, 64, ScaleType::f32)),
         false},
    };
    for (const auto& [how, format, offset] : kCases) {
        write(how);
        const auto stored = read();
        ASSERT_TRUE(stored) << stored.error().message;
        EXPECT_EQ(stored->format, format);
        EXPECT_EQ(stored->offset_codes, offset);
        EXPECT_EQ(stored->zeros.has_value(), how.zero_points);
        EXPECT_EQ(stored->row_stride, how.layout == QuantizedLayout::awq ? 0 : 512);
    }
}

TEST_F(QuantizedCheckpoint, TheMatrixScaleMultipliesOrDivides) {
    for (const bool packed : {false, true}) {
        write(packed ? kPackedNv : kNv);
        SafetensorsEditor file = edit();
        const float own = 8.0f;
        std::memcpy(file.tensors[kMatrix + (packed ? ".weight_global_scale" : ".weight_scale_2")]
                        .bytes.data(),
                    &own, 4);
        file.save();
        const auto stored = read();
        ASSERT_TRUE(stored) << stored.error().message;
        EXPECT_EQ(stored->tensor_scale, packed ? 0.125f : 8.0f);
    }
}

// A matrix that is not quantized is read as it is: which ones those are the tensors say.
TEST_F(QuantizedCheckpoint, MixesWithPlainMatrices) {
    write(kInt4);
    SafetensorsEditor file = edit();
    for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape"})
        file.tensors.erase(kMatrix + part);
    file.put(kMatrix + ".weight", "BF16", {128, 512}, 2);
    file.save();
    const auto stored = read();
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_EQ(stored->format, WeightFormat{.code = WeightCode::bf16});
    file.put(kMatrix + ".weight", "F16", {128, 512}, 2);
    file.save();
    expect_error(read(), {kMatrix + ".weight' is F16", "quantized weights do not mix"});
}

TEST_F(QuantizedCheckpoint, MissingTensorsAreNamedWithTheirMatrix) {
    const struct {
        Quantization how;
        const char *missing, *matrix;
    } kCases[] = {
        {kInt4, ".weight_scale", ".weight_packed"},
        {kInt4, ".weight_shape", ".weight_packed"},
        {kInt8Row, ".weight_scale", ".weight"},
        {kNv, ".weight_scale", ".weight"},
        {kNv, ".weight_scale_2", ".weight"},
        {kPackedNv, ".weight_scale", ".weight_packed"},
        {kPackedNv, ".weight_global_scale", ".weight_packed"},
        {kAwq, ".qzeros", ".qweight"},
        {kAwq, ".scales", ".qweight"},
        {kShifted, ".weight_zero_point", ".weight_packed"},
    };
    for (const auto& [how, missing, matrix] : kCases)
        expect_refused(how, [&](SafetensorsEditor& file) { file.tensors.erase(kMatrix + missing); },
                       {"no tensor '" + kMatrix + missing, "'" + kMatrix + matrix + "'"});
}

TEST_F(QuantizedCheckpoint, TensorsTooManyAreNamedWithTheirMatrix) {
    const struct {
        Quantization how;
        const char *extra, *dtype;
        std::vector<std::int64_t> shape;
    } kCases[] = {
        {kInt4, ".weight_zero_point", "I32", {16, 16}},
        {kInt4, ".weight_g_idx", "I32", {512}},
        {kInt4, ".weight_scale_inv", "F32", {1, 4}},
        {kInt4, ".weight", "BF16", {128, 512}},
        {kInt8Row, ".weight_zero_point", "I8", {128, 1}},
        {kInt8Row, ".input_scale", "F32", {1}},
        {kNv, ".weight_global_scale", "F32", {1}},
        {kPackedNv, ".weight_scale_2", "F32", {1}},
    };
    for (const auto& [how, extra, dtype, shape] : kCases) {
        SCOPED_TRACE(extra);
        const std::size_t bytes = dtype[0] == 'B' ? 2 : dtype[1] == '8' ? 1 : 4;
        expect_refused(
            how, [&](SafetensorsEditor& file) { file.put(kMatrix + extra, dtype, shape, bytes); },
            {"'" + kMatrix + extra + "' stands beside '" + kMatrix + ".weight"});
    }
}

TEST_F(QuantizedCheckpoint, ShapesAndTypesAreTheMatrixs) {
    const auto put = [](const char* part, const char* dtype, std::vector<std::int64_t> shape,
                        std::size_t bytes) {
        return [=](SafetensorsEditor& file) { file.put(kMatrix + part, dtype, shape, bytes); };
    };
    expect_refused(kInt4, put(".weight_packed", "I32", {128, 63}, 4), {"[128, 63]", "[128, 64]"});
    expect_refused(kInt4, put(".weight_packed", "U8", {128, 64}, 1), {"U8", "I32"});
    expect_refused(kInt4, put(".weight_scale", "BF16", {128, 4}, 2), {"[128, 4]", "[128, 16]"});
    expect_refused(kInt4, put(".weight_scale", "F8_E4M3", {128, 16}, 1), {"F8_E4M3", "BF16"});
    expect_refused(kInt4, put(".weight_shape", "I64", {2}, 8),
                   {kMatrix + ".weight_shape' says [0, 0] of a matrix [128, 512]"});
    expect_refused(kInt4, put(".weight_shape", "I32", {3}, 4), {"[3]", "[2]"});
    expect_refused(kInt8Row, put(".weight", "I8", {512, 128}, 1), {"[512, 128]", "[128, 512]"});
    expect_refused(kInt8Row, put(".weight_scale", "BF16", {128}, 2), {"[128]", "[128, 1]"});
    expect_refused(kNv, put(".weight", "U8", {128, 512}, 1), {"[128, 512]", "[128, 256]"});
    expect_refused(kNv, put(".weight_scale", "F8_E4M3", {128, 16}, 1), {"[128, 16]", "[128, 32]"});
    expect_refused(kNv, put(".weight_scale_2", "F32", {2}, 4), {"F32 [2]", "one F32 number"});
    expect_refused(kNv, put(".weight_scale_2", "F32", {}, 4), {"weight_scale_2' is 0"});
    expect_refused(kPackedNv, put(".weight_global_scale", "F32", {1}, 4), {"is 0", "positive"});
    expect_refused(kAwq, put(".qweight", "I32", {512, 15}, 4), {"[512, 15]", "[512, 16]"});
    expect_refused(kAwq, put(".qzeros", "I32", {4, 16}, 4), {"[4, 16]", "[8, 16]"});
    expect_refused(kAwq, put(".scales", "F16", {128, 8}, 2), {"[128, 8]", "[8, 128]"});
    expect_refused(kAwq, put(".scales", "I32", {8, 128}, 4), {"I32", "F16"});
    expect_refused(kShifted, put(".weight_zero_point", "I32", {128, 16}, 4),
                   {"[128, 16]", "[16, 16]"});
}

TEST_F(QuantizedCheckpoint, ModelOptsOwnFileIsRead) {
    write(kNv);
    auto config = json::parse(read_file(path() / "config.json"));
    config.erase("quantization_config");
    write_file(path() / "config.json", config.dump());
    expect_error(read(), {"no part of the model config.json describes", "weight_scale_2"});
    const auto quantization = [&](const json& algorithm) {
        write_file(path() / "hf_quant_config.json",
                   json{{"producer", {{"name", "modelopt"}}},
                        {"quantization",
                         {{"quant_algo", algorithm},
                          {"kv_cache_quant_algo", nullptr},
                          {"group_size", 16},
                          {"exclude_modules", {"lm_head", "model.layers.0.self_attn*"}}}}}
                       .dump());
    };
    quantization("NVFP4");
    EXPECT_TRUE(read());
    quantization("FP8");
    expect_error(read(), {"hf_quant_config.json: quantization: quant_algo is 'FP8'"});
    write_file(path() / "hf_quant_config.json", "{}");
    expect_error(read(), {"hf_quant_config.json: quantization is missing"});
}

// The description of a packed INT4 model with one word of its weights changed.
void expect_words_refused(const char* field, const json& value,
                          std::initializer_list<std::string_view> words,
                          const Quantization& how = kInt4) {
    SCOPED_TRACE(std::string(field) + " = " + value.dump());
    SyntheticModel model = *synthetic_preset("tiny-v3");
    model.config.quantization = how;
    auto config = json::parse(config_json_of(model.config, DType::bf16));
    ASSERT_TRUE(parse_model_config(config.dump(), "config.json"));
    config["quantization_config"]["config_groups"]["group_0"]["weights"][field] = value;
    expect_error(parse_model_config(config.dump(), "config.json"), words);
}

TEST(QuantizationConfig, RefusesWhatIsStoredOtherwise) {
    expect_words_refused("symmetric", false, {"symmetric is false", "zero points"}, kPackedNv);
    expect_words_refused("actorder", "group", {"actorder is \"group\"", "reordered"});
    expect_words_refused("actorder", true, {"actorder is true"});
    expect_words_refused("num_bits", 3, {"num_bits is 3", "4 and 8"});
    expect_words_refused("num_bits", 4, {"num_bits is 4", "supported are 8"}, kInt8Row);
    expect_words_refused("type", "float", {"type is 'float'", "'int'"});
    expect_words_refused("strategy", "tensor", {"strategy is 'tensor'", "'channel'"});
    expect_words_refused("strategy", "block", {"strategy is 'block'"});
    expect_words_refused("group_size", 48, {"group_size is 48", "multiples of 128"});
    expect_words_refused("group_size", nullptr, {"group_size is -1"});
    expect_words_refused("group_size", 32, {"group_size is 32", "is 16"}, kPackedNv);
    expect_words_refused("group_size", "32", {"group_size is \"32\"", "integer"});
    expect_words_refused("strategy", "group", {"strategy is 'group'", "'tensor_group'"}, kPackedNv);
}

// Heads of their own kind, in a group of their own: as it is written, so it is read.
TEST(QuantizationConfig, HeadsMayBeStoredOtherwise) {
    const SyntheticModel model = *synthetic_preset("tiny-v3");
    const std::string plain = config_json_of(model.config, DType::bf16);
    const Quantization head{QuantizedLayout::int8, 8, 32};
    for (const Quantization& how : {kInt4, head}) {
        const std::string text = quantized_config_json(plain, how, head);
        const auto config = parse_model_config(text, "config.json");
        ASSERT_TRUE(config) << config.error().message;
        EXPECT_EQ(config->quantization, how);
        EXPECT_EQ(config->quantization_of("model.layers.0.self_attn.o_proj"), how);
        EXPECT_EQ(config->quantization_of("lm_head"), head);
        EXPECT_EQ(config->quantization_of("model.layers.2.shared_head.head"), head);
        EXPECT_FALSE(config->tie_word_embeddings);
    }
    json mixed = json::parse(quantized_config_json(plain, kInt4, head));
    json& groups = mixed["quantization_config"]["config_groups"];
    groups["group_1"]["targets"] = {"re:.*lm_head", "re:.*down_proj"};
    expect_error(parse_model_config(mixed.dump(), "config.json"),
                 {"'group_1'", "another one of heads"});
    groups["group_1"]["targets"] = {"lm_head"};
    EXPECT_TRUE(parse_model_config(mixed.dump(), "config.json"));
    groups["group_2"] = groups["group_1"];
    groups["group_2"]["weights"]["group_size"] = 64;
    expect_error(parse_model_config(mixed.dump(), "config.json"),
                 {"'group_2'", "stores heads otherwise"});
    groups.erase("group_2");
    groups["group_1"]["format"] = "dense";
    expect_error(parse_model_config(mixed.dump(), "config.json"), {"group_1", "format 'dense'"});
}

// AutoAWQ's words, its older ones too.
TEST(QuantizationConfig, ReadsAndRefusesAwq) {
    SyntheticModel model = *synthetic_preset("tiny-v3");
    model.config.quantization = kAwq;
    const auto good = json::parse(config_json_of(model.config, DType::bf16));
    const auto with = [&](std::initializer_list<std::pair<const char*, json>> words) {
        json config = good;
        for (const auto& [key, value] : words) config["quantization_config"][key] = value;
        return parse_model_config(config.dump(), "config.json");
    };
    const auto plain = with({{"version", "GEMM"}, {"modules_to_not_convert", {"gate"}}});
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_EQ(plain->quantization, kAwq);
    json old = good;
    old["quantization_config"] = {{"quant_method", "awq"}, {"w_bit", 4}, {"q_group_size", 128}};
    EXPECT_EQ(parse_model_config(old.dump(), "config.json")->quantization.group, 128);
    expect_error(with({{"bits", 8}}), {"bits is 8", "only 4"});
    expect_error(with({{"version", "gemv"}}), {"version is 'gemv'", "'gemm'"});
    expect_error(with({{"zero_point", false}}), {"zero_point is false"});
    expect_error(with({{"group_size", 48}}), {"group_size is 48", "multiples of 128"});
}

TEST(QuantizationConfig, RefusesOtherWords) {
    SyntheticModel model = *synthetic_preset("tiny-v3");
    model.config.quantization = kInt4;
    const auto good = json::parse(config_json_of(model.config, DType::bf16));
    const auto refused = [&](const char* field, const json& value,
                             std::initializer_list<std::string_view> words) {
        json config = good;
        config["quantization_config"][field] = value;
        expect_error(parse_model_config(config.dump(), "config.json"), words);
    };
    refused("format", "mixed-precision", {"format 'mixed-precision'"});
    refused("quantization_status", "frozen", {"quantization_status is 'frozen'"});
    refused("sparsity_config", {{"format", "sparse-24-bitmask"}}, {"sparsity_config"});
    refused("config_groups", json::object(), {"0 groups"});
    json two = good["quantization_config"]["config_groups"];
    two["group_1"] = two["group_0"];
    json config = good;
    config["quantization_config"]["config_groups"] = two;
    EXPECT_TRUE(parse_model_config(config.dump(), "config.json"));
    two["group_1"]["weights"]["num_bits"] = 8;
    refused("config_groups", two, {"'group_1'", "otherwise"});
    two["group_1"].erase("weights");
    refused("config_groups", two, {"group_1", "weights is missing"});
    config = good;
    config["compression_config"] = good["quantization_config"];
    expect_error(parse_model_config(config.dump(), "config.json"), {"a second description"});
}

}  // namespace
}  // namespace espalier::checkpoint
