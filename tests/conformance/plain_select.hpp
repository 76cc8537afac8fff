// SPDX-License-Identifier: Apache-2.0
// Index scores and their choice in plain loops over host memory, right or with one thing wrong:
// what the mutants of the conformance suite choose with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/element.hpp"
#include "mla/contract.hpp"
#include "mla/storage.hpp"

namespace espalier::conformance {

// Ways of choosing keys that give another text than plain decoding would.
enum class Choice {
    right,
    tree_slots_first,  // the tail's slots are chosen whatever their scores
    ties_to_the_higher,
    rejected_slots_too,  // slots of other branches are scored
    root_for_all,        // the prefix is scored with the row's first query
};

// One key that a token may choose.
struct Candidate {
    bool first;  // before all others
    double score;
    std::int32_t slot;
};

inline double plain_score(const mla::SelectCall& call, std::int64_t token, std::int64_t slot) {
    const std::int64_t width = call.keys.dims.latent;
    std::vector<double> key(static_cast<std::size_t>(width));
    mla::read_slot(call.keys, slot, key.data());
    double sum = 0.0;
    for (std::int64_t h = 0; h < call.heads; ++h) {
        double dot = 0.0;
        for (std::int64_t d = 0; d < width; ++d)
            dot +=
                double{load_element(call.q, call.q_dtype, (token * call.heads + h) * width + d)} *
                key[static_cast<std::size_t>(d)];
        sum += double{call.weights[token * call.heads + h]} * double{call.weight_scale} *
               std::max(0.0, double{call.scale} * dot);
    }
    return sum;
}

// Index scores and their choice in plain loops, with one thing wrong.
inline void plain_select(const mla::SelectCall& call, Choice choice) {
    const mla::RaggedRows& rows = call.rows;
    std::fill(call.lists.count + rows.q_indptr[0], call.lists.count + rows.token_end, -1);
    for (std::int32_t b = 0; b < rows.rows; ++b) {
        const std::int32_t first = rows.q_indptr[b], count = rows.q_indptr[b + 1] - first;
        const bool tree = rows.mask[b] == mla::MaskKind::tree;
        const std::int32_t keys = rows.kv_len[b];
        const std::int32_t history = tree ? std::max(keys - rows.tail_len[b], 0) : keys;
        const std::int32_t* pages = rows.block_table + mla::table_of(rows, b) * rows.block_stride;
        for (std::int32_t i = 0; i < count; ++i) {
            const std::int32_t token = first + i;
            std::vector<Candidate> seen;
            for (std::int32_t slot = rows.first_slot; slot < keys; ++slot) {
                if (rows.mask[b] == mla::MaskKind::causal && slot >= keys - (count - 1) + i) break;
                const std::int32_t bit = slot - (keys - (tree ? rows.tail_len[b] : 0));
                const bool own = slot < history || ((rows.words[token] >> bit) & 1) != 0;
                if (!own && choice != Choice::rejected_slots_too) continue;
                const bool by_root = choice == Choice::root_for_all && slot < history && tree;
                seen.push_back({choice == Choice::tree_slots_first && slot >= history,
                                plain_score(call, by_root ? first : token,
                                            mla::pool_slot(pages, call.keys.page_tokens, slot)),
                                slot});
            }
            if (std::ssize(seen) <= call.top_k) continue;
            std::ranges::stable_sort(seen, [&](const Candidate& a, const Candidate& c) {
                if (a.first != c.first) return a.first;
                if (a.score != c.score) return a.score > c.score;
                return choice == Choice::ties_to_the_higher && a.slot > c.slot;
            });
            std::vector<std::int32_t> best;
            for (std::int64_t k = 0; k < call.top_k; ++k)
                best.push_back(seen[static_cast<std::size_t>(k)].slot);
            std::ranges::sort(best);
            std::ranges::copy(best, call.lists.slots + token * call.lists.stride);
            call.lists.count[token] = static_cast<std::int32_t>(call.top_k);
        }
    }
}

}  // namespace espalier::conformance
