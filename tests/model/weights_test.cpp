// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/tiny_model.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

Expected<Weights> load(const fs::path& directory, const LoadOptions& options = {.mtp = true}) {
    auto opened = checkpoint::Checkpoint::open(directory.string());
    if (!opened) return tl::unexpected<Error>(opened.error());
    static CpuDevice device(2);
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    return Weights::load(std::make_shared<const checkpoint::Checkpoint>(std::move(*opened)), device,
                         *backend, options);
}

// Changes one field of a written config.json.
void edit_config(const fs::path& directory, const char* field, const nlohmann::json& value) {
    std::ifstream in(directory / "config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config[field] = value;
    std::ofstream(directory / "config.json") << config.dump();
}

class WeightsTest : public testing::Test {
  protected:
    fs::path write(const char* preset, bool repeat_mtp_embeddings = false) {
        auto model = checkpoint::synthetic_preset(preset);
        EXPECT_TRUE(model);
        model->repeat_mtp_embeddings = repeat_mtp_embeddings;
        const fs::path path =
            directory_.path() / (std::string(preset) + (repeat_mtp_embeddings ? "-full" : ""));
        write_model(*model, path);
        return path;
    }
    TemporaryDirectory directory_;
};

// Sarvam MLA is V3 under names of its own for experts and YaRN.
TEST_F(WeightsTest, SarvamsModelHasTheBitsOfV3s) {
    const fs::path path = write("tiny-v3");
    const std::vector<float> expected = logits_of_eight(path);
    edit_config(path, "architectures", {"SarvamMLAForCausalLM"});
    edit_config(path, "model_type", "sarvam_mla");
    edit_config(path, "num_experts", 8);
    edit_config(path, "num_shared_experts", 1);
    edit_config(path, "n_routed_experts", nullptr);
    std::ifstream in(path / "config.json");
    nlohmann::json rope = nlohmann::json::parse(in)["rope_scaling"];
    rope["type"] = "deepseek_yarn";
    edit_config(path, "rope_scaling", rope);
    EXPECT_EQ(logits_of_eight(path), expected);
}

TEST_F(WeightsTest, MtpSharesWhatTheCheckpointDoesNotRepeat) {
    const auto shared = load(write("tiny-v3"));
    ASSERT_TRUE(shared) << shared.error().message;
    ASSERT_EQ(shared->mtp.size(), 1u);
    EXPECT_FALSE(shared->mtp[0].embedding);
    EXPECT_FALSE(shared->mtp[0].head);
    EXPECT_TRUE(shared->mtp[0].layer.moe);
    const auto repeated = load(write("tiny-v3", true));
    ASSERT_TRUE(repeated) << repeated.error().message;
    ASSERT_EQ(repeated->mtp.size(), 1u);
    EXPECT_TRUE(repeated->mtp[0].embedding);
    EXPECT_TRUE(repeated->mtp[0].head);
}

TEST_F(WeightsTest, MtpIsLoadedForADrafterOnly) {
    const auto plain = load(write("tiny-v3"), {});
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_TRUE(plain->mtp.empty());
}

TEST_F(WeightsTest, ProgressEndsAtTheWholeAndNeverGoesBack) {
    std::uint64_t last = 0, whole = 0;
    const auto weights =
        load(write("tiny-v3"), {.progress = [&](std::uint64_t done, std::uint64_t total) {
                 EXPECT_GE(done, last);
                 last = done;
                 whole = total;
             }});
    ASSERT_TRUE(weights);
    EXPECT_GT(whole, 0u);
    EXPECT_EQ(last, whole);
}

// With checkpoint::check_tensors, which refuses what is not in the list: files, list and reader
// agree on every tensor.
TEST_F(WeightsTest, EveryTensorOfTheListIsNeeded) {
    for (const char* preset : {"tiny-v2", "tiny-v3"}) {
        const fs::path path = write(preset);
        const SafetensorsEditor whole(path / "model.safetensors");
        ASSERT_TRUE(load(path));
        for (const auto& [name, entry] : whole.tensors) {
            SafetensorsEditor file = whole;
            file.tensors.erase(name);
            file.save();
            const auto result = load(path);
            ASSERT_FALSE(result) << name;
            // Without eh_proj there is no MTP layer, so that the rest of it is what is wrong.
            const std::string named = name.ends_with("eh_proj.weight") ? "model.layers.3." : name;
            EXPECT_NE(result.error().message.find(named), std::string::npos)
                << name << ": " << result.error().message;
        }
    }
}

TEST_F(WeightsTest, ATensorThatIsNotReadIsRefused) {
    const fs::path path = write("tiny-v2");
    edit_config(path, "num_hidden_layers", 2);
    const auto result = load(path);
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("'model.layers.2."), std::string::npos)
        << result.error().message;
}

TEST_F(WeightsTest, AConfigThatDisagreesWithTheTensorsNamesBoth) {
    const fs::path path = write("tiny-v3");
    edit_config(path, "moe_intermediate_size", 80);
    const auto result = load(path);
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("80"), std::string::npos) << result.error().message;
    EXPECT_NE(result.error().message.find("model.layers."), std::string::npos)
        << result.error().message;
}

}  // namespace
}  // namespace espalier::model
