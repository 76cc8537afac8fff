// SPDX-License-Identifier: Apache-2.0
// The generator against values of an independent numpy version, and whole models through the
// reader.
#include "checkpoint/synthetic.hpp"

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/support.hpp"

namespace espalier::checkpoint {
namespace {

struct Golden {
    const char* name;
    TensorRole role;
    StoredType type;
    std::int64_t inputs;
    std::uint64_t seed, index;
    std::uint32_t bits;
};

// Computed with numpy from the definition in synthetic.hpp.
constexpr Golden kGoldens[] = {
    {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", TensorRole::projection, StoredType::f32,
     64, 0, 0, 0x3e4f3d13},
    {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", TensorRole::projection, StoredType::f16,
     64, 0, 0, 0x327a},
    {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", TensorRole::projection, StoredType::f32,
     64, 0, 12345, 0xbe094a46},
    {"model.layers.1.mlp.experts.3.gate_proj.weight", TensorRole::projection, StoredType::bf16, 160,
     0, 1, 0xbd57},
    {"model.layers.1.mlp.experts.3.gate_proj.weight", TensorRole::projection, StoredType::e4m3, 160,
     0, 0, 0xf0},
    {"model.layers.1.mlp.experts.3.gate_proj.weight", TensorRole::projection, StoredType::e4m3, 160,
     0, 12345, 0xd2},
    {"model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv", TensorRole::scale, StoredType::f32,
     160, 0, 1, 0x39cacc4c},
    {"model.embed_tokens.weight", TensorRole::embedding, StoredType::f32, 64, 0, 12345, 0x3f677250},
    {"model.embed_tokens.weight", TensorRole::embedding, StoredType::bf16, 64, 0, 1, 0xbef9},
    {"lm_head.weight", TensorRole::head, StoredType::f32, 64, 0, 1, 0xbe011f26},
    {"model.norm.weight", TensorRole::norm, StoredType::f32, 0, 0, 3, 0x3f97b291},
    {"model.layers.1.mlp.gate.weight", TensorRole::router, StoredType::f32, 64, 0, 3, 0x3d76d82b},
    {"model.layers.1.mlp.gate.e_score_correction_bias", TensorRole::router_bias, StoredType::f32, 0,
     0, 3, 0x3d95c065},
    {"model.layers.0.self_attn.o_proj.weight", TensorRole::projection, StoredType::f32, 512, 7,
     65535, 0xbcfbfaa5},
    {"model.layers.2.mlp.experts.7.down_proj.weight", TensorRole::projection, StoredType::f16, 64,
     7, 8191, 0xa31f},
};

TEST(SyntheticValues, EqualTheNumpyVersion) {
    for (const Golden& golden : kGoldens) {
        const TensorSpec spec{golden.name, golden.role, golden.type, {}, golden.inputs, -1};
        std::uint32_t bits = 0;
        synthetic_values(spec, golden.seed, golden.index, 1, reinterpret_cast<std::byte*>(&bits));
        EXPECT_EQ(bits, golden.bits) << golden.name << " at " << golden.index;
    }
}

// Every tensor of a written model has the listed name, shape, type and bytes, and nothing else is
// there.
void expect_round_trip(const SyntheticModel& model) {
    const TemporaryDirectory directory;
    const auto path = directory.path() / "model";
    ThreadPool pool(2);
    std::uint64_t done = 0, total = 0;
    const auto written = write_synthetic(model, path, pool, [&](std::uint64_t d, std::uint64_t t) {
        EXPECT_GT(d, done);
        done = d;
        total = t;
    });
    ASSERT_TRUE(written) << written.error().message;
    const auto checkpoint = Checkpoint::open(path.string());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(done, total);
    EXPECT_EQ(checkpoint->total_bytes(), total);
    ModelConfig expected = model.config;
    if (model.dtype == DType::e4m3) expected.fp8_block = 128;
    EXPECT_EQ(checkpoint->config(), expected);

    const auto specs = list_tensors(model.config, {model.dtype, model.repeat_mtp_embeddings});
    EXPECT_EQ(checkpoint->names().size(), specs.size());
    for (const TensorSpec& spec : specs) {
        const std::string name = spec.name.substr(model.config.tensor_prefix().size());
        const auto tensor =
            spec.shape.empty() ? checkpoint->find(name, {}, {spec.type})
            : spec.shape.size() == 1
                ? checkpoint->find(name, {spec.shape[0]}, {spec.type})
                : checkpoint->find(name, {spec.shape[0], spec.shape[1]}, {spec.type});
        ASSERT_TRUE(tensor) << tensor.error().message;
        std::vector<std::byte> values(spec.bytes());
        synthetic_values(spec, model.seed, 0, spec.elements(), values.data());
        ASSERT_EQ(tensor->bytes.size(), values.size());
        EXPECT_EQ(std::memcmp(tensor->bytes.data(), values.data(), values.size()), 0) << spec.name;
        // Wide elements come first, so that all are aligned in the mapped file.
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->bytes.data()) % bytes_of(spec.type), 0u)
            << spec.name;
    }
}

TEST(Synthetic, RoundTripOfQuantizedModels) {
    for (const Quantization& how :
         {Quantization{QuantizedLayout::packed_integers, 4, 32},
          Quantization{QuantizedLayout::packed_integers, 8, 128},
          Quantization{QuantizedLayout::int8, 8, 0}, Quantization{QuantizedLayout::nvfp4, 4, 16},
          Quantization{QuantizedLayout::packed_nvfp4, 4, 16}}) {
        SyntheticModel model = *synthetic_preset("tiny-v3");
        model.config.quantization = how;
        expect_round_trip(model);
    }
}

TEST(Synthetic, RoundTripOfEveryTypeSingleAndSharded) {
    SyntheticModel v2 = *synthetic_preset("tiny-v2");
    v2.dtype = DType::f32;
    v2.shard_limit_bytes = 1 << 20;
    expect_round_trip(v2);
    v2.dtype = DType::f16;
    v2.shard_limit_bytes = 1;  // every tensor its own file
    v2.config.tie_word_embeddings = true;
    v2.config.num_hidden_layers = 1;
    expect_round_trip(v2);
    SyntheticModel v3 = *synthetic_preset("tiny-v3");
    v3.seed = 99;
    expect_round_trip(v3);
    v3.repeat_mtp_embeddings = true;
    v3.config.architecture = Architecture::kimi_k2;
    v3.config.wrapper = Wrapper::kimi_k25;
    expect_round_trip(v3);
    for (const char* preset : {"tiny-glm", "tiny-v32", "tiny-glm5"})
        expect_round_trip(*synthetic_preset(preset));
    SyntheticModel mistral = *synthetic_preset("tiny-mistral4");
    expect_round_trip(mistral);
    mistral.config.wrapper = Wrapper::mistral3;
    expect_round_trip(mistral);
    v3.config.architecture = Architecture::sarvam_mla;
    v3.config.wrapper = Wrapper::none;
    expect_round_trip(v3);
}

// zai-org/GLM-4.7-Flash's model.safetensors.index.json has 9,703 names, and its total_size counts
// this many numbers.
TEST(Synthetic, GlmFlashHasTheTensorsOfThePublishedIndex) {
    const auto specs = list_tensors(synthetic_preset("glm-flash")->config, {DType::bf16, true});
    EXPECT_EQ(specs.size(), 9703u);
    std::uint64_t numbers = 0;
    for (const TensorSpec& spec : specs) numbers += spec.elements();
    EXPECT_EQ(numbers, 31'221'488'576u);
}

TEST(Synthetic, Fp8WithDimensionsThatAreNoMultipleOf128) {
    SyntheticModel model = *synthetic_preset("tiny-v3");
    model.dtype = DType::e4m3;
    model.config.hidden_size = 200;
    model.config.moe_intermediate_size = 72;
    model.config.q_lora_rank = 130;
    expect_round_trip(model);

    std::set<std::string> names;
    for (const TensorSpec& spec : list_tensors(model.config, {DType::e4m3, false})) {
        names.insert(spec.name);
        if (spec.name == "model.layers.1.mlp.experts.3.down_proj.weight_scale_inv") {
            EXPECT_EQ(spec.shape, (std::vector<std::int64_t>{2, 1}));
            EXPECT_EQ(spec.inputs, 72);
            EXPECT_EQ(spec.expert, 3);
        }
        if (spec.role != TensorRole::projection) {
            EXPECT_NE(spec.type, StoredType::e4m3) << spec.name;
        }
        if (spec.role == TensorRole::router) {
            EXPECT_EQ(spec.type, StoredType::bf16);
        }
        if (spec.role == TensorRole::router_bias) {
            EXPECT_EQ(spec.type, StoredType::f32);
        }
    }
    for (const char* name :
         {"model.layers.3.enorm.weight", "model.layers.3.hnorm.weight",
          "model.layers.3.eh_proj.weight", "model.layers.3.eh_proj.weight_scale_inv",
          "model.layers.3.shared_head.norm.weight",
          "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
          "model.layers.3.mlp.gate.e_score_correction_bias", "model.layers.0.mlp.down_proj.weight",
          "model.layers.1.mlp.shared_experts.up_proj.weight", "lm_head.weight"})
        EXPECT_TRUE(names.contains(name)) << name;
    for (const char* name :
         {"model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight",
          "model.embed_tokens.weight_scale_inv", "model.layers.0.mlp.gate.weight"})
        EXPECT_FALSE(names.contains(name)) << name;
}

TEST(Synthetic, RefusesWhatItCouldNotReadBack) {
    const TemporaryDirectory directory;
    ThreadPool pool(1);
    SyntheticModel model = *synthetic_preset("tiny-v2");
    write_file(directory.path() / "full" / "a", "x");
    expect_error(write_synthetic(model, directory.path() / "full", pool), {"full", "not empty"});
    model.config.vocab_size = 260;
    expect_error(write_synthetic(model, directory.path() / "new", pool), {"260", "261"});
    model.config.num_attention_heads = 200;
    expect_error(write_synthetic(model, directory.path() / "new", pool),
                 {"num_attention_heads is 200"});
    EXPECT_FALSE(std::filesystem::exists(directory.path() / "new"));
    expect_error(synthetic_preset("huge"), {"'huge'", "tiny-v2", "bench-128h"});
}

TEST(Synthetic, PresetsAreValidAndBenchHasItsPublishedShape) {
    for (const std::string_view name : synthetic_preset_names()) {
        const auto model = synthetic_preset(name);
        ASSERT_TRUE(model);
        const auto config = parse_model_config(config_json_of(model->config, model->dtype), name);
        ASSERT_TRUE(config) << config.error().message;
        EXPECT_EQ(*config, model->config);
    }
    std::uint64_t bytes = 0;
    for (const TensorSpec& spec : list_tensors(synthetic_preset("bench-128h")->config, {}))
        bytes += spec.bytes();
    const std::uint64_t attention =
        512 * 1024 + 24576 * 512 + 576 * 1024 + 32768 * 512 + 1024 * 16384;
    const std::uint64_t expert = 3 * 512 * 1024;
    const std::uint64_t elements = 4 * attention + 3 * 3072 * 1024 + 3 * (17 * expert + 16 * 1024) +
                                   2 * 8192 * 1024 + 4 * (2 * 1024 + 512 + 512) + 1024;
    EXPECT_EQ(bytes, 2 * elements + 3 * 16 * 4);  // bf16, and the router's f32 biases
}

TEST(SyntheticTokenizer, EveryIdHasATokenAndEveryMergeItsParts) {
    const auto text = synthetic_tokenizer_json(2000);
    ASSERT_TRUE(text);
    const auto document = nlohmann::json::parse(*text);
    const auto& vocabulary = document["model"]["vocab"];
    std::set<std::int64_t> ids;
    for (const auto& token : document["added_tokens"]) ids.insert(token["id"].get<std::int64_t>());
    EXPECT_EQ(ids.size(), 5u);
    for (const auto& [token, id] : vocabulary.items()) ids.insert(id.get<std::int64_t>());
    EXPECT_EQ(ids.size(), 2000u);
    EXPECT_EQ(*ids.begin(), 0);
    EXPECT_EQ(*ids.rbegin(), 1999);
    for (const auto& merge : document["model"]["merges"]) {
        const std::string pair = merge;
        const std::size_t space = pair.find(' ');
        EXPECT_TRUE(vocabulary.contains(pair.substr(0, space))) << pair;
        EXPECT_TRUE(vocabulary.contains(pair.substr(space + 1))) << pair;
        EXPECT_TRUE(vocabulary.contains(pair.substr(0, space) + pair.substr(space + 1))) << pair;
    }
}

}  // namespace
}  // namespace espalier::checkpoint
