// SPDX-License-Identifier: Apache-2.0
// The best children of a node under a draft model: which tokens a drafter puts below it. The target
// draws argmax(l + G) with noise G that is known beforehand (ops/sampling.hpp), so a drafter that
// adds the same noise to its own logits proposes the tokens that are likeliest to be drawn.
//
// s = l · (1 / temperature) + G, in double, without G where drafting is not coupled; s = l where
// temperature < 1e-5. l is the draft's logit adjusted as for a draw: biases, penalties with the
// counts of the node's path, bans, mask. No top-k, top-p or min-p. Children are those of the
// largest s, descending, ties to the lower target id; a logit of -inf is no child.
//
// A child's probability is softmax(l / temperature) of the adjusted logits over the draft's
// vocabulary (temperature 1 where it is < 1e-5), from the exact integer weights of a draw; it has
// nothing of the noise. So ids and s are the same on every backend, and probabilities too.
//
// A node with a NaN or +Inf raw logit has no children: a draft that cannot be told is not made.
#pragma once

#include <cstdint>

#include "ops/sampling_batch.hpp"

namespace espalier::ops {

// A draft model's vocabulary as a part of the target's, both in device memory. Null: it is the
// target's own. Noise, biases, counts, bans and masks go by the target's ids.
struct DraftVocabulary {
    const std::int32_t* target_of = nullptr;  // [Vd], each id once, in any order
    const std::int32_t* draft_of = nullptr;   // [V], the inverse; -1: the draft does not have it
};

struct DraftRule {
    std::int32_t width = 1;  // children per node, 1 … kMaxDrafts
    bool coupled = true;     // to the target's noise
};

// Places without a child have these values.
struct DraftChild {
    double score = -__builtin_inf();  // s
    std::int32_t token = -1;          // the target's id
    float probability = 0.0f;
};

}  // namespace espalier::ops
