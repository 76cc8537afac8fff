// SPDX-License-Identifier: Apache-2.0
// An EAGLE3 draft's weights in a backend's layout, read from a checkpoint laid out as public drafts
// for MLA targets are. Every tensor is accounted for, and every size is checked against the draft's
// and the target's configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/buffer.hpp"
#include "base/device.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "model/weights.hpp"
#include "ops/ops.hpp"

namespace espalier::draft {

struct Eagle3Weights {
    checkpoint::Eagle3Config config;
    std::vector<std::int32_t> tap_layers;  // of the target
    DeviceVector taps_norm;                // norm_before_fc: [taps · target hidden]
    std::vector<DeviceVector> tap_norms;   // fc_norm: [target hidden] for each tap
    model::Weight fc;                      // [hidden, taps · target hidden]
    DeviceVector embed_norm;               // input_layernorm
    DeviceVector hidden_norm;              // of the state
    model::LayerWeights layer;             // dense, without input_norm; attention reads 2·hidden
    DeviceVector norm;                     // before the head
    model::Weight head;                    // [draft vocabulary, hidden]
    std::optional<model::Embedding> embedding;  // none: the target's
    Buffer target_of, draft_of;  // as in ops::DraftVocabulary; empty: the target's own vocabulary

    // target: the configuration of the model that it drafts for.
    static Expected<Eagle3Weights> load(std::shared_ptr<const checkpoint::Checkpoint> draft,
                                        const checkpoint::ModelConfig& target, Device& device,
                                        const ops::Backend& backend,
                                        const model::Progress& progress = {});

  private:
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;  // keeps the embedding mapped
};

}  // namespace espalier::draft
