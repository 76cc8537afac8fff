// SPDX-License-Identifier: Apache-2.0
// Parity with Hugging Face transformers on tiny random models of every architecture. The weights
// are written here by the same rule that tools/make_goldens.py used; only results are stored. With
// ESPALIER_GPU_RUN the models run on a GPU, which takes weights that bf16 is multiplied by.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/golden_file.hpp"
#include "model/sequence.hpp"
#include "model/tiny_model.hpp"
#include "support/paths.hpp"

namespace espalier::model {
namespace {

// f32 and f16 models, max|Δ| / max|logit|. Sums of up to 512 terms in f32 differ by ~1e-6 between
// orders of summation and grow a few times over the layers; any wrong term of the forward pass
// moves logits by 5e-4 or more (measured on the goldens: mscale², YaRN, bias, groups, epsilon …).
constexpr double kF32Tolerance = 1e-4;
// bf16 and FP8 models: our error against the f32 run, in units of torch-bf16's own error.
constexpr double kBf16Ratio = 1.5;

#if defined(ESPALIER_GPU_RUN)
Machine machine() { return gpu_machine(); }
constexpr std::array kGoldens = {
    "v2_bf16",       "v3_bf16",      "v2_bf16_tied_long", "v3_fp8",           "v3_fp8_long",
    "glm_bf16_long", "glm_fp8_long", "v3_int4",           "v3_int4_128_long", "v3_int8_packed",
    "v3_int8_row",   "v3_nvfp4",     "glm_int4_long",
};
#else
Machine machine() { return cpu_machine(2, best_cpu_variant()); }
constexpr std::array kGoldens = {
    "v2_greedy",
    "v2_groups_yarn",
    "v2_yarn_magnitude",
    "v2_dense",
    "v3_yarn_long",
    "v3_yarn_short",
    "v3_no_q_lora_tied",
    "kimi_k2",
    "kimi_nested",
    "v3_f16",
    "v2_bf16",
    "v3_bf16",
    "v2_bf16_tied_long",
    "v3_fp8",
    "v3_fp8_long",
    "v3_int4",
    "v3_int4_128_long",
    "v3_int8_packed",
    "v3_int8_row",
    "v3_nvfp4",
    "glm",
    "glm_long",
    "glm_bf16_long",
    "glm_fp8_long",
    "glm_int4_long",
    "vl2_nested",
    "youtu",
    "v3_wide_values_long",
    "mistral4",
    "mistral4_nested",
    "mistral4_long",
    "mistral4_bf16_long",
    "mistral4_fp8_long",
    "mistral4_int4_long",
    "v32",
    "v32_long",
    "v32_bf16",
    "v32_fp8",
    "glm5",
    "glm5_int4",
};
#endif

std::filesystem::path golden_folder() {
    return std::filesystem::path(test::source_directory()) / "tests/model/goldens";
}

// Kernels that remember what the last token of each choice chose, call by call.
class Onlooker final : public mla::Kernels {
  public:
    using Lists = std::vector<std::vector<std::int32_t>>;
    Onlooker(std::unique_ptr<mla::Kernels> inner, Lists& lists)
        : inner_(std::move(inner)), lists_(lists) {}

    Expected<void> select(OpContext& context, const mla::SelectCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(inner_->select(context, call));
        const std::int32_t token = call.rows.q_indptr[call.rows.rows] - 1;
        const std::int32_t* list = call.lists.slots + token * call.lists.stride;
        lists_.emplace_back(list, list + std::max(call.lists.count[token], 0));
        return {};
    }
    Expected<void> check_indexer() const override { return inner_->check_indexer(); }
    Expected<void> absorbed(OpContext& context, const mla::AbsorbedCall& call) const override {
        return inner_->absorbed(context, call);
    }
    Expected<void> decompressed(OpContext& context,
                                const mla::DecompressedCall& call) const override {
        return inner_->decompressed(context, call);
    }
    Expected<void> append(OpContext& context, const mla::AppendCall& call) const override {
        return inner_->append(context, call);
    }
    Expected<void> compact(OpContext& context, const mla::CompactCall& call) const override {
        return inner_->compact(context, call);
    }
    std::size_t scratch_bytes(const mla::Capacities& most) const override {
        return inner_->scratch_bytes(most);
    }

  private:
    std::unique_ptr<mla::Kernels> inner_;
    Lists& lists_;
};

struct Outcome {
    std::vector<float> logits;  // [positions, vocabulary]
    std::vector<std::int32_t> continuation;
    std::vector<Golden::Chosen> chosen;
};

// Position p lies in slot p of its sequence: lists are of positions. The layers that choose do so
// in order, in the last pass that feeds the position.
void take_lists(const Onlooker::Lists& lists, const checkpoint::ModelConfig& config,
                std::int32_t position, std::vector<Golden::Chosen>& chosen) {
    if (!config.indexer || position < config.indexer->top_k) return;
    std::size_t own = 0;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
        own += config.layer_has_indexer(layer) ? 1 : 0;
    ASSERT_GE(lists.size(), own);
    std::size_t next = lists.size() - own;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
        if (config.layer_has_indexer(layer)) chosen.push_back({layer, position, lists[next++]});
}

// The golden's model as a directory: our writer's tensors under the golden's own config.json.
void write_golden_model(const Golden& golden, const std::filesystem::path& directory) {
    const auto config = checkpoint::parse_model_config(golden.config_json, "config.json");
    if (!config) throw std::runtime_error(config.error().message);
    checkpoint::SyntheticModel synthetic;
    synthetic.config = *config;
    synthetic.dtype = golden.dtype;
    synthetic.seed = golden.seed;
    write_model(synthetic, directory);
    std::ofstream(directory / "config.json", std::ios::binary) << golden.config_json;
}

// The prompt in pieces that end at the wanted positions, then the greedy continuation.
Outcome run_golden(const Golden& golden) {
    TemporaryDirectory directory;
    write_golden_model(golden, directory.path() / "model");
    Machine parts = machine();
    Onlooker::Lists lists;
    if (!golden.chosen.empty())
        parts.kernels = std::make_unique<Onlooker>(std::move(parts.kernels), lists);
    RunningModel model(directory.path() / "model", std::move(parts), 256);
    const auto prompt_tokens = static_cast<std::int64_t>(golden.prompt.size());
    auto sequence =
        Sequence::create(*model, prompt_tokens,
                         prompt_tokens + static_cast<std::int64_t>(golden.continuation.size()));
    if (!sequence) throw std::runtime_error(sequence.error().message);
    const auto feed = [&](std::span<const std::int32_t> tokens) {
        const auto fed = sequence->feed(*model, tokens, true);
        if (!fed) throw std::runtime_error(fed.error().message);
        return model.download(fed->logits);
    };

    Outcome outcome;
    std::vector<float> last;
    std::size_t begin = 0;
    for (const std::int32_t position : golden.positions) {
        const std::size_t end = static_cast<std::size_t>(position) + 1;
        last = feed(std::span(golden.prompt).subspan(begin, end - begin));
        outcome.logits.insert(outcome.logits.end(), last.begin(), last.end());
        take_lists(lists, model->config(), position, outcome.chosen);
        begin = end;
    }
    while (outcome.continuation.size() < golden.continuation.size()) {
        const auto best = std::max_element(last.begin(), last.end()) - last.begin();
        outcome.continuation.push_back(static_cast<std::int32_t>(best));
        last = feed(std::span(outcome.continuation).last(1));
    }
    return outcome;
}

// NaN anywhere makes both measures NaN, which passes no comparison.
double relative_maximum(std::span<const float> values, std::span<const float> reference) {
    double difference = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!std::isfinite(values[i])) return std::nan("");
        difference = std::max(difference, std::abs(double{values[i]} - double{reference[i]}));
        largest = std::max(largest, std::abs(double{reference[i]}));
    }
    return difference / largest;
}

double relative_l2(std::span<const float> values, std::span<const float> reference) {
    double difference = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        difference += std::pow(double{values[i]} - double{reference[i]}, 2);
        norm += std::pow(double{reference[i]}, 2);
    }
    return std::sqrt(difference / norm);
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, MatchesTransformers) {
    const auto golden = read_golden(golden_folder() / fmt::format("{}.golden", GetParam()));
    ASSERT_TRUE(golden) << golden.error().message;
    const Outcome outcome = run_golden(*golden);
    ASSERT_EQ(outcome.logits.size(), golden->reference.size());
    EXPECT_EQ(outcome.chosen.size(), golden->chosen.size());
    for (const Golden::Chosen& wanted : golden->chosen) {
        const auto ours = std::ranges::find_if(outcome.chosen, [&](const Golden::Chosen& one) {
            return one.layer == wanted.layer && one.position == wanted.position;
        });
        ASSERT_NE(ours, outcome.chosen.end());
        EXPECT_EQ(ours->keys, wanted.keys)
            << "layer " << wanted.layer << ", position " << wanted.position;
    }
    if (golden->torch_bf16.empty()) {
        const double error = relative_maximum(outcome.logits, golden->reference);
        RecordProperty("max_error", fmt::format("{:.2e}", error));
        EXPECT_LE(error, kF32Tolerance);
        EXPECT_EQ(golden->continuation.size(), 64u);
        EXPECT_EQ(outcome.continuation, golden->continuation);
    } else {
        const double ours = relative_l2(outcome.logits, golden->reference);
        const double torch = relative_l2(golden->torch_bf16, golden->reference);
        RecordProperty("error_ratio", fmt::format("{:.3f}", ours / torch));
        EXPECT_LE(ours, kBf16Ratio * torch);
    }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Parity, testing::ValuesIn(kGoldens),
                         [](const auto& parameter) { return std::string(parameter.param); });

#if !defined(ESPALIER_GPU_RUN)
TEST(ParityGoldens, EveryFileIsTested) {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(golden_folder()))
        files.insert(entry.path().stem().string());
    EXPECT_EQ(files, std::set<std::string>(kGoldens.begin(), kGoldens.end()));
}
#endif

}  // namespace
}  // namespace espalier::model
