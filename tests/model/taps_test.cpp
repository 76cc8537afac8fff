// SPDX-License-Identifier: Apache-2.0
// Taps against models that end where the tap is: a synthetic model of k layers is the first k
// layers of a longer one, so its logits must follow from the residual that enters layer k.
#include "model/taps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "batch/batch_builder.hpp"
#include "model/decoder_layer.hpp"
#include "model/tiny_model.hpp"

namespace espalier::model {
namespace {

constexpr std::int64_t kTokens = 70;  // two pages; one row of each form

class TapsTest : public testing::Test {
  protected:
    TapsTest() : tokens_(kTokens) {
        for (std::size_t i = 0; i < tokens_.size(); ++i)
            tokens_[i] = static_cast<std::int32_t>((i * 37 + 5) % 256);
        preset_ = *checkpoint::synthetic_preset("tiny-v3");
        preset_.config.num_attention_heads = 2;
        preset_.config.num_nextn_predict_layers = 0;
    }
    RunningModel& model(std::int64_t layers) {
        const auto found = models_.find(layers);
        if (found != models_.end()) return *found->second;
        checkpoint::SyntheticModel shorter = preset_;
        shorter.config.num_hidden_layers = layers;
        const auto path = directory_.path() / std::to_string(layers);
        write_model(shorter, path);
        auto made = std::make_unique<RunningModel>(path, 2, best_cpu_variant());
        return *(models_[layers] = std::move(made));
    }
    // One chunk with every token gathered, then the same tokens at its end as a second sequence.
    batch::BatchView batch(RunningModel& model) {
        builder_.clear();
        for (const batch::Form form : {batch::Form::absorbed, batch::Form::decompressed}) {
            batch::RowSpec row;
            row.tokens = tokens_;
            row.form = form;
            row.block_table = form == batch::Form::absorbed ? absorbed_pages_ : other_pages_;
            row.table_row = form == batch::Form::absorbed ? 0 : 1;
            row.gather = kTokens;
            EXPECT_TRUE(builder_.add(row));
        }
        return model.upload(builder_.finish());
    }
    cache::KvStorage storage(RunningModel& model) {
        return std::move(*cache::KvStorage::create(model->device(), model->kv_layout(), 5));
    }
    static std::vector<float> rows(const Matrix& matrix, std::int64_t count) {
        return copy_logits(matrix.slice(0, count));
    }

    checkpoint::SyntheticModel preset_;
    TemporaryDirectory directory_;
    std::map<std::int64_t, std::unique_ptr<RunningModel>> models_;
    std::vector<std::int32_t> tokens_;
    std::vector<std::int32_t> absorbed_pages_ = {1, 2}, other_pages_ = {3, 4};
    batch::BatchBuilder builder_{kTestCapacity};
};

// Final norm and head, as a model of `layers` layers has them, over a residual.
std::vector<float> logits_from(RunningModel& model, const Matrix& residual) {
    std::vector<float> logits(static_cast<std::size_t>(residual.rows * model->config().vocab_size));
    const Matrix out = Matrix::of(logits.data(), residual.rows, model->config().vocab_size);
    std::vector<std::uint16_t> normed(static_cast<std::size_t>(residual.rows * residual.cols));
    const Matrix act{reinterpret_cast<std::byte*>(normed.data()), DType::bf16, residual.rows,
                     residual.cols, residual.cols};
    Arena none{Buffer()};
    OpContext context{model->device(), none};
    const auto epsilon = static_cast<float>(model->config().rms_norm_eps);
    model.backend().rms_norm(context, residual, model->weights().final_norm.data(), epsilon, act,
                             {});
    model.backend().product(context, act, model->weights().head.view(), out, ops::Store::assign);
    return logits;
}

TEST_F(TapsTest, TheResidualEnteringALayerIsWhatAModelThatEndsThereComputes) {
    const std::int64_t layers = preset_.config.num_hidden_layers;
    ASSERT_GE(layers, 3);
    RunningModel& whole = model(layers);
    auto memory = TapMemory::create(whole->device(), whole->config(),
                                    {1, 2, static_cast<std::int32_t>(layers)}, true, 2 * kTokens);
    ASSERT_TRUE(memory) << memory.error().message;
    const Taps taps = memory->taps();
    cache::KvStorage kv = storage(whole);
    const auto computed = whole->forward(batch(whole), kv, taps);
    ASSERT_TRUE(computed) << computed.error().message;
    const std::vector<float> logits = copy_logits(computed->logits);
    // Gathered tokens are in the order of the batch: absorbed first.
    for (std::size_t i = 0; i < taps.layers.size(); ++i) {
        RunningModel& shorter = model(taps.layers[i]);
        cache::KvStorage own = storage(shorter);
        const auto expected = shorter->forward(batch(shorter), own);
        ASSERT_TRUE(expected) << expected.error().message;
        EXPECT_EQ(logits_from(shorter, taps.residual[i].slice(0, 2 * kTokens)),
                  copy_logits(expected->logits))
            << "layer " << taps.layers[i];
    }
    // The final state is the norm of the last residual, unrounded: rounded, the head reads it.
    std::vector<float> normed(static_cast<std::size_t>(2 * kTokens * whole->config().hidden_size));
    Arena none{Buffer()};
    OpContext context{whole->device(), none};
    whole.backend().rms_norm(
        context, taps.residual[2].slice(0, 2 * kTokens), whole->weights().final_norm.data(),
        static_cast<float>(whole->config().rms_norm_eps),
        Matrix::of(normed.data(), 2 * kTokens, whole->config().hidden_size), {});
    EXPECT_EQ(rows(taps.final_state, 2 * kTokens), normed);
    // Taps change nothing.
    cache::KvStorage untapped = storage(whole);
    EXPECT_EQ(copy_logits(whole->forward(batch(whole), untapped)->logits), logits);
}

TEST_F(TapsTest, LayerZeroIsTheEmbedding) {
    RunningModel& whole = model(2);
    auto memory = TapMemory::create(whole->device(), whole->config(), {0}, false, 2 * kTokens);
    ASSERT_TRUE(memory) << memory.error().message;
    cache::KvStorage kv = storage(whole);
    ASSERT_TRUE(whole->forward(batch(whole), kv, memory->taps()));
    std::vector<float> embedded(static_cast<std::size_t>(kTokens * whole->config().hidden_size));
    Arena none{Buffer()};
    OpContext context{whole->device(), none};
    whole.backend().embed(context, tokens_.data(), whole->weights().embedding.table,
                          Matrix::of(embedded.data(), kTokens, whole->config().hidden_size));
    EXPECT_EQ(rows(memory->taps().residual[0], kTokens), embedded);
    EXPECT_EQ(memory->taps().final_state.data, nullptr);
}

TEST_F(TapsTest, RefusesLayersThatAreNotThereAndMemoryThatIsTooSmall) {
    RunningModel& whole = model(2);
    Device& device = whole->device();
    EXPECT_EQ(TapMemory::create(device, whole->config(), {3}, false, 8).error().message,
              "a tap at layer 3 of a model of 2");
    EXPECT_FALSE(TapMemory::create(device, whole->config(), {-1}, false, 8));
    EXPECT_FALSE(TapMemory::create(device, whole->config(), {1, 1}, false, 8));
    auto small = TapMemory::create(device, whole->config(), {1}, false, 8);
    ASSERT_TRUE(small);
    cache::KvStorage kv = storage(whole);
    const auto refused = whole->forward(batch(whole), kv, small->taps());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::exhausted);
}

// A draft model fills its cache from hidden states that it is given: the KV half of a layer alone
// leaves the bytes that a whole pass leaves.
TEST_F(TapsTest, TheKvHalfAloneWritesWhatAWholePassWrites) {
    RunningModel& whole = model(2);
    auto memory = TapMemory::create(whole->device(), whole->config(), {1}, false, 2 * kTokens);
    cache::KvStorage kv = storage(whole), alone = storage(whole);
    const batch::BatchView view = batch(whole);
    ASSERT_TRUE(whole->forward(view, kv, memory->taps()));

    const DType act = whole->weights().format.input();
    constexpr Activations::Sizes most{.tokens = 2 * kTokens, .gather = 1};
    const std::size_t bytes = Activations::plan_bytes(whole->config(), act, most);
    Arena arena(std::move(*whole->device().allocate(bytes))), scratch{Buffer()};
    Activations a = Activations::take(arena, whole->config(), act, most);
    OpContext context{whole->device(), scratch};
    const DecoderRule rule(whole->config());
    std::memcpy(a.residual.data, memory->taps().residual[0].data,
                static_cast<std::size_t>(2 * kTokens * whole->config().hidden_size) * 4);
    whole.backend().rope_angles(context, view.position, 2 * kTokens, rule.rope,
                                a.cos_sin.slice(0, 2 * kTokens));
    const DecoderLayer layer({rule, whole.backend(), whole.kernels(), a, context},
                             whole->weights().layers[1]);
    ASSERT_TRUE(layer.write_kv(view, alone.layer(cache::Plane::Of::target, 1)));
    const mla::KvPages expected = kv.target(1), written = alone.target(1);
    EXPECT_EQ(std::memcmp(expected.data, written.data,
                          static_cast<std::size_t>(expected.page_stride * expected.page_count)),
              0);
    EXPECT_EQ(std::count(a.nonfinite, a.nonfinite + 2 * kTokens, 0), 2 * kTokens);
}

}  // namespace
}  // namespace espalier::model
