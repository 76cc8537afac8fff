// SPDX-License-Identifier: Apache-2.0
// Logits as a request's biases, penalties, bans and grammar leave them (ops/sampling.hpp). One copy
// of the row, under the grammar's mask, then work only on the tokens that are named.
#pragma once

#include "ops/cpu/prefix.hpp"
#include "ops/sampling.hpp"

namespace espalier::ops {

bool is_adjusted(const NodeSampling& sampling);

// out [vocabulary] = the node's logits, adjusted. The node's own stay as they are.
void adjust(const NodeView& node, const NodeSampling& sampling, float* out);

}  // namespace espalier::ops
