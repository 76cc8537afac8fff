// SPDX-License-Identifier: Apache-2.0
#include "model/cost.hpp"

#include <gtest/gtest.h>

#include "checkpoint/synthetic.hpp"

namespace espalier::model {
namespace {

constexpr WeightFormat kPlain{.code = WeightCode::bf16};
constexpr StepFormats kBf16{kPlain, kPlain, kPlain, kPlain};

checkpoint::ModelConfig deepseek_v3() {
    checkpoint::ModelConfig c;
    c.vocab_size = 129280;
    c.hidden_size = 7168;
    c.num_hidden_layers = 61;
    c.num_attention_heads = 128;
    c.q_lora_rank = 1536;
    c.intermediate_size = 18432;
    c.moe_intermediate_size = 2048;
    c.first_k_dense_replace = 3;
    c.n_routed_experts = 256;
    c.n_shared_experts = 1;
    c.num_experts_per_tok = 8;
    return c;
}

// The published figures: 671 B in all, 37 B active (the head counted, the embedding table not).
TEST(Cost, CountsDeepseekV3AsPublished) {
    const ParameterCount count = count_parameters(deepseek_v3());
    EXPECT_NEAR(static_cast<double>(count.total), 671e9, 0.5e9);
    EXPECT_NEAR(static_cast<double>(count.active), 37e9, 0.7e9);
}

// Every number of every tensor, norms and the router's bias included.
TEST(Cost, CountsEveryTensor) {
    for (const char* preset : {"tiny-v2", "tiny-v3", "tiny-glm", "tiny-v32", "tiny-glm5"}) {
        SCOPED_TRACE(preset);
        const auto config = checkpoint::synthetic_preset(preset)->config;
        std::int64_t numbers = 0;
        for (const auto& spec : checkpoint::list_tensors(config, {}))
            numbers += static_cast<std::int64_t>(spec.elements());
        const ParameterCount count = count_parameters(config);
        EXPECT_EQ(count.total + count.mtp, numbers);
    }
}

TEST(Cost, OneRowReadsItsActiveWeightsOnce) {
    const auto config = deepseek_v3();
    const StepCost one = step_cost(config, kBf16, {1, 0, 0, 1});
    EXPECT_NEAR(one.weight_bytes, 2.0 * static_cast<double>(count_parameters(config).active), 1e9);
    const StepCost many = step_cost(config, kBf16, {4096, 0, 0, 1});
    EXPECT_NEAR(many.weight_bytes,
                2.0 * static_cast<double>(count_parameters(config).total -
                                          config.vocab_size * config.hidden_size),
                2e9);
}

// Eight sequences of three tokens read the weights once and eight caches, and see eight times the
// keys that one does.
TEST(Cost, SequencesHaveCachesOfTheirOwn) {
    const auto config = deepseek_v3();
    const StepShape one{3, 1000, 0, 1}, eight{24, 1000, 0, 8, 8}, chain{24, 1000, 0, 8};
    const StepCost cost = step_cost(config, kBf16, eight);
    EXPECT_DOUBLE_EQ(cost.cache_bytes, 8 * step_cost(config, kBf16, one).cache_bytes);
    EXPECT_DOUBLE_EQ(cost.weight_bytes, step_cost(config, kBf16, chain).weight_bytes);
    EXPECT_DOUBLE_EQ(cost.flops, 8 * step_cost(config, kBf16, one).flops);
    EXPECT_LT(cost.flops, step_cost(config, kBf16, chain).flops);
}

// A group of 32 codes of four bits and a bf16 scale: 4.5 bits.
TEST(Cost, ScalesAreRead) {
    const auto config = deepseek_v3();
    const WeightFormat int4 = grouped(WeightCode::int4, 32, ScaleType::bf16);
    EXPECT_DOUBLE_EQ(int4.bits_per_weight(), 4.5);
    EXPECT_DOUBLE_EQ(kNvfp4.bits_per_weight(), 4.5);
    const double all = step_cost(config, {int4, int4, int4, int4}, {1, 0, 0, 1}).weight_bytes;
    const double plain = step_cost(config, kBf16, {1, 0, 0, 1}).weight_bytes;
    const double router = 58.0 * 256 * 7168 * 4;  // f32 in both
    EXPECT_NEAR((all - router) / (plain - router), 4.5 / 16, 1e-9);
}

// 1088 multiply-adds per head and visible key when absorbed, 320 when decompressed.
TEST(Cost, AttentionCountsVisiblePairs) {
    auto config = deepseek_v3();
    config.num_hidden_layers = 1;
    const double shallow = step_cost(config, kBf16, {1, 0, 0, 1}).flops;
    const double deep = step_cost(config, kBf16, {1, 1000, 0, 1}).flops;
    EXPECT_DOUBLE_EQ(deep - shallow, 2.0 * 128 * 1088 * 1000);
}

}  // namespace
}  // namespace espalier::model
