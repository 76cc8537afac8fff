// SPDX-License-Identifier: Apache-2.0
// An EAGLE3 draft as a network. A token's state is fc over the target's hidden states at a few
// layers, and deeper down what the draft's layer leaves:
//   attention reads [norm(embedding of token q); norm(state of q − 1)], the residual is the state
#pragma once

#include <memory>

#include "draft/eagle3_weights.hpp"
#include "draft/network.hpp"

namespace espalier::draft {

// target: its embedding is read where the draft has none of its own.
std::unique_ptr<Network> make_eagle3(std::shared_ptr<const Eagle3Weights> weights,
                                     const model::Weights& target);

}  // namespace espalier::draft
