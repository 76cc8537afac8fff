// SPDX-License-Identifier: Apache-2.0
// One node of a SamplingBatch as a cluster of blocks reads it: its largest logit, its adjustments,
// the sum of its weights. Each block has a run of the row; whatever is found in common lies in the
// first one's shared memory.
#pragma once

#include <cstdint>

#include "base/cuda/cluster.cuh"
#include "base/cuda/device_facts.hpp"
#include "ops/cuda/block.cuh"
#include "ops/draft_children.hpp"
#include "ops/draw.hpp"
#include "ops/sampling_batch.hpp"

namespace espalier::ops::cuda {

inline constexpr int kNodeThreads = 1024;
inline constexpr int kNodeWarps = kNodeThreads / 32;
inline constexpr int kMostNodeBlocks = 8;  // of a cluster

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// A call, not code at every place: 3 KB with two logarithms.
static __device__ __noinline__ double noise_of(std::uint32_t word) { return gumbel_of(word); }

// Names are those of SamplingBatch.
struct Node : DrawParameters {
    std::int32_t position, choice, wanted;
    bool logprob;
    const LogitBias* biases;
    const std::int32_t* banned;
    const TokenCount* committed;
    const TokenCount* changed;
    std::uint32_t bias_count, banned_count, committed_count, changed_count;
    const std::uint32_t* allowed;  // null: everything

    __device__ Node(const SamplingBatch& batch, std::int64_t g)
        : DrawParameters(batch.parameters[g]),
          position(batch.position[g]),
          choice(batch.choice[g]),
          wanted(batch.wanted[g]),
          logprob(batch.logprob[g] != 0),
          biases(reinterpret_cast<const LogitBias*>(batch.lists + batch.biases[g].first)),
          banned(reinterpret_cast<const std::int32_t*>(batch.lists + batch.banned[g].first)),
          committed(batch.counts + batch.committed[g].first),
          changed(reinterpret_cast<const TokenCount*>(batch.lists + batch.changed[g].first)),
          bias_count(batch.biases[g].count),
          banned_count(batch.banned[g].count),
          committed_count(batch.committed[g].count),
          changed_count(batch.changed[g].count),
          allowed(batch.allowed[g] >= 0 ? batch.lists + batch.allowed[g] : nullptr) {}

    __device__ bool counts_tokens() const {
        return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
    }
    __device__ bool is_adjusted() const {
        return bias_count != 0 || banned_count != 0 || allowed != nullptr || counts_tokens();
    }
    __device__ bool is_filtered() const { return min_p > 0.0f || top_k > 0 || top_p < 1.0f; }
    __device__ bool is_greedy() const { return !(temperature >= kGreedyBelow); }
    __device__ std::uint32_t noise_word(std::int32_t token) const {
        return philox_word(seed, position, token, choice);
    }
};

// counts[place] = count. Every block that reads counts writes all of them for itself: entries of
// one place are equal. The grid's first block does it in any case.
__device__ inline void update_counts(const SamplingBatch& batch, const Node& node) {
    if (blockIdx.x != 0 && !node.counts_tokens()) return;
    const ListRange range = *batch.updates;
    const auto* updates = reinterpret_cast<const CountUpdate*>(batch.lists + range.first);
    for (std::uint32_t i = threadIdx.x; i < range.count; i += kNodeThreads)
        batch.counts[updates[i].place] = updates[i].count;
    if (range.count != 0) __syncthreads();
}

// Blocks for a node: as many as have 4,096 logits each, while all nodes' have a multiprocessor to
// themselves; one where the stream's device has no clusters.
inline unsigned node_blocks(Stream stream, std::int64_t nodes, std::int64_t vocabulary) {
    unsigned blocks = 1;
    if (facts_of(stream).clusters[kMostNodeBlocks] == 0) return blocks;
    while (blocks < kMostNodeBlocks && 2 * blocks * nodes <= 128 && vocabulary > 4096 * blocks)
        blocks *= 2;
    return blocks;
}

// The blocks that share a node.
struct NodeBlocks {
    unsigned rank = cluster_rank();
    unsigned count = cluster_blocks();

    // All threads of all of them, and what they have written.
    __device__ void meet() const {
        if (count == 1) {
            __syncthreads();
            return;
        }
        arrive_in_cluster();
        wait_for_cluster();
    }
};

// body(i) for every i of this thread.
template <typename Body>
__device__ void for_each(std::int64_t count, const Body& body) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(count); i += kNodeThreads)
        body(i);
}

// A row of logits with its scaling.
struct Row {
    const float* logits;
    std::int32_t size;
    std::int32_t first, end;  // of this block
    float maximum;            // 0 for -0
    std::int32_t likeliest;   // the first one that has it
    std::uint64_t own_best;   // this thread's, by place_of
    double inverse = 1.0;     // of the temperature
    double largest = 0.0;     // scaled maximum

    __device__ Row(const Matrix& matrix, std::int64_t row, const NodeBlocks& blocks)
        : logits(reinterpret_cast<const float*>(matrix.data) + row * matrix.stride),
          size(static_cast<std::int32_t>(matrix.cols)) {
        const auto count = static_cast<std::int32_t>(blocks.count);
        const std::int32_t each = (size + count - 1) / count;
        first = min(static_cast<std::int32_t>(blocks.rank) * each, size);
        end = min(first + each, size);
    }
    __device__ void scale(double by) {
        inverse = by;
        largest = scaled(maximum, inverse);
    }
    // The logit's scaled distance from the maximum, ≤ 0.
    __device__ double distance(float logit) const { return scaled(logit, inverse) - largest; }
    __device__ std::uint64_t weight(float logit) const { return weight_of(distance(logit)); }
};

// body(i) for every i of this thread among its block's.
template <typename Body>
__device__ void for_own(const Row& row, const Body& body) {
#pragma unroll 1
    for (int i = row.first + static_cast<int>(threadIdx.x); i < row.end; i += kNodeThreads) body(i);
}

// Order-preserving map of floats to integers and back; -0 and 0 share a key, as they are equal.
__device__ inline std::uint32_t key_of(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    return (bits & 0x80000000u) != 0 ? 0u - bits : bits | 0x80000000u;
}
__device__ inline float value_of(std::uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : 0u - key);
}

// Rank of a logit in the descending order: its key, then the lower index.
__device__ inline std::uint64_t place_of(std::uint32_t key, std::uint32_t index) {
    return std::uint64_t{key} << 32 | (0xffffffffu - index);
}
__device__ inline std::uint32_t index_of(std::uint64_t place) {
    return 0xffffffffu - static_cast<std::uint32_t>(place);
}

__device__ inline std::uint64_t larger(std::uint64_t a, std::uint64_t b) { return a > b ? a : b; }

// The best of the even and of the odd lanes of each warp, of all blocks: in every one of them.
inline constexpr int kGroups = 2 * kNodeWarps;
struct GroupMemory {
    std::uint64_t best[kMostNodeBlocks][kGroups];

    // All threads; they have met afterwards. Memory is free again when they have once more.
    __device__ void share(std::uint64_t mine, const NodeBlocks& blocks) {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 16; step > 1; step /= 2)
            mine = larger(mine, __shfl_xor_sync(kAllLanes, mine, step));
        if (lane < 2 * blocks.count)
            *in_block(&best[blocks.rank][threadIdx.x / 32 * 2 + lane % 2], lane / 2) = mine;
        blocks.meet();
    }
    __device__ std::uint64_t of(unsigned group, const NodeBlocks& blocks) const {
        std::uint64_t most = 0;
#pragma unroll 1
        for (unsigned block = 0; block < blocks.count; ++block)
            most = larger(most, best[block][group]);
        return most;
    }
};

// The largest logit and where it is first. False: a NaN or +Inf is among them.
__device__ inline bool scan(Row& row, const NodeBlocks& blocks, GroupMemory& memory) {
    constexpr int kTogether = 8;  // loads on their way
    constexpr std::uint64_t kBad = ~std::uint64_t{0};
    const unsigned lane = threadIdx.x % 32;
    std::uint32_t key = key_of(minus_infinity()), index = 0xffffffffu;
    bool fine = true;
#pragma unroll 1
    for (int i = row.first + static_cast<int>(threadIdx.x); i < row.end;
         i += kTogether * kNodeThreads) {
        float logit[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int at = i + j * kNodeThreads;
            logit[j] = at < row.end ? row.logits[at] : minus_infinity();
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            fine &= logit[j] < -minus_infinity();
            const std::uint32_t other = key_of(logit[j]);
            if (other <= key) continue;
            key = other;
            index = static_cast<std::uint32_t>(i + j * kNodeThreads);
        }
    }
    row.own_best = fine ? place_of(key, index) : kBad;
    memory.share(row.own_best, blocks);
    std::uint64_t best = larger(memory.of(lane, blocks), memory.of(lane + 32, blocks));
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        best = larger(best, __shfl_xor_sync(kAllLanes, best, step));
    row.likeliest = static_cast<std::int32_t>(index_of(best));
    row.maximum = value_of(static_cast<std::uint32_t>(best >> 32));
    return best != kBad;
}

// Adds the values of all threads to what the first block has.
__device__ inline void add_to_first(std::uint64_t value, std::uint64_t* sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    if (threadIdx.x % 32 == 0 && value != 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(in_block(sum, 0)),
                  static_cast<unsigned long long>(value));
}

// Adds the weights of the block's logits to what the first block has.
__device__ inline void add_weights(const Row& row, std::uint64_t* total) {
    std::uint64_t sum = 0;
    for_own(row, [&](int i) { sum += row.weight(row.logits[i]); });
    add_to_first(sum, total);
}

// --- adjustments --------------------------------------------------------------------------------

// A finite logit stays finite.
__device__ inline float kept_finite(float logit) {
    constexpr float kMost = __FLT_MAX__;
    logit = logit > kMost ? kMost : logit;
    return logit < -kMost ? -kMost : logit;
}

__device__ inline float penalised(float logit, const TokenCount& count, const Node& node) {
    if (logit == minus_infinity() || !(count.in_prompt || count.in_output != 0)) return logit;
    const float repeated = kept_finite(logit > 0.0f ? logit / node.repetition_penalty
                                                    : logit * node.repetition_penalty);
    if (count.in_output == 0) return repeated;
    const float frequency = node.frequency_penalty * static_cast<float>(count.in_output);
    return kept_finite((repeated - frequency) - node.presence_penalty);
}

// The block's logits as the node's biases, penalties, bans and mask leave them, to `out`. before:
// shared, for kMaxDrafts. The mask may come first: -inf stays -inf.
__device__ inline void adjust(const Row& raw, const Node& node, const DraftVocabulary& vocabulary,
                              float* out, float* before) {
    // -1: none of this block.
    const auto own_place = [&](std::int32_t token) {
        const std::int32_t at = vocabulary.draft_of != nullptr ? vocabulary.draft_of[token] : token;
        return at >= raw.first && at < raw.end ? at : -1;
    };
    for_own(raw, [&](int i) {
        const int token = vocabulary.target_of != nullptr ? vocabulary.target_of[i] : i;
        const bool allowed =
            node.allowed == nullptr || (node.allowed[token / 32] >> (token % 32) & 1u) != 0;
        out[i] = allowed ? raw.logits[i] : minus_infinity();
    });
    __syncthreads();
    for_each(node.bias_count, [&](int i) {
        const int at = own_place(node.biases[i].token);
        if (at >= 0 && out[at] != minus_infinity())
            out[at] = kept_finite(out[at] + node.biases[i].bias);
    });
    __syncthreads();
    if (node.counts_tokens()) {
        // Tokens of the path begin again where they were before the committed entries.
        for_each(node.changed_count, [&](int i) {
            const int at = own_place(node.changed[i].token);
            before[i] = at >= 0 ? out[at] : 0.0f;
        });
        __syncthreads();
        for_each(node.committed_count, [&](int i) {
            const int at = own_place(node.committed[i].token);
            if (at >= 0) out[at] = penalised(out[at], node.committed[i], node);
        });
        __syncthreads();
        for_each(node.changed_count, [&](int i) {
            const int at = own_place(node.changed[i].token);
            if (at >= 0) out[at] = penalised(before[i], node.changed[i], node);
        });
        __syncthreads();
    }
    for_each(node.banned_count, [&](int i) {
        const int at = own_place(node.banned[i]);
        if (at >= 0) out[at] = minus_infinity();
    });
    __syncthreads();
}

}  // namespace espalier::ops::cuda
