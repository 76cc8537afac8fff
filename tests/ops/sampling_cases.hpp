// SPDX-License-Identifier: Apache-2.0
// Random nodes for the tests of sample_nodes: hostile logits, every filter, every adjustment.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/sampling_memory.hpp"
#include "ops/sampling_node.hpp"
#include "ops/support.hpp"

namespace espalier::ops {

// A node with everything it borrows. Copies are not made: spans point into it.
struct NodeCase {
    NodeCase() = default;
    NodeCase(const NodeCase&) = delete;
    NodeCase& operator=(const NodeCase&) = delete;

    SamplingNode node;
    std::vector<LogitBias> biases;
    std::vector<TokenCount> committed, changed;
    std::vector<std::int32_t> banned;
    std::vector<std::uint32_t> allowed;
    std::string describe() const;
};

// Filters, seed, position; no adjustments.
SamplingNode random_filters(std::mt19937& random);
// Ties, holes, huge, tiny, flat, peaked; sometimes a poison value.
std::vector<float> random_logits(std::mt19937& random, std::int64_t vocabulary);
// Filters and any mix of adjustments for this vocabulary.
void fill_random(std::mt19937& random, std::int64_t vocabulary, NodeCase& made);

// Everything a node gives.
struct Outcome {
    Draw draw;
    std::vector<TokenLogprob> top;
};
Outcome reference_outcome(const std::vector<float>& logits, const SamplingNode& node,
                          std::size_t top_count);
void expect_same(const Outcome& got, const Outcome& wanted, const std::string& where);

CpuDevice& host();

// Nodes as a batch in memory of their own, on any device.
class NodeBatch {
  public:
    NodeBatch(std::int64_t vocabulary, const std::vector<SamplingNode>& nodes,
              const std::vector<std::size_t>& top_counts, std::int64_t pads = 0,
              Device& device = host());
    const SamplingBatch& view() const { return view_; }
    std::vector<Outcome> outcomes() const;  // pads included

  private:
    Device& device_;
    SamplingBatchBuilder builder_;
    SamplingMemory memory_;
    SamplingBatch view_;
    std::vector<ListRange> reported_;
};

// A backend with its device and arena.
class Sampler {
  public:
    Sampler(CpuVariant variant, int workers);
    // logits: [nodes, vocabulary]; top_counts: [nodes]. Also expects the logits to stay as they
    // are.
    std::vector<Outcome> draw(std::vector<float> logits, const std::vector<SamplingNode>& nodes,
                              const std::vector<std::size_t>& top_counts);
    Outcome draw_one(const std::vector<float>& logits, const SamplingNode& node,
                     std::size_t top_count) {
        return draw(logits, {node}, {top_count})[0];
    }
    // logits: [nodes, Vd] of a draft. Returns [nodes, width].
    std::vector<DraftChild> children(std::vector<float> logits, std::int64_t vocabulary,
                                     const std::vector<SamplingNode>& nodes,
                                     const DraftVocabulary& draft, const DraftRule& rule);

  private:
    std::unique_ptr<Backend> backend_;
    CpuDevice device_;
    Arena arena_;
};

}  // namespace espalier::ops
