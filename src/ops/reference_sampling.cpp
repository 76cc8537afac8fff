// SPDX-License-Identifier: Apache-2.0
// The definition of a draw (ops/sampling.hpp) told step by step, with a full sort: the oracle of
// every fast version.
#include "ops/reference_sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "ops/draw.hpp"

namespace espalier::ops {
namespace {

// Cuts `order`, which is descending with ties by lower id, to what the filters keep.
void apply_filters(const float* logits, const SamplingNode& node, double inverse,
                   std::vector<std::int32_t>& order) {
    const double largest = scaled(logits[order.front()], inverse);
    const auto distance = [&](std::int32_t token) {
        return scaled(logits[token], inverse) - largest;
    };

    if (node.min_p > 0.0f) {
        const double least = min_p_distance(node.min_p);
        std::erase_if(order, [&](std::int32_t token) { return !(distance(token) >= least); });
    }
    if (node.top_k > 0 && static_cast<std::size_t>(node.top_k) < order.size())
        order.resize(static_cast<std::size_t>(node.top_k));
    if (node.top_p < 1.0f) {
        std::uint64_t whole = 0;
        for (const std::int32_t token : order) whole += weight_of(distance(token));
        std::uint64_t prefix = 0;
        std::size_t kept = 0;
        while (kept < order.size()) {
            prefix += weight_of(distance(order[kept++]));
            if (reaches(prefix, node.top_p, whole)) break;
        }
        order.resize(kept);
    }
}

std::int32_t draw_token(const float* logits, const SamplingNode& node,
                        std::vector<std::int32_t>& order) {
    if (!(node.temperature >= kGreedyBelow)) return order.front();
    const double inverse = 1.0 / static_cast<double>(node.temperature);
    apply_filters(logits, node, inverse, order);
    std::int32_t best = -1;
    double best_score = -std::numeric_limits<double>::infinity();
    for (const std::int32_t token : order) {
        const double score =
            scaled(logits[token], inverse) + gumbel(node.seed, node.position, token, node.choice);
        if (score > best_score || (score == best_score && token < best)) {
            best = token;
            best_score = score;
        }
    }
    return best;
}

float kept_finite(float logit) {
    return std::clamp(logit, std::numeric_limits<float>::lowest(),
                      std::numeric_limits<float>::max());
}

// Counts of every token that penalties see: the committed entries, then those of the node's path.
std::vector<TokenCount> counts_by_token(const SamplingNode& node, std::int64_t vocabulary) {
    std::vector<TokenCount> counts(static_cast<std::size_t>(vocabulary));
    for (const TokenCount& count : node.committed)
        counts.at(static_cast<std::size_t>(count.token)) = count;
    for (const TokenCount& count : node.changed)
        counts.at(static_cast<std::size_t>(count.token)) = count;
    return counts;
}

// Tokens above -inf, descending, ties by lower id.
std::vector<std::int32_t> descending_order(const float* logits, std::int64_t vocabulary) {
    std::vector<std::int32_t> order;
    for (std::int64_t token = 0; token < vocabulary; ++token)
        if (logits[token] != -kInfinity) order.push_back(static_cast<std::int32_t>(token));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
    return order;
}

}  // namespace

// One step after the other, each over all logits.
std::vector<float> reference_adjusted(std::span<const float> logits, std::int64_t vocabulary,
                                      const std::int32_t* target_of, const SamplingNode& node) {
    std::vector<float> result(logits.begin(), logits.end());
    std::vector<std::size_t> id(result.size());
    for (std::size_t i = 0; i < id.size(); ++i)
        id[i] = target_of != nullptr ? static_cast<std::size_t>(target_of[i]) : i;
    std::vector<std::optional<float>> bias(static_cast<std::size_t>(vocabulary));
    for (const LogitBias& entry : node.biases)
        bias.at(static_cast<std::size_t>(entry.token)) = entry.bias;
    const std::vector<TokenCount> counts = counts_by_token(node, vocabulary);
    std::vector<bool> barred(bias.size(), false);
    for (const std::int32_t token : node.banned) barred.at(static_cast<std::size_t>(token)) = true;

    for (std::size_t i = 0; i < result.size(); ++i) {
        float& logit = result[i];
        if (logit == -kInfinity || !bias.at(id[i])) continue;
        logit = kept_finite(logit + *bias[id[i]]);
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
        float& logit = result[i];
        if (logit == -kInfinity) continue;
        if (!counts.at(id[i]).in_prompt && counts[id[i]].in_output == 0) continue;
        logit = kept_finite(logit > 0.0f ? logit / node.repetition_penalty
                                         : logit * node.repetition_penalty);
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
        float& logit = result[i];
        if (logit == -kInfinity || counts[id[i]].in_output == 0) continue;
        logit -= node.frequency_penalty * static_cast<float>(counts[id[i]].in_output);
        logit = kept_finite(logit - node.presence_penalty);
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
        const bool allowed =
            node.allowed == nullptr || ((node.allowed[id[i] / 32] >> (id[i] % 32)) & 1u) != 0;
        if (barred[id[i]] || !allowed) result[i] = -kInfinity;
    }
    return result;
}

bool is_bad_logit(float logit) { return std::isnan(logit) || logit == kInfinity; }

Draw reference_draw(const float* logits, std::int64_t vocabulary, const SamplingNode& node,
                    std::span<TokenLogprob> alternatives) {
    std::fill(alternatives.begin(), alternatives.end(), TokenLogprob{-1, -kInfinity});
    if (node.wanted == kPad) return {};
    if (std::any_of(logits, logits + vocabulary, is_bad_logit))
        return {-1, 0.0f, DrawFlag::bad_logits};
    const std::vector<std::int32_t> raw_order = descending_order(logits, vocabulary);
    if (raw_order.empty()) return {-1, 0.0f, DrawFlag::nothing_left};

    const float maximum = logits[raw_order.front()];
    std::uint64_t raw_total = 0;
    for (const std::int32_t token : raw_order)
        raw_total += weight_of(static_cast<double>(logits[token]) - static_cast<double>(maximum));
    const auto logprob = [&](std::int32_t token) {
        return log_probability(logits[token], maximum, raw_total);
    };
    for (std::size_t i = 0; i < std::min(alternatives.size(), raw_order.size()); ++i)
        alternatives[i] = {raw_order[i], logprob(raw_order[i])};
    if (node.wanted >= 0) return {node.wanted, logprob(node.wanted), DrawFlag::fine};

    const std::vector<float> changed = reference_adjusted(
        {logits, static_cast<std::size_t>(vocabulary)}, vocabulary, nullptr, node);
    std::vector<std::int32_t> order = descending_order(changed.data(), vocabulary);
    if (order.empty()) return {-1, 0.0f, DrawFlag::nothing_left};
    const std::int32_t token = draw_token(changed.data(), node, order);
    const bool reports = node.logprob || !alternatives.empty();
    return {token, reports ? logprob(token) : std::numeric_limits<float>::quiet_NaN(),
            DrawFlag::fine};
}

}  // namespace espalier::ops
