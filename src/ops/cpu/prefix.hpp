// SPDX-License-Identifier: Apache-2.0
// Finds how far down the descending order of logits (ties by lower id) a filter reaches, without
// sorting: histograms narrow the range of the logit where the limit is crossed until few enough are
// left to sort.
#pragma once

#include <cstdint>

#include "base/thread_pool.hpp"
#include "ops/draw.hpp"
#include "ops/kernels.hpp"
#include "ops/sampling.hpp"

namespace espalier::ops {

inline constexpr std::int64_t kChunk = 16384;  // tokens of one task when a node is split
inline constexpr std::int64_t kMaxChunks = kMaxVocabulary / kChunk;

inline constexpr std::int64_t kHistogram =
    kBuckets + 1;  // the last place takes what a prefix does not hold

// A prefix of the order: larger logits, and of equal ones the ids up to last_tie.
struct Prefix {
    float least;
    std::int32_t last_tie;

    bool operator==(const Prefix&) const = default;
    // Without branches: in the middle of a distribution they are coin tosses.
    bool holds(float logit, std::int64_t token) const {
        return static_cast<bool>(
            static_cast<int>(logit > least) |
            (static_cast<int>(logit == least) & static_cast<int>(token <= last_tie)));
    }
};

// One node's logits and how to walk over them.
struct NodeView {
    const KernelTable& kernels;
    const float* logits;  // [vocabulary]
    std::int64_t vocabulary;
    float maximum;
    Scaling scaling;
    // Split over a pool, or null: all chunks in turn on this thread. Then one histogram serves all
    // chunks.
    ThreadPool* pool;
    std::uint64_t* histograms;  // [pool == null ? 1 : chunks, kHistogram]

    std::int64_t chunks() const { return (vocabulary + kChunk - 1) / kChunk; }
    // body(chunk, first, end)
    template <typename Body>
    void for_chunks(const Body& body) const {
        const auto one = [&](std::int64_t chunk, int) {
            const std::int64_t end = (chunk + 1) * kChunk;
            body(chunk, chunk * kChunk, end < vocabulary ? end : vocabulary);
        };
        if (pool != nullptr) {
            pool->run(chunks(), one);
        } else {
            for (std::int64_t chunk = 0; chunk < chunks(); ++chunk) one(chunk, 0);
        }
    }
};

Prefix everything();  // every logit above -inf
Prefix min_p_prefix(const NodeView& node, float min_p);
// The first k of `within`.
Prefix top_k_prefix(const NodeView& node, const Prefix& within, std::int64_t k);
// The shortest prefix of `within` that reaches top_p of its weight; whole gets that weight.
Prefix top_p_prefix(const NodeView& node, const Prefix& within, float top_p, std::uint64_t& whole);

}  // namespace espalier::ops
