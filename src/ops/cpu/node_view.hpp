// SPDX-License-Identifier: Apache-2.0
// One node's row of logits and how the CPU walks over it. With as many nodes as workers each task
// is a node; with fewer, each node's row is split in fixed chunks. Both give the same results,
// because weights are integers and a maximum has no order.
#pragma once

#include <array>
#include <cstdint>

#include "base/cpu_device.hpp"
#include "base/matrix.hpp"
#include "ops/draw.hpp"
#include "ops/kernels.hpp"

namespace espalier::ops {

inline constexpr std::int64_t kChunk = 16384;  // tokens of one task when a node is split
inline constexpr std::int64_t kMaxChunks = kMaxVocabulary / kChunk;

inline constexpr std::int64_t kScan = 256;  // tokens looked at together

inline constexpr std::int64_t kHistogram =
    kBuckets + 1;  // the last place takes what a prefix does not hold

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

// The largest logit, and whether one is bad.
struct NodeScan {
    LogitScan found;
    std::int64_t chunk;  // the first one that holds the maximum
};
NodeScan scan_all(const NodeView& node);

// Σ of weights over the row, under the node's scaling.
std::uint64_t sum_weights(const NodeView& node);

// Arena bytes that for_nodes takes.
std::size_t node_scratch_bytes(std::int64_t vocabulary, int workers);

// f32 of one worker's adjusted logits: whole cache lines.
inline std::int64_t spare_stride(std::int64_t vocabulary) { return (vocabulary + 15) / 16 * 16; }

// body(g, node, spare) for every row; spare: f32 [logits.cols], of this call alone.
template <typename Body>
void for_nodes(const KernelTable& kernels, OpContext& context, const Matrix& logits,
               const Body& body) {
    NodeView node{.kernels = kernels,
                  .logits = nullptr,
                  .vocabulary = logits.cols,
                  .maximum = 0.0f,
                  .scaling = {.inverse = 1.0, .maximum = 0.0},
                  .pool = nullptr,
                  .histograms = nullptr};
    const auto run = [&](std::int64_t g, NodeView of_row, std::uint64_t* histograms, float* spare) {
        of_row.logits = logits.row<float>(g);
        of_row.histograms = histograms;
        body(g, of_row, spare);
    };
    const Arena::Mark mark(context.arena);
    const std::int64_t stride = spare_stride(logits.cols);
    ThreadPool& pool = pool_of(context);
    if (logits.rows >= pool.workers()) {
        auto* spare = context.arena.take<float>(pool.workers() * stride);
        pool.run(logits.rows, [&](std::int64_t g, int worker) {
            std::array<std::uint64_t, kHistogram> histogram;
            run(g, node, histogram.data(), spare + worker * stride);
        });
        return;
    }
    node.pool = &pool;
    auto* spare = context.arena.take<float>(stride);
    auto* histograms = context.arena.take<std::uint64_t>(node.chunks() * kHistogram);
    for (std::int64_t g = 0; g < logits.rows; ++g) run(g, node, histograms, spare);
}

}  // namespace espalier::ops
