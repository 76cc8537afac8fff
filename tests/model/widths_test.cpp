// SPDX-License-Identifier: Apache-2.0
// A model whose latents have 256 columns, through the reference's operations and attention and on
// the CPU's kernels. Its twin has 512, of which the last 256 are made zero by its weights, and runs
// on the CPU's kernels: all compute the same numbers, but for rounding.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "model/tiny_model.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNarrow = 256, kWide = 512;

// Rows of `own` f32 columns with zeros behind them.
std::string with_zero_columns(const std::string& bytes, std::int64_t own, std::int64_t wider) {
    std::string result;
    for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(own) * 4) {
        result += bytes.substr(at, static_cast<std::size_t>(own) * 4);
        result.append(static_cast<std::size_t>(wider - own) * 4, '\0');
    }
    return result;
}

// Half of the columns are zero, so their mean square is half of what it was: the norm makes them
// √2 too large.
std::string divided_by_root_two(std::string bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += 4) {
        float value;
        std::memcpy(&value, bytes.data() + at, 4);
        value /= std::numbers::sqrt2_v<float>;
        std::memcpy(bytes.data() + at, &value, 4);
    }
    return bytes;
}

void widen(const fs::path& directory, std::int64_t hidden) {
    SafetensorsEditor file(directory / "model.safetensors");
    int widened = 0;
    for (auto& [name, tensor] : file.tensors) {
        if (name.ends_with("kv_a_proj_with_mqa.weight")) {
            const auto latents = static_cast<std::size_t>(kNarrow * hidden) * 4;
            tensor.bytes.insert(latents, std::string(latents, '\0'));
            tensor.shape[0] += kWide - kNarrow;
        } else if (name.ends_with("kv_a_layernorm.weight")) {
            tensor.bytes = divided_by_root_two(with_zero_columns(tensor.bytes, kNarrow, kWide));
            tensor.shape[0] = kWide;
        } else if (name.ends_with("kv_b_proj.weight")) {
            tensor.bytes = with_zero_columns(tensor.bytes, kNarrow, kWide);
            tensor.shape[1] = kWide;
        } else {
            continue;
        }
        ASSERT_EQ(tensor.dtype, "F32") << name;
        ++widened;
    }
    EXPECT_GE(widened, 6);  // three of each layer
    file.save();
    std::ifstream in(directory / "config.json");
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(in);
    EXPECT_EQ(config["kv_lora_rank"], kNarrow);
    config["kv_lora_rank"] = kWide;
    std::ofstream(directory / "config.json") << config.dump();
}

class Widths : public testing::Test {
  protected:
    Widths() {
        auto preset = checkpoint::synthetic_preset("tiny-v3");
        EXPECT_TRUE(preset && checkpoint::store_as("f32", *preset));
        preset->config.num_hidden_layers = 2;
        preset->config.num_attention_heads = 2;
        preset->config.kv_lora_rank = kNarrow;
        write_model(*preset, narrow);
        fs::copy(narrow, wide);
        widen(wide, preset->config.hidden_size);
    }
    static Machine reference_machine() {
        return {std::make_unique<CpuDevice>(2), ops::make_reference_backend(),
                mla::make_reference_kernels()};
    }

    TemporaryDirectory directory;
    const fs::path narrow = directory.path() / "narrow", wide = directory.path() / "wide";
};

// The logits of the last two tokens, fed in chunks.
std::vector<float> last_logits(RunningModel& model, const std::vector<std::int32_t>& prompt,
                               std::int64_t chunk) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    auto sequence = Sequence::create(*model, length, length);
    EXPECT_TRUE(sequence);
    const auto fed = sequence->feed(*model, prompt, 2, chunk);
    EXPECT_TRUE(fed) << fed.error().message;
    return copy_logits(fed->logits);
}

class NarrowModel : public Widths, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Both, NarrowModel, testing::Values(true, false), [](const auto& one) {
    return std::string(one.param ? "Reference" : "Cpu");
});

TEST_P(NarrowModel, ComputesWhatItsWideTwinDoes) {
    RunningModel small(narrow,
                       GetParam() ? reference_machine() : cpu_machine(2, best_cpu_variant()), 64);
    RunningModel twin(wide, 2, best_cpu_variant());
    EXPECT_EQ(small->kv_layout().planes[0].columns, (KeyDims{kNarrow, 64}));
    EXPECT_EQ(small->kv_layout().bytes_per_token(), 2 * (kNarrow + 64) * 4);
    for (const std::size_t length : {8, 300}) {  // the second begins decompressed
        std::vector<std::int32_t> prompt(length);
        for (std::size_t i = 0; i < length; ++i)
            prompt[i] = static_cast<std::int32_t>((i * 37 + 11) % 500);
        const std::vector<float> got = last_logits(small, prompt, 0);
        EXPECT_EQ(got, last_logits(small, prompt, length == 8 ? 2 : 100));
        const std::vector<float> want = last_logits(twin, prompt, 0);
        ASSERT_EQ(got.size(), want.size());
        const float largest = std::abs(*std::ranges::max_element(
            want, [](float a, float b) { return std::abs(a) < std::abs(b); }));
        // Some ten products one behind another, each of at most 1,024 additions in f32: the root
        // of that many roundings of 2^-24 each, times ten.
        const double bound = 10 * std::sqrt(1024.0) * 0x1p-24 * double{largest};
        for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], want[i], bound) << length << " tokens, logit " << i;
    }
}

TEST(Widths384, KernelsNameWhatTheyDoNotHave) {
    const TemporaryDirectory directory;
    auto preset = checkpoint::synthetic_preset("tiny-v3");
    ASSERT_TRUE(preset);
    preset->config.kv_lora_rank = 384;
    write_model(*preset, directory.path());
    RunningModel model(directory.path(), 2, best_cpu_variant());
    auto sequence = Sequence::create(*model, 8, 8);
    ASSERT_TRUE(sequence);
    const auto fed = sequence->feed(*model, std::vector<std::int32_t>{1, 2}, 1);
    ASSERT_FALSE(fed);
    EXPECT_EQ(
        fed.error().message,
        "attention over keys of 384 latent and 64 rotated columns: 512 and 64, or 256 and 64, "
        "are possible");
}

TEST_F(Widths, ACacheOfOtherColumnsIsRefused) {
    RunningModel small(narrow, reference_machine(), 64);
    RunningModel twin(wide, 2, best_cpu_variant());
    auto sequence = Sequence::create(*twin, 8, 8);
    ASSERT_TRUE(sequence);
    const auto fed = sequence->feed(*small, std::vector<std::int32_t>{1, 2}, 1);
    ASSERT_FALSE(fed);
    EXPECT_EQ(fed.error().message, "a cache of 512 + 64 columns for a model of 256 + 64");
}

}  // namespace
}  // namespace espalier::model
