// SPDX-License-Identifier: Apache-2.0
// Reads the weights of decoder layers: the target's, an MTP layer's, and the parts of which an
// EAGLE3 draft's layer is made. Names end before a tensor's own: "model.layers.3.self_attn.".
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "checkpoint/model_config.hpp"
#include "model/weight_reader.hpp"
#include "model/weights.hpp"

namespace espalier::model {

// The part of a shard each. input_width: columns of what queries and keys are projected from.
Expected<AttentionWeights> load_attention(WeightReader& reader,
                                          const checkpoint::ModelConfig& config,
                                          const std::string& name, std::int64_t input_width,
                                          const Shard& shard = {});
Expected<FeedForwardWeights> load_feed_forward(WeightReader& reader,
                                               const checkpoint::ModelConfig& config,
                                               const std::string& name, std::int64_t width,
                                               const Shard& shard = {});
// "model.layers.{layer}.", dense or of experts as the config has it.
Expected<LayerWeights> load_layer(WeightReader& reader, const checkpoint::ModelConfig& config,
                                  std::int64_t layer, const Shard& shard);

}  // namespace espalier::model
