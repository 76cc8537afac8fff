// SPDX-License-Identifier: Apache-2.0
// A draft model of one decoder layer, as far as one differs from another: what it makes of the
// target's hidden states, what its layer reads, and what it leaves behind. Slot q ≥ 1 of its cache
// holds f(state of q − 1, token q): a token's *state* is what the token after it is drafted from.
// For a committed token the state comes from the target's hidden states (combine), for a drafted
// one from the draft layer itself (leave).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/device.hpp"
#include "base/error.hpp"
#include "base/matrix.hpp"
#include "checkpoint/model_config.hpp"
#include "linalg/weight.hpp"
#include "model/decoder_layer.hpp"
#include "model/taps.hpp"
#include "model/weights.hpp"
#include "ops/ops.hpp"

namespace espalier::draft {

// A text's first token has no state before it: its KV begins with the pair (state of 0, token 1).
inline constexpr std::int32_t kFirstSlot = 1;

struct NetworkShape {
    checkpoint::ModelConfig config;    // of its layer
    DType act = DType::bf16;           // that products read
    std::int64_t taps = 0;             // columns of the target's hidden states, per token
    std::int64_t state = 0;            // columns of a state
    std::int64_t attention_input = 0;  // columns that attention projects
    std::int64_t vocabulary = 0;       // of its head
    model::Shard shard = {};           // whose weights it has: the target's, or whole
};

class Network {
  public:
    virtual ~Network() = default;
    virtual std::string_view name() const = 0;  // of its drafter
    virtual const NetworkShape& shape() const = 0;
    virtual const model::LayerWeights& layer() const = 0;
    virtual const linalg::WeightView& head() const = 0;
    virtual ops::DraftVocabulary vocabulary() const { return {}; }

    // Takes the memory that batches of this many tokens need. Once, before the first call below.
    virtual Expected<void> reserve(Device& device, std::int64_t max_tokens) = 0;
    // The taps of a target's pass whose columns, side by side, are a token's `taps`.
    virtual std::vector<Matrix> tap_sources(const model::Taps& taps) const = 0;

    // taps [n, taps] f32 → the states [n, state] f32: in `room`, or the taps themselves.
    virtual Matrix combine(const model::DecoderParts& parts, const Matrix& taps,
                           const Matrix& room) const = 0;
    // tokens [n], before [n, state] f32: of the token before each. Fills the layer's residual and,
    // where it has no input_norm, attention_input.
    virtual void enter(const model::DecoderParts& parts, const std::int32_t* tokens,
                       const Matrix& before) const = 0;
    // Behind the layer: the first n rows of the residual → gathered_act, which the head reads, and
    // after [n, state] f32, the states of these tokens.
    virtual void leave(const model::DecoderParts& parts, const Matrix& after) const = 0;
};

}  // namespace espalier::draft
