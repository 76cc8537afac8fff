// SPDX-License-Identifier: Apache-2.0
// Hidden states that a forward pass hands out besides its logits: what a draft model with layers of
// its own starts from (EAGLE3: the residual stream at a few layers; MTP: the final state). Nothing
// is copied or computed for a pass that is handed no taps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/device.hpp"
#include "base/error.hpp"
#include "base/matrix.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::model {

// Memory that a pass over T tokens fills, on the model's device: the first T rows of each
// matrix, f32, one row per token of the batch in its order. Pad tokens' rows mean nothing.
struct Taps {
    std::span<const std::int32_t> layers;  // ascending; num_hidden_layers: behind the last layer
    std::span<const Matrix> residual;      // [layers]: the residual stream entering each
    Matrix final_state;                    // after the final norm; empty: not wanted
};

// Memory for the taps of the largest batch, taken at creation.
class TapMemory {
  public:
    static Expected<TapMemory> create(Device& device, const checkpoint::ModelConfig& config,
                                      std::vector<std::int32_t> layers, bool final_state,
                                      std::int64_t max_tokens);
    // Good while this lives and is not moved.
    Taps taps() const { return {layers_, residual_, final_state_}; }

  private:
    Buffer memory_;
    std::vector<std::int32_t> layers_;
    std::vector<Matrix> residual_;
    Matrix final_state_;
};

}  // namespace espalier::model
