// SPDX-License-Identifier: Apache-2.0
// One node of a SamplingBatch as a block of threads reads it: its largest logit, its adjustments,
// the sum of its weights.
#pragma once

#include <cstdint>

#include "ops/cuda/block.cuh"
#include "ops/draft_children.hpp"
#include "ops/draw.hpp"
#include "ops/sampling_batch.hpp"

namespace espalier::ops::cuda {

inline constexpr int kNodeThreads = 512;

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

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
    __device__ bool is_greedy() const { return !(temperature >= kGreedyBelow); }
    __device__ double noise(std::int32_t token) const {
        return gumbel_of(philox_word(seed, position, token, choice));
    }
};

// body(i) for every i of this thread.
template <typename Body>
__device__ void for_each(std::int64_t count, const Body& body) {
    for (std::int64_t i = threadIdx.x; i < count; i += kNodeThreads) body(static_cast<int>(i));
}

// A row of logits with its scaling.
struct Row {
    const float* logits;
    std::int32_t size;
    float maximum;
    std::int32_t likeliest;  // the first one that has it
    double inverse = 1.0;    // of the temperature
    double largest = 0.0;    // scaled maximum

    __device__ void scale(double by) {
        inverse = by;
        largest = scaled(maximum, inverse);
    }
    // Of a logit from the maximum, scaled.
    __device__ double distance(float logit) const { return scaled(logit, inverse) - largest; }
    __device__ std::uint64_t weight(float logit) const { return weight_of(distance(logit)); }
};

// Order-preserving map of floats to integers and back; -0 and 0 share a key, as they are equal.
__device__ inline std::uint32_t key_of(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    return (bits & 0x80000000u) != 0 ? 0u - bits : bits | 0x80000000u;
}
__device__ inline float value_of(std::uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : 0u - key);
}

// The largest logit and where it is first. False: a NaN or +Inf is among them.
__device__ inline bool scan(Row& row, std::uint64_t* shared) {
    std::uint64_t best = 0;
    int bad = 0;
    for_each(row.size, [&](int i) {
        const float logit = row.logits[i];
        bad |= logit < -minus_infinity() ? 0 : 1;
        const std::uint64_t place =
            std::uint64_t{key_of(logit)} << 32 | (0xffffffffu - static_cast<std::uint32_t>(i));
        best = place > best ? place : best;
    });
    best = block_max<kNodeThreads>(best, shared);
    row.likeliest = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
    const bool fine = __syncthreads_or(bad) == 0;
    row.maximum = fine ? row.logits[row.likeliest] : 0.0f;
    return fine;
}

__device__ inline std::uint64_t sum_weights(const Row& row, std::uint64_t* shared) {
    std::uint64_t sum = 0;
    for_each(row.size, [&](int i) { sum += row.weight(row.logits[i]); });
    return block_sum<kNodeThreads>(sum, shared);
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

// Logits as the node's biases, penalties, bans and mask leave them, to `out`. before: shared, for
// kMaxDrafts. The mask may come first: -inf stays -inf.
__device__ inline void adjust(const Row& raw, const Node& node, const DraftVocabulary& vocabulary,
                              float* out, float* before) {
    const auto place_of = [&](std::int32_t token) {
        return vocabulary.draft_of != nullptr ? vocabulary.draft_of[token] : token;
    };
    for_each(raw.size, [&](int i) {
        const int token = vocabulary.target_of != nullptr ? vocabulary.target_of[i] : i;
        const bool allowed =
            node.allowed == nullptr || (node.allowed[token / 32] >> (token % 32) & 1u) != 0;
        out[i] = allowed ? raw.logits[i] : minus_infinity();
    });
    __syncthreads();
    for_each(node.bias_count, [&](int i) {
        const int at = place_of(node.biases[i].token);
        if (at >= 0 && out[at] != minus_infinity())
            out[at] = kept_finite(out[at] + node.biases[i].bias);
    });
    __syncthreads();
    if (node.counts_tokens()) {
        // Tokens of the path begin again where they were before the committed entries.
        for_each(node.changed_count, [&](int i) {
            const int at = place_of(node.changed[i].token);
            before[i] = at >= 0 ? out[at] : 0.0f;
        });
        __syncthreads();
        for_each(node.committed_count, [&](int i) {
            const int at = place_of(node.committed[i].token);
            if (at >= 0) out[at] = penalised(out[at], node.committed[i], node);
        });
        __syncthreads();
        for_each(node.changed_count, [&](int i) {
            const int at = place_of(node.changed[i].token);
            if (at >= 0) out[at] = penalised(before[i], node.changed[i], node);
        });
        __syncthreads();
    }
    for_each(node.banned_count, [&](int i) {
        const int at = place_of(node.banned[i]);
        if (at >= 0) out[at] = minus_infinity();
    });
    __syncthreads();
}

}  // namespace espalier::ops::cuda
