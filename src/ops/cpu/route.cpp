// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/route.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace espalier::ops {
namespace {

// The `limit` largest of a stream, descending; equal values keep their order of arrival.
template <std::int32_t kCapacity>
struct Largest {
    explicit Largest(std::int32_t how_many) : limit(how_many) {}

    std::int32_t limit;
    std::int32_t count = 0;
    std::array<float, kCapacity> value;
    std::array<std::int32_t, kCapacity> index;

    void offer(float candidate, std::int32_t at) {
        if (count == limit && !(candidate > value[static_cast<std::size_t>(count - 1)])) return;
        auto place = static_cast<std::size_t>(count < limit ? count++ : count - 1);
        for (; place > 0 && candidate > value[place - 1]; --place) {
            value[place] = value[place - 1];
            index[place] = index[place - 1];
        }
        value[place] = candidate;
        index[place] = at;
    }
};

// False when a score is NaN.
bool make_scores(const KernelTable& kernels, const float* logits, const float* bias,
                 const RouterRule& rule, float* scores, float* choice) {
    const std::int32_t experts = rule.experts;
    if (rule.score == RouterScore::sigmoid) {
        kernels.sigmoid(logits, experts, scores);
    } else {
        kernels.exp_below(logits, kernels.scan(logits, experts).maximum, experts, scores);
        double sum = 0.0;
        for (std::int32_t e = 0; e < experts; ++e) sum += static_cast<double>(scores[e]);
        const auto rounded = static_cast<float>(sum);
        for (std::int32_t e = 0; e < experts; ++e) scores[e] /= rounded;
    }
    bool fine = true;
    for (std::int32_t e = 0; e < experts; ++e) {
        choice[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
        fine = fine && choice[e] == choice[e];
    }
    return fine;
}

float group_score(const float* choice, std::int32_t count, GroupScore rule) {
    float first = choice[0];
    float second = -std::numeric_limits<float>::infinity();
    for (std::int32_t i = 1; i < count; ++i) {
        second = std::max(second, std::min(first, choice[i]));
        first = std::max(first, choice[i]);
    }
    return rule == GroupScore::maximum || count == 1 ? first : first + second;
}

void choose_experts(const float* choice, const RouterRule& rule, Largest<kMaxTopK>& best) {
    if (rule.group_score == GroupScore::none) {
        for (std::int32_t e = 0; e < rule.experts; ++e) best.offer(choice[e], e);
        return;
    }
    const std::int32_t size = rule.experts / rule.groups;
    Largest<kMaxExperts> groups(rule.top_groups);
    for (std::int32_t g = 0; g < rule.groups; ++g)
        groups.offer(group_score(choice + g * size, size, rule.group_score), g);
    // Ascending, so that equal scores go to the lower expert. Groups left out are never offered:
    // that is -inf.
    std::sort(groups.index.begin(), groups.index.begin() + groups.count);
    for (std::int32_t i = 0; i < groups.count; ++i) {
        const std::int32_t first = groups.index[static_cast<std::size_t>(i)] * size;
        for (std::int32_t e = first; e < first + size; ++e) best.offer(choice[e], e);
    }
}

}  // namespace

void route_token(const KernelTable& kernels, const float* logits, const float* bias,
                 const RouterRule& rule, std::int32_t* expert, float* weight) {
    std::array<float, kMaxExperts> scores;
    std::array<float, kMaxExperts> choice;
    if (!make_scores(kernels, logits, bias, rule, scores.data(), choice.data())) {
        for (std::int32_t i = 0; i < rule.top_k; ++i) {
            expert[i] = i;
            weight[i] = std::numeric_limits<float>::quiet_NaN();
        }
        return;
    }
    Largest<kMaxTopK> best(rule.top_k);
    choose_experts(choice.data(), rule, best);
    std::sort(best.index.begin(), best.index.begin() + rule.top_k);
    float sum = 0.0f;
    for (std::int32_t i = 0; i < rule.top_k; ++i) {
        expert[i] = best.index[static_cast<std::size_t>(i)];
        weight[i] = scores[static_cast<std::size_t>(expert[i])];
        sum += weight[i];
    }
    for (std::int32_t i = 0; i < rule.top_k; ++i) {
        if (rule.normalise) weight[i] /= sum + 1e-20f;
        weight[i] *= rule.scaling;
    }
}

void sort_pairs(const RouterRule& rule, std::int64_t tokens, const ExpertPlan& plan) {
    const std::int64_t choices = tokens * rule.top_k;
    std::fill_n(plan.indptr, rule.experts + 1, 0);
    for (std::int64_t i = 0; i < choices; ++i)
        if (plan.expert[i] >= 0) ++plan.indptr[plan.expert[i] + 1];
    for (std::int32_t e = 0; e < rule.experts; ++e) plan.indptr[e + 1] += plan.indptr[e];

    std::array<std::int32_t, kMaxExperts> next;
    std::copy_n(plan.indptr, rule.experts, next.begin());
    for (std::int64_t i = 0; i < choices; ++i) {
        plan.pair_of[i] = -1;
        if (plan.expert[i] < 0) continue;
        const std::int32_t pair = next[static_cast<std::size_t>(plan.expert[i])]++;
        plan.source_token[pair] = static_cast<std::int32_t>(i / rule.top_k);
        plan.pair_of[i] = pair;
    }
}

}  // namespace espalier::ops
