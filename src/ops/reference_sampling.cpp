// SPDX-License-Identifier: Apache-2.0
// The definition of a draw (ops/sampling.hpp) told step by step, with a full sort: the oracle of
// every fast version.
#include "ops/reference_sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/draw.hpp"

namespace espalier::ops {
namespace {

// Cuts `order`, which is descending with ties by lower id, to what the filters keep.
void apply_filters(const float* logits, const NodeSampling& node, double inverse,
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

std::int32_t draw_token(const float* logits, const NodeSampling& node,
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

}  // namespace

Draw reference_draw(const float* logits, std::int64_t vocabulary, const NodeSampling& node) {
    std::vector<std::int32_t> order;
    for (std::int64_t token = 0; token < vocabulary; ++token) {
        const float logit = logits[token];
        if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity())
            return {-1, 0.0f, DrawFlag::bad_logits};
        if (logit != -std::numeric_limits<float>::infinity())
            order.push_back(static_cast<std::int32_t>(token));
    }
    if (order.empty()) return {-1, 0.0f, DrawFlag::nothing_left};
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });

    const float maximum = logits[order.front()];
    std::uint64_t raw_total = 0;
    for (const std::int32_t token : order)
        raw_total += weight_of(static_cast<double>(logits[token]) - static_cast<double>(maximum));
    const std::int32_t token = draw_token(logits, node, order);
    return {token, log_probability(logits[token], maximum, raw_total), DrawFlag::fine};
}

}  // namespace espalier::ops
