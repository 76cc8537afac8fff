// SPDX-License-Identifier: Apache-2.0
// A model whose products round their inputs: the same bits for any number of rows, from memory and
// from a packed file; drafts and what has no codes keep theirs.
#include <gtest/gtest.h>

#include "model/packed_weights.hpp"
#include "model/quantize.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;

LoadOptions rounding_inputs() { return {.activations = NumberMode::int8}; }

class ModelNumberMode : public testing::TestWithParam<WeightCode> {
  protected:
    fs::path write() {
        auto model = checkpoint::synthetic_preset("tiny-v3").value();
        model.config.num_hidden_layers = 3;
        model.config.num_attention_heads = 2;
        model.config.num_nextn_predict_layers = 1;
        const fs::path source = directory_.path() / "source", out = directory_.path() / "out";
        write_model(model, source);
        const auto opened = checkpoint::Checkpoint::open(source.string());
        EXPECT_TRUE(opened);
        EXPECT_TRUE(quantize(*opened, out, pool_, {.code = GetParam(), .head_int8 = true}));
        return out;
    }
    static std::shared_ptr<const checkpoint::Checkpoint> open(const fs::path& path) {
        return std::make_shared<const checkpoint::Checkpoint>(
            checkpoint::Checkpoint::open(path.string()).value());
    }

    TemporaryDirectory directory_;
    ThreadPool pool_{2};
};
INSTANTIATE_TEST_SUITE_P(All, ModelNumberMode, testing::Values(WeightCode::int8, WeightCode::int4));

TEST_P(ModelNumberMode, ChangesProductsWithCodesAlone) {
    const fs::path path = write();
    CpuDevice device(1);
    const auto backend = ops::make_cpu_backend(best_cpu_variant());
    LoadOptions options = rounding_inputs();
    options.mtp = true;
    const auto loaded = Weights::load(open(path), device, *backend, options);
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (const LayerWeights& layer : loaded->layers) {
        const AttentionWeights& attention = layer.attention;
        for (const Weight* weight : {&attention.q_a, &attention.q, &attention.kv_a, &attention.o})
            EXPECT_EQ(weight->view().inputs, NumberMode::int8);
        for (const Weight* weight : {&attention.absorb_key, &attention.up_key, &attention.up_value})
            EXPECT_EQ(weight->view().inputs, NumberMode::own);
        if (layer.moe) {
            EXPECT_EQ(layer.moe->router.view().inputs, NumberMode::own);
            EXPECT_EQ(layer.moe->gate_up.view().inputs, NumberMode::int8);
            EXPECT_EQ(layer.moe->down.view().inputs, NumberMode::int8);
        }
    }
    EXPECT_EQ(loaded->head.view().inputs, NumberMode::int8);
    ASSERT_EQ(loaded->mtp.size(), 1u);
    EXPECT_EQ(loaded->mtp[0].eh_proj.view().inputs, NumberMode::own);
    EXPECT_EQ(loaded->mtp[0].layer.attention.o.view().inputs, NumberMode::own);
    EXPECT_NE(logits_of_eight(path), logits_of_eight(path, rounding_inputs()));
}

TEST_P(ModelNumberMode, GivesTheSameBitsFromAPackedFile) {
    const fs::path path = write();
    const std::vector<float> packed_at_load = logits_of_eight(path, rounding_inputs());
    CpuDevice device(2);
    ASSERT_TRUE(write_packed_weights(open(path), device));
    LoadOptions options = rounding_inputs();
    options.shelf = PackedWeights::open(*open(path)).value();
    ASSERT_NE(options.shelf, nullptr);
    EXPECT_EQ(logits_of_eight(path, options), packed_at_load);
    options.mmap_experts = true;
    EXPECT_EQ(logits_of_eight(path, options), packed_at_load);
    options.activations = NumberMode::own;
    EXPECT_EQ(logits_of_eight(path, options), logits_of_eight(path));
}

// Eight tokens at once and one after the other.
TEST_P(ModelNumberMode, DoesNotSeeHowManyRowsThereAre) {
    const fs::path path = write();
    const std::vector<float> together = logits_of_eight(path, rounding_inputs());
    RunningModel model(path, cpu_machine(1, best_cpu_variant()), 64, std::nullopt,
                       rounding_inputs());
    const std::vector<std::int32_t> tokens = {0, 17, 300, 5, 5, 44, 100, 7};
    auto sequence = Sequence::create(*model, 8, 16);
    ASSERT_TRUE(sequence);
    std::vector<float> alone;
    for (const std::int32_t& token : tokens) {
        const auto fed = sequence->feed(*model, std::span(&token, 1), 1);
        ASSERT_TRUE(fed) << fed.error().message;
        const std::vector<float> logits = model.download(fed->logits);
        alone.insert(alone.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(alone, together);
}

}  // namespace
}  // namespace espalier::model
