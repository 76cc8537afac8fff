// SPDX-License-Identifier: Apache-2.0
// Terms of a few tokens, and what they add by definition.
#pragma once

#include <random>
#include <vector>

#include "ops/support.hpp"

namespace espalier::ops {

// Choices lie among the rows of one owner or two, in no order.
struct TermsCase {
    TermsCase(std::int64_t tokens_in, std::int64_t cols_in, std::int32_t top_k_in,
              std::int32_t segments_in, bool dealt)
        : tokens(tokens_in), cols(cols_in), top_k(top_k_in), segments(segments_in) {
        const std::int64_t choices = tokens * top_k;
        rows = values(1, 0, 2 * choices, cols);
        sums = values(2, 0, segments * tokens, cols);
        weight = values(3, 0, 1, choices);
        residual = values(4, 0, tokens, cols);
        std::mt19937 random(5);
        for (std::int32_t e = 0; e < 2 * top_k; ++e)  // two for each place among a token's choices
            owner.push_back(static_cast<std::int32_t>(random() % 2));
        for (std::int64_t i = 0; i < choices; ++i) {
            const bool pad = i / top_k % 5 == 3;
            expert.push_back(pad ? -1 : static_cast<std::int32_t>(2 * (i % top_k) + random() % 2));
            pair_of.push_back(pad ? -1 : static_cast<std::int32_t>((i * 7 + 3) % choices));
        }
        terms.experts = {Matrix::of(rows.data(), 2 * choices, cols),
                         top_k,
                         {expert.data(), weight.data(), nullptr, nullptr, pair_of.data()},
                         dealt ? owner.data() : nullptr,
                         dealt ? choices : 0};
        if (top_k == 0) terms.experts = {};
        if (segments > 0)
            terms.segments = {Matrix::of(sums.data(), segments * tokens, cols), segments};
    }

    // The definition, one element at a time.
    float wanted(std::int64_t t, std::int64_t d) const {
        const auto at = [&](const std::vector<float>& matrix, std::int64_t row) {
            return matrix[static_cast<std::size_t>(row * cols + d)];
        };
        float sum = 0.0f;
        for (auto c = static_cast<std::size_t>(t * top_k);
             c < static_cast<std::size_t>((t + 1) * top_k); ++c) {
            if (pair_of[c] < 0) continue;
            const bool first =
                terms.experts.owner == nullptr || owner[static_cast<std::size_t>(expert[c])] == 0;
            sum += weight[c] * at(rows, pair_of[c] + (first ? 0 : tokens * top_k));
        }
        if (segments > 0) {
            float total = at(sums, t);
            for (std::int64_t s = 1; s < segments; ++s) total += at(sums, s * tokens + t);
            sum = top_k > 0 ? sum + total : total;
        }
        return at(residual, t) + sum;
    }

    std::int64_t tokens, cols;
    std::int32_t top_k, segments;
    std::vector<float> rows, sums, weight, residual;
    std::vector<std::int32_t> owner, expert, pair_of;
    Terms terms;
};

}  // namespace espalier::ops
