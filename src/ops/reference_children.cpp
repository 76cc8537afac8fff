// SPDX-License-Identifier: Apache-2.0
// The definition in ops/draft_children.hpp with a score for every logit and a full sort.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/draw.hpp"
#include "ops/reference_sampling.hpp"

namespace espalier::ops {
namespace {

std::vector<DraftChild> all_children(const std::vector<float>& logits,
                                     const std::int32_t* target_of, const SamplingNode& node,
                                     bool coupled) {
    const bool greedy = !(node.temperature >= kGreedyBelow);
    const double inverse = greedy ? 1.0 : 1.0 / static_cast<double>(node.temperature);
    const double largest = scaled(*std::max_element(logits.begin(), logits.end()), inverse);
    std::uint64_t total = 0;
    std::vector<DraftChild> children;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] == -kInfinity) continue;
        DraftChild child;
        child.token = target_of != nullptr ? target_of[i] : static_cast<std::int32_t>(i);
        child.score = scaled(logits[i], inverse);
        total += weight_of(child.score - largest);
        if (coupled && !greedy)
            child.score += gumbel(node.seed, node.position, child.token, node.choice);
        children.push_back(child);
    }
    std::size_t i = 0;
    for (const float logit : logits)
        if (logit != -kInfinity)
            children[i++].probability = probability(scaled(logit, inverse) - largest, total);
    return children;
}

}  // namespace

void reference_children(std::span<const float> logits, std::int64_t vocabulary,
                        const std::int32_t* target_of, const SamplingNode& node, bool coupled,
                        std::span<DraftChild> children) {
    std::fill(children.begin(), children.end(), DraftChild{});
    if (node.wanted == kPad || std::any_of(logits.begin(), logits.end(), is_bad_logit)) return;
    std::vector<DraftChild> all = all_children(
        reference_adjusted(logits, vocabulary, target_of, node), target_of, node, coupled);
    std::sort(all.begin(), all.end(), [](const DraftChild& a, const DraftChild& b) {
        return a.score > b.score || (a.score == b.score && a.token < b.token);
    });
    std::copy_n(all.begin(), std::min(all.size(), children.size()), children.begin());
}

}  // namespace espalier::ops
