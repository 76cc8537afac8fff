// SPDX-License-Identifier: Apache-2.0
// Logits as a request's biases, penalties, bans and grammar leave them (ops/sampling.hpp). One copy
// of the row, under the grammar's mask, then work only on the tokens that are named.
#pragma once

#include "ops/cpu/prefix.hpp"
#include "ops/draft_children.hpp"
#include "ops/sampling_node.hpp"

namespace espalier::ops {

// out [node.vocabulary] = the node's logits, adjusted. The node's own stay as they are. vocabulary:
// what ids its logits have.
void adjust(const NodeView& node, const SamplingNode& sampling, const DraftVocabulary& vocabulary,
            float* out);

}  // namespace espalier::ops
