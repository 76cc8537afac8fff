// SPDX-License-Identifier: Apache-2.0
// What a page holds for a model, as the one list that the cache, its sizes, the costs of a step,
// `inspect` and a text's identity go by.
#pragma once

#include "cache/kv_storage.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::model {

// Index keys are f32 or bf16, whatever the latents are: a score's rank hangs on few bits.
inline cache::Plane index_plane(const checkpoint::IndexerConfig& indexer, cache::Plane::Of model,
                                std::int64_t layer, mla::KvFormat format) {
    const bool wide = format == mla::KvFormat::f32;
    return cache::slot_plane(cache::kIndexKeys, model, layer,
                             wide ? mla::KvFormat::f32 : mla::KvFormat::bf16,
                             {indexer.head_dim, 0});
}

inline cache::KvLayout kv_layout(const checkpoint::ModelConfig& config, mla::KvFormat format) {
    cache::KvLayout layout =
        cache::make_layout(config.num_hidden_layers, format, config.key_dims());
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
        if (config.layer_has_indexer(layer))
            layout.planes.push_back(
                index_plane(*config.indexer, cache::Plane::Of::target, layer, format));
    return layout;
}

}  // namespace espalier::model
