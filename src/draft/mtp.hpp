// SPDX-License-Identifier: Apache-2.0
// DeepSeek's multi-token-prediction layer as a draft model, applied once per level. Its state is
// the target's hidden state after the final norm, and deeper down its own after shared_head.norm:
//   x = eh_proj([enorm(embedding of token q); hnorm(state of q − 1)]) → decoder layer
#pragma once

#include <memory>

#include "draft/network.hpp"

namespace espalier::draft {

// target: outlives the network, and has an MTP layer, of which the first is used.
std::unique_ptr<Network> make_mtp(const checkpoint::ModelConfig& config,
                                  const model::Weights& target);

}  // namespace espalier::draft
