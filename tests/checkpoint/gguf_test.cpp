// SPDX-License-Identifier: Apache-2.0
// GGUF metadata as configuration, tensors under their published names, files in parts.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/gguf_config.hpp"
#include "checkpoint/gguf_file.hpp"
#include "checkpoint/model_hash.hpp"
#include "checkpoint/support.hpp"
#include "checkpoint/synthetic.hpp"
#include "checkpoint/tensor_check.hpp"
#include "support/gguf_model.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

Expected<ModelConfig> config_of(const GgufWriter& file) {
    const std::string bytes = file.bytes();
    ESPALIER_ASSIGN_OR_RETURN(const GgufHeader header, parse_gguf(as_bytes(bytes), "m.gguf"));
    return read_gguf_config(header, /*has_head=*/true, "m.gguf");
}

// Fields that the keys of a GGUF file do not say.
ModelConfig told_by_gguf(ModelConfig config) {
    config.eos_token_ids = {};
    config.bos_token_id = {};
    return config;
}

TEST(GgufConfig, EveryPresetComesBack) {
    for (const char* preset : {"tiny-v2", "tiny-v3", "tiny-glm"}) {
        SCOPED_TRACE(preset);
        const ModelConfig wanted = told_by_gguf(synthetic_preset(preset)->config);
        GgufWriter file;
        add_config(file, wanted);
        const auto config = config_of(file);
        ASSERT_TRUE(config) << config.error().message;
        EXPECT_TRUE(*config == wanted);
    }
}

TEST(GgufConfig, YarnIsThatOfThePublishedFiles) {
    ModelConfig wanted = told_by_gguf(synthetic_preset("tiny-v2")->config);
    wanted.yarn = YarnScaling{.factor = 40,
                              .mscale = 0.707,
                              .mscale_all_dim = 0.707,
                              .original_max_position_embeddings = 4096};
    GgufWriter file;
    add_config(file, wanted);
    const auto config = config_of(file);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->yarn, wanted.yarn);
    file.f32("deepseek2.rope.scaling.yarn_ext_factor", 0.5f);
    expect_error(config_of(file), {"rope.scaling.yarn_ext_factor is 0.5", "1"});
}

// Files from before April 2025 have no keys of latents, those from before October no groups.
TEST(GgufConfig, OldFilesAreReadAsTheModelIsPublished) {
    ModelConfig v3 = told_by_gguf(synthetic_preset("tiny-v3")->config);
    v3.num_hidden_layers = 61;
    v3.num_nextn_predict_layers = 0;
    v3.hidden_size = 7168;
    v3.n_routed_experts = 256;
    v3.n_group = 8;
    v3.topk_group = 4;
    GgufWriter file;
    add_config(file, v3, /*groups=*/false);
    const auto config = config_of(file);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->n_group, 8);
    EXPECT_EQ(config->topk_group, 4);
    v3.num_hidden_layers = 12;
    GgufWriter other;
    add_config(other, v3, /*groups=*/false);
    EXPECT_EQ(config_of(other)->n_group, 1);
}

TEST(GgufConfig, RefusesByName) {
    const auto with = [](auto&& change) {
        GgufWriter file;
        change(file);
        return config_of(file);
    };
    expect_error(with([](GgufWriter& file) { file.text("general.architecture", "glm4moe"); }),
                 {"architecture 'glm4moe'", "grouped heads", "deepseek2"});
    expect_error(with([](GgufWriter& file) { file.text("general.architecture", "llama"); }),
                 {"architecture 'llama'", "no latent attention"});
    expect_error(with([](GgufWriter&) {}), {"no general.architecture"});
    expect_error(with([](GgufWriter& file) {
                     file.text("general.architecture", "deepseek2");
                     file.text("general.type", "adapter");
                 }),
                 {"general.type is 'adapter'"});
    const ModelConfig good = synthetic_preset("tiny-v3")->config;
    expect_error(with([&](GgufWriter& file) {
                     add_config(file, good);
                     file.f32("deepseek2.attention.temperature_scale", 0.1f);
                 }),
                 {"'deepseek2.attention.temperature_scale' (0.1) is not known"});
    expect_error(with([&](GgufWriter& file) {
                     ModelConfig config = good;
                     config.qk_rope_head_dim = 32;
                     add_config(file, config);
                 }),
                 {"qk_rope_head_dim is 32", "64"});
    expect_error(with([&](GgufWriter& file) {
                     ModelConfig config = good;
                     config.yarn.reset();
                     add_config(file, config);
                     file.text("deepseek2.rope.scaling.type", "line\xee");
                 }),
                 {"rope.scaling.type is 'line.', expected 'none' or 'yarn'"});
    expect_error(with([](GgufWriter& file) {
                     file.text("general.architecture", "deepseek2");
                     file.text("deepseek2.block_count", "many");
                 }),
                 {"deepseek2.block_count is 'many', expected an integer"});
    expect_error(with([](GgufWriter& file) {
                     file.text("general.architecture", "deepseek2");
                     file.u32("deepseek2.block_count", 2);
                     file.u32("deepseek2.nextn_predict_layers", 3);
                 }),
                 {"nextn_predict_layers is 3", "0 to 2"});
}

class GgufFilesTest : public testing::Test {
  protected:
    void SetUp() override {
        ThreadPool pool(1);
        SyntheticModel model = synthetic_preset("tiny-v3").value();
        model.config.num_hidden_layers = 2;
        config_ = model.config;
        ASSERT_TRUE(write_synthetic(model, path() / "model", pool));
        tensors_ = with_stacked_experts(
            plain_tensors(SafetensorsEditor(path() / "model" / "model.safetensors")),
            config_.n_routed_experts);
    }
    fs::path path() const { return directory_.path(); }
    // The tensors dealt to `parts` files.
    void write_parts(std::uint32_t parts) {
        std::size_t index = 0;
        for (std::uint32_t part = 0; part < parts; ++part) {
            GgufWriter file;
            if (part == 0) add_config(file, config_);
            file.value("split.no", 2, raw_bytes(static_cast<std::uint16_t>(part)));
            file.value("split.count", 2, raw_bytes(static_cast<std::uint16_t>(parts)));
            file.value("split.tensors.count", 5,
                       raw_bytes(static_cast<std::int32_t>(tensors_.size())));
            index = 0;
            for (const auto& [name, data] : tensors_)
                if (index++ % parts == part)
                    file.tensor(gguf_name_of(name), data.shape, data.type, data.bytes);
            file.save(path() / fmt::format("m-{:05}-of-{:05}.gguf", part + 1, parts));
        }
    }
    Expected<Checkpoint> open(const char* name) {
        return Checkpoint::open((path() / name).string());
    }

    TemporaryDirectory directory_;
    ModelConfig config_;
    GgufTensors tensors_;
};

TEST_F(GgufFilesTest, TensorsOfPartsAreThoseOfTheCheckpoint) {
    write_parts(3);
    const auto parts = open("m-00001-of-00003.gguf");
    ASSERT_TRUE(parts) << parts.error().message;
    EXPECT_EQ(parts->files().size(), 3u);
    EXPECT_TRUE(check_tensors(*parts));
    const auto published = Checkpoint::open((path() / "model").string());
    ASSERT_TRUE(published);
    EXPECT_EQ(parts->names(), published->names());
    for (const std::string& name : published->names()) {
        const Tensor ours = *parts->stored(name), theirs = *published->stored(name);
        EXPECT_EQ(ours.shape, theirs.shape) << name;
        EXPECT_TRUE(std::ranges::equal(ours.bytes, theirs.bytes)) << name;
    }
    EXPECT_EQ(parts->total_bytes(), published->total_bytes());
    EXPECT_EQ(parts->loaded_bytes(), parts->total_bytes());
    const auto hash = model_hash(*parts), tokenizer = tokenizer_hash(parts->directory());
    ASSERT_TRUE(hash && tokenizer);
    EXPECT_NE(*hash, *model_hash(*published));
}

TEST_F(GgufFilesTest, PartsThatDoNotBelongTogetherAreRefused) {
    write_parts(3);
    expect_error(open("m-00002-of-00003.gguf"), {"part 2 of 3", "-00001-of-00003.gguf"});
    fs::copy(path() / "m-00001-of-00003.gguf", path() / "x.gguf");
    expect_error(open("x.gguf"), {"the first of 3 parts", "-00001-of-00003.gguf"});
    fs::copy_file(path() / "m-00002-of-00003.gguf", path() / "m-00003-of-00003.gguf",
                  fs::copy_options::overwrite_existing);
    expect_error(open("m-00001-of-00003.gguf"), {"part 2 of 3, expected 3 of 3"});
    fs::remove(path() / "m-00003-of-00003.gguf");
    expect_error(open("m-00001-of-00003.gguf"), {"m-00003-of-00003.gguf"});
    write_parts(2);
    GgufWriter last;
    last.value("split.no", 2, raw_bytes(std::uint16_t{1}));
    last.value("split.count", 2, raw_bytes(std::uint16_t{2}));
    last.save(path() / "m-00002-of-00002.gguf");
    expect_error(open("m-00001-of-00002.gguf"), {"split.tensors.count is"});
}

// A directory with a GGUF file is not guessed at; the error says which file to name.
TEST_F(GgufFilesTest, ADirectoryNamesItsFile) {
    const fs::path alone = path() / "alone";
    write_file(alone / "model-Q4_K_M.gguf", "GGUF");
    expect_error(Checkpoint::open(alone.string()),
                 {"no safetensors checkpoint", (alone / "model-Q4_K_M.gguf").string()});
    expect_error(Checkpoint::open((alone / "model-Q4_K_M.gguf").string()),
                 {"model-Q4_K_M.gguf", "4 bytes"});
    expect_error(Checkpoint::open((path() / "absent.gguf").string()), {"absent.gguf"});
    expect_error(Checkpoint::open_eagle3((alone / "model-Q4_K_M.gguf").string()),
                 {"EAGLE3 safetensors"});
}

// Thousands of damaged files: each is refused with a sentence, or all its tensors lie in it.
TEST_F(GgufFilesTest, DamagedFilesAreRefusedOrStayInBounds) {
    GgufWriter file;
    add_config(file, config_);
    add_tensors(file, tensors_);
    const std::string good = file.bytes();
    const std::size_t head = good.size() - file.data.size();
    std::mt19937 random(3);
    int opened = 0;
    for (int round = 0; round < 2000; ++round) {
        std::string bytes = good;
        for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits)
            bytes[random() % head] ^= static_cast<char>(1u << random() % 8);
        if (random() % 8 == 0) bytes.resize(random() % bytes.size());
        const auto header = parse_gguf(as_bytes(bytes), "m.gguf");
        if (!header) {
            EXPECT_FALSE(header.error().message.empty());
            continue;
        }
        const auto config = read_gguf_config(*header, true, "m.gguf");
        if (!config) continue;
        const auto entries = gguf_entries(header->tensors, *config, "m.gguf");
        if (!entries) continue;
        ++opened;
        for (const auto& [name, entry] : *entries)
            ASSERT_TRUE(entry.begin <= entry.end && entry.end <= bytes.size()) << name;
    }
    EXPECT_GT(opened, 50);
}

}  // namespace
}  // namespace espalier::checkpoint
