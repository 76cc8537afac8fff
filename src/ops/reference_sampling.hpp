// SPDX-License-Identifier: Apache-2.0
// One draw by the definition in ops/sampling.hpp and one node's children by that in
// ops/draft_children.hpp, plainly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/draft_children.hpp"
#include "ops/sampling_node.hpp"

namespace espalier::ops {

// logits: [vocabulary].
Draw reference_draw(const float* logits, std::int64_t vocabulary, const SamplingNode& node,
                    std::span<TokenLogprob> alternatives = {});

// Logits as a node's biases, penalties, bans and mask leave them. target_of: the ids of the logits,
// which lie in the vocabulary; null: their indices.
std::vector<float> reference_adjusted(std::span<const float> logits, std::int64_t vocabulary,
                                      const std::int32_t* target_of, const SamplingNode& node);
bool is_bad_logit(float logit);

// logits: the draft model's. children: [width], filled.
void reference_children(std::span<const float> logits, std::int64_t vocabulary,
                        const std::int32_t* target_of, const SamplingNode& node, bool coupled,
                        std::span<DraftChild> children);

}  // namespace espalier::ops
