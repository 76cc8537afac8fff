// SPDX-License-Identifier: Apache-2.0
// Rule by which tokens choose experts, and the plan that a choice gives.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier::ops {

enum class RouterScore : std::uint8_t { softmax, sigmoid };
enum class GroupScore : std::uint8_t {
    none,         // greedy: no groups
    maximum,      // V2 group-limited: a group's best score
    top_two_sum,  // V3: sum of a group's two best corrected scores
};

// Routing keeps a token's scores on the stack; loaders refuse configurations beyond these (V3: 256,
// Kimi K2: 384).
inline constexpr std::int32_t kMaxExperts = 1024;
inline constexpr std::int32_t kMaxTopK = 64;

// DeepSeek's own order of operations: choose by (corrected) score, weights are the uncorrected
// scores, normalised if asked, × scaling. Published code differs in corners that no published
// checkpoint reaches, so the rule says it all:
// - V2: DeepSeek's modeling_deepseek.py scales only when it does not normalise; transformers always
//   scales and never normalises. All V2 checkpoints have norm_topk_prob = false, where both agree;
//   config.json with both is refused.
// - DeepSeek's code normalises only if top_k > 1, transformers' V3 always: config.json with one
//   expert per token and norm_topk_prob is refused.
// - Groups not chosen are masked with -inf, as DeepSeek and transformers (5.22) do.
struct RouterRule {
    RouterScore score = RouterScore::sigmoid;
    GroupScore group_score = GroupScore::none;
    std::int32_t experts = 0;
    std::int32_t top_k = 0;
    std::int32_t groups = 1;      // experts / groups neighbours form a group
    std::int32_t top_groups = 1;  // groups kept; the others are masked with -inf
    bool normalise = false;       // weights divided by their sum + 1e-20
    float scaling = 1.0f;         // weights multiplied at last
};

// Place of each (token, choice) pair when pairs are sorted by expert, tokens ascending inside an
// expert.
struct ExpertPlan {
    std::int32_t* expert;  // [T, top_k] ids, each token's ascending (they are summed in this order)
    float* weight;         // [T, top_k]
    std::int32_t* indptr;  // [experts + 1]: pairs of expert e are indptr[e] … indptr[e+1]-1
    std::int32_t* source_token;  // [T · top_k]: pair → token
    std::int32_t* pair_of;       // [T, top_k]: (token, choice) → pair, or -1 for pads
};

// Whole experts dealt to ranks. Experts have a place each, by rank and then by id; on ranks a
// plan's pairs are sorted by place, so that a rank's pairs are one run, and indptr goes by place.
// Bits do not depend on it: a token's outputs are summed by ascending id wherever their rows lie.
struct ExpertDeal {
    std::vector<std::int32_t> place;  // [experts]
    std::vector<std::int32_t> first;  // [ranks + 1]: rank r has places first[r] … first[r+1]-1
};

}  // namespace espalier::ops
