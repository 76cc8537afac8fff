// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.hpp"

#include <nlohmann/json.hpp>

#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

// A directory with a valid config.json; each test adds weights.
class CheckpointTest : public testing::Test {
  protected:
    CheckpointTest() {
        put("config.json", config_json_of(synthetic_preset("tiny-v2")->config, DType::bf16));
    }

    void put(const std::string& name, std::string_view text) {
        write_file(directory_.path() / name, text);
    }
    void put_index(const nlohmann::json& weight_map) {
        put("model.safetensors.index.json",
            nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
    }
    // A file with one [8, 4] f32 tensor.
    void put_tensor(const std::string& file, const std::string& tensor) {
        put(file, safetensors(R"({")" + tensor +
                                  R"(":{"dtype":"F32","shape":[8,4],"data_offsets":[0,128]}})",
                              128));
    }
    Expected<Checkpoint> open() { return Checkpoint::open(directory_.path().string()); }

    TemporaryDirectory directory_;
};

TEST_F(CheckpointTest, SingleFile) {
    put_tensor("model.safetensors", "x");
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->names(), std::vector<std::string>{"x"});
    EXPECT_EQ(checkpoint->total_bytes(), 128u);
    EXPECT_TRUE(checkpoint->has("x"));
    EXPECT_FALSE(checkpoint->has("y"));
    const auto tensor = checkpoint->find("x", {8, 4}, {StoredType::bf16, StoredType::f32});
    ASSERT_TRUE(tensor) << tensor.error().message;
    EXPECT_EQ(tensor->type, StoredType::f32);
    EXPECT_EQ(tensor->bytes.size(), 128u);
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{8, 4}));
}

TEST_F(CheckpointTest, FindSaysWhatDiffers) {
    put_tensor("model-00003-of-00003.safetensors", "x");
    put_index({{"x", "model-00003-of-00003.safetensors"}});
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const auto shape = checkpoint->find("x", {7, 4}, {StoredType::f32});
    ASSERT_FALSE(shape);
    EXPECT_EQ(shape.error().message,
              "model-00003-of-00003.safetensors: tensor 'x' has shape [8, 4], expected [7, 4]");
    EXPECT_FALSE(checkpoint->find("x", {8}, {StoredType::f32}));
    EXPECT_FALSE(checkpoint->find("x", {8, 4, 1}, {StoredType::f32}));
    const auto type = checkpoint->find("x", {8, 4}, {StoredType::bf16, StoredType::e4m3});
    ASSERT_FALSE(type);
    EXPECT_EQ(
        type.error().message,
        "model-00003-of-00003.safetensors: tensor 'x' has dtype F32, expected BF16 or F8_E4M3");
    expect_error(checkpoint->find("y", {8, 4}, {StoredType::f32}),
                 {directory_.path().string(), "no tensor 'y'"});
}

TEST_F(CheckpointTest, UnknownTypesAreRefusedWhenAskedFor) {
    put("model.safetensors",
        safetensors(R"({"x":{"dtype":"F4_NEW","shape":[3],"data_offsets":[0,2]}})", 2));
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    expect_error(checkpoint->find("x", {3}, {StoredType::f32}), {"'x'", "F4_NEW", "F32"});
}

TEST_F(CheckpointTest, ShardsThatBreakTheirPromise) {
    put_tensor("a.safetensors", "x");
    put_index({{"x", "a.safetensors"}, {"y", "a.safetensors"}});
    expect_error(open(), {"a.safetensors: no tensor 'y'", "index.json"});
    put_index({{"x", "a.safetensors"}, {"y", "b.safetensors"}});
    expect_error(open(), {"b.safetensors: missing", "'y'"});
    put("b.safetensors", "short");
    expect_error(open(), {"b.safetensors", "5 bytes"});
    // A tensor in two shards is read from the promised one.
    put_tensor("b.safetensors", "x");
    put_index({{"x", "b.safetensors"}});
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->find("x", {8, 4}, {StoredType::f32})->file->name(), "b.safetensors");
    put_tensor("b.safetensors", "y");
    put_index({{"x", "b.safetensors"}, {"y", "b.safetensors"}, {"z", "a.safetensors"}});
    put_tensor("a.safetensors", "x");
    expect_error(open(), {"b.safetensors: no tensor 'x', which", "; it is in a.safetensors"});
}

TEST_F(CheckpointTest, TensorsThatTheIndexLeavesOutCount) {
    const char* kEntry = R"({"dtype":"F32","shape":[2],"data_offsets":[)";
    put("a.safetensors",
        safetensors(fmt::format(R"({{"x":{0}0,8]}},"surplus":{0}8,16]}}}})", kEntry), 16));
    put_tensor("b.safetensors", "y");
    put_index({{"x", "a.safetensors"}, {"y", "b.safetensors"}});
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->names(), (std::vector<std::string>{"surplus", "x", "y"}));
    EXPECT_EQ(checkpoint->stored("surplus")->file->name(), "a.safetensors");
    put("b.safetensors",
        safetensors(fmt::format(R"({{"y":{0}0,8]}},"surplus":{0}8,16]}}}})", kEntry), 16));
    expect_error(open(), {"'surplus' is in a.safetensors and in b.safetensors"});
}

TEST_F(CheckpointTest, TheIndexCannotPointOutsideTheDirectory) {
    put_tensor("sub/x.safetensors", "x");
    write_file(directory_.path().parent_path() / "espalier-outside.safetensors", "x");
    for (const char* name : {"../espalier-outside.safetensors", "/etc/passwd", "sub/x.safetensors",
                             "..", ".", ".hidden.safetensors", "", "a\\b.safetensors", "x.bin",
                             "pytorch_model.bin", "./x.safetensors"}) {
        put_index({{"x", name}});
        expect_error(open(), {"index.json", "tensor 'x'", "plain name"});
    }
    fs::remove(directory_.path().parent_path() / "espalier-outside.safetensors");
    put_index({{"x", 5}});
    expect_error(open(), {"tensor 'x'", "5"});
    for (const char* text : {"[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{", "5"}) {
        put("model.safetensors.index.json", text);
        expect_error(open(), {"model.safetensors.index.json"});
    }
}

TEST_F(CheckpointTest, OtherWeightsAreNamedAndNotOpened) {
    expect_error(open(), {"neither model.safetensors"});
    put("pytorch_model.bin", "pickle");
    expect_error(open(), {"pytorch_model.bin", "not opened"});
    put_tensor("model.safetensors", "x");
    EXPECT_TRUE(open());
    put_index({{"x", "model.safetensors"}});
    expect_error(open(), {"both", "model.safetensors.index.json"});
}

// Names whose content never came, as an interrupted download leaves them.
TEST_F(CheckpointTest, LinksThatPointNowhereAreNamed) {
    const auto link = [&](const char* name) {
        fs::remove(directory_.path() / name);
        fs::create_symlink("../../blobs/0a1b", directory_.path() / name);
    };
    const auto expect_link = [&](const char* name) {
        expect_error(open(),
                     {std::string(name) + ": a link to ../../blobs/0a1b, which is not there"});
    };
    link("model.safetensors");
    expect_link("model.safetensors");
    fs::remove(directory_.path() / "model.safetensors");
    put_index({{"x", "a.safetensors"}});
    link("a.safetensors");
    expect_link("a.safetensors");
    link("model.safetensors.index.json");
    expect_link("model.safetensors.index.json");
    fs::remove(directory_.path() / "model.safetensors.index.json");
    put_tensor("model.safetensors", "x");
    ASSERT_TRUE(open());
    link("generation_config.json");
    expect_link("generation_config.json");
    link("config.json");
    expect_link("config.json");
    const fs::path whole = directory_.path() / "model";
    fs::create_directory_symlink("nowhere", whole);
    expect_error(Checkpoint::open(whole.string()), {"a link to nowhere, which is not there"});
}

TEST_F(CheckpointTest, EmptyFilesAreNamed) {
    put("model.safetensors", "");
    expect_error(open(), {"model.safetensors: 0 bytes"});
    put_tensor("model.safetensors", "x");
    put("generation_config.json", "");
    expect_error(open(), {"generation_config.json: empty"});
    put("config.json", "");
    expect_error(open(), {"config.json: empty"});
}

TEST_F(CheckpointTest, ConfigIsNeeded) {
    put_tensor("model.safetensors", "x");
    fs::remove(directory_.path() / "config.json");
    expect_error(open(), {directory_.path().string(), "no config.json"});
    write_file(directory_.path() / "params.json", "{}");
    expect_error(open(), {"params.json and no config.json", "EAGLE heads"});
}

TEST_F(CheckpointTest, GenerationConfigIsOptionalAndAddsEndTokens) {
    put_tensor("model.safetensors", "x");
    put("generation_config.json",
        R"({"eos_token_id": [5, 1], "temperature": 0.3, "do_sample": true})");
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->config().eos_token_ids, (std::vector<std::int32_t>{1, 5}));
    EXPECT_EQ(checkpoint->generation().temperature, 0.3);
    put("generation_config.json", R"({"eos_token_id": 512})");
    expect_error(open(), {"generation_config.json", "512"});
    put("generation_config.json", "{");
    expect_error(open(), {"generation_config.json"});
}

TEST_F(CheckpointTest, NestedModelsDropPrefixAndVision) {
    ModelConfig config = synthetic_preset("tiny-v3")->config;
    config.architecture = Architecture::kimi_k2;
    config.wrapper = Wrapper::kimi_k25;
    put("config.json", config_json_of(config, DType::bf16));
    const auto entry = [](int index) {
        return fmt::format(R"({{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", index,
                           index + 1);
    };
    put("model.safetensors",
        safetensors(
            fmt::format(
                R"({{"language_model.lm_head.weight":{},"mm_projector.w":{},"vision_tower.w":{}}})",
                entry(0), entry(1), entry(2)),
            3));
    const auto checkpoint = open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->names(), std::vector<std::string>{"lm_head.weight"});
    EXPECT_EQ(checkpoint->total_bytes(), 1u);
    ASSERT_EQ(checkpoint->left_out().size(), 2u);
    for (const LeftOut& part : checkpoint->left_out()) {
        EXPECT_EQ(part.tensors, 1) << part.prefix;
        EXPECT_EQ(part.bytes, 1u) << part.prefix;
    }
    EXPECT_TRUE(checkpoint->find("lm_head.weight", {1}, {StoredType::u8}));
    expect_error(checkpoint->find("norm", {1}, {StoredType::u8}), {"'language_model.norm'"});
    put("model.safetensors", safetensors(fmt::format(R"({{"surprise.w":{}}})", entry(0)), 1));
    expect_error(open(), {"'surprise.w'", "language_model.", "vision_tower."});
}

}  // namespace
}  // namespace espalier::checkpoint
