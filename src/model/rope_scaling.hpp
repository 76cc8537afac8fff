// SPDX-License-Identifier: Apache-2.0
// YaRN as DeepSeek defines it: rotary frequencies, their magnitude, and the mscale² in the softmax
// scale.
#pragma once

#include <array>

#include "checkpoint/model_config.hpp"

namespace espalier::model {

// f32 steps in the order the reference takes them, so that angles agree to the last bit or two.
std::array<float, 32> inverse_frequencies(const checkpoint::ModelConfig& config);
// Multiplies cos and sin: m(mscale) / m(mscale_all_dim), m(s) = 0.1·s·ln(factor) + 1.
float rope_magnitude(const checkpoint::ModelConfig& config);
// 1/sqrt(nope + rope), × m(mscale_all_dim)² under YaRN.
float softmax_scale(const checkpoint::ModelConfig& config);

}  // namespace espalier::model
