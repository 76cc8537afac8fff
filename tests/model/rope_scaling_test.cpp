// SPDX-License-Identifier: Apache-2.0
#include "model/rope_scaling.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier::model {
namespace {

checkpoint::ModelConfig deepseek_v3_rope() {
    checkpoint::ModelConfig config;
    config.rope_theta = 10000.0;
    config.yarn = checkpoint::YarnScaling{.factor = 40,
                                          .beta_fast = 32,
                                          .beta_slow = 1,
                                          .mscale = 1.0,
                                          .mscale_all_dim = 1.0,
                                          .original_max_position_embeddings = 4096};
    return config;
}

TEST(RopeScaling, WithoutYarnIsPlainRope) {
    checkpoint::ModelConfig config;
    config.rope_theta = 50000.0;
    const auto frequency = inverse_frequencies(config);
    EXPECT_EQ(frequency[0], 1.0f);
    EXPECT_NEAR(frequency[16], 1.0 / std::sqrt(50000.0), 1e-9);
    EXPECT_EQ(rope_magnitude(config), 1.0f);
    EXPECT_FLOAT_EQ(softmax_scale(config), 1.0f / std::sqrt(192.0f));
}

// DeepSeek-V3: dimensions 0…10 keep their frequency, 24 and up are divided by 40, a ramp between.
TEST(RopeScaling, YarnKeepsFastAndStretchesSlowDimensions) {
    const auto config = deepseek_v3_rope();
    const auto frequency = inverse_frequencies(config);
    for (int i = 0; i < 32; ++i) {
        const double plain = std::pow(10000.0, -2.0 * i / 64);
        const double ramp = std::clamp((i - 10) / 13.0, 0.0, 1.0);
        EXPECT_NEAR(
            frequency[static_cast<std::size_t>(i)] / (plain * (1 - ramp) + plain / 40 * ramp), 1.0,
            1e-6)
            << i;
    }
}

TEST(RopeScaling, SoftmaxScaleHasMscaleSquared) {
    const double m = 0.1 * std::log(40.0) + 1.0;
    EXPECT_FLOAT_EQ(softmax_scale(deepseek_v3_rope()),
                    static_cast<float>(m * m / std::sqrt(192.0)));
    EXPECT_EQ(rope_magnitude(deepseek_v3_rope()), 1.0f);
    auto config = deepseek_v3_rope();
    config.yarn->mscale = 0.707;
    config.yarn->mscale_all_dim = 0.0;
    EXPECT_FLOAT_EQ(softmax_scale(config), 1.0f / std::sqrt(192.0f));
    EXPECT_FLOAT_EQ(rope_magnitude(config), static_cast<float>(0.0707 * std::log(40.0) + 1.0));
}

}  // namespace
}  // namespace espalier::model
