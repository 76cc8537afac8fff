// SPDX-License-Identifier: Apache-2.0
// What a page holds for a model, as the one list that the cache, its sizes, the costs of a step,
// `inspect` and a text's identity go by.
#pragma once

#include "cache/kv_storage.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::model {

inline cache::KvLayout kv_layout(const checkpoint::ModelConfig& config, mla::KvFormat format) {
    return cache::make_layout(config.num_hidden_layers, format, config.key_dims());
}

}  // namespace espalier::model
