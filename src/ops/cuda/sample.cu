// SPDX-License-Identifier: Apache-2.0
// A draw by its definition (ops/sampling.hpp), a block of threads for each node. Passes over the
// row: largest logit and health · adjustments, if any · filters (prefix.cuh) · noise · weights of
// raw · alternatives, if asked for.
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/prefix.cuh"

namespace espalier::ops::cuda {
namespace {

__global__ void update_counts(SamplingBatch batch) {
    begin_kernel();
    const auto* updates = reinterpret_cast<const CountUpdate*>(batch.lists + batch.updates->first);
    for (std::uint32_t i = threadIdx.x; i < batch.updates->count; i += blockDim.x)
        batch.counts[updates[i].place] = updates[i].count;
}

// The best score so far; a higher one wins, then the lower id.
struct Best {
    double score;
    std::int32_t token;

    __device__ bool offer(double other_score, std::int32_t other) {
        const bool better = other_score > score || (other_score == score && other < token);
        if (better) {
            score = other_score;
            token = other;
        }
        return better;
    }
};

struct SampleMemory {
    PrefixMemory prefix;
    std::uint64_t sums[kNodeThreads / 32];
    Best best[kNodeThreads / 32];
    float before[kMaxDrafts];
    int bound;  // bits of a float ≥ 0
};

// −ln u ≥ 1 − u, so G ≤ −ln(1 − u), and a token can reach a score only if 1 − u ≤ exp(scaled −
// score): about ln V logarithms are taken of a vocabulary. The margin of 2⁻¹⁶ covers the f32 steps
// (cpu/sample.cpp has the sum). What a thread learns late costs logarithms, not bits.
__device__ float bound_of(const Row& row, double score) {
    return static_cast<float>(portable_exp(row.largest - score) * (1.0 + 0x1p-16));
}

// argmax of scaled + G over the prefix.
__device__ std::int32_t draw_among(const Row& row, const Node& node, const Prefix& kept,
                                   SampleMemory& memory) {
    Best best = {row.largest + node.noise(row.likeliest), row.likeliest};
    if (threadIdx.x == 0) memory.bound = __float_as_int(bound_of(row, best.score));
    __syncthreads();
    for_each(row.size, [&](int token) {
        const float logit = row.logits[token];
        if (!kept.holds(logit, token)) return;
        const std::uint32_t word = philox_word(node.seed, node.position, token, node.choice);
        const float one_minus_u = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;
        const float bound = __int_as_float(*static_cast<volatile int*>(&memory.bound));
        if (portable_exp(static_cast<float>(row.distance(logit))) * bound - one_minus_u < 0.0f)
            return;
        if (best.offer(scaled(logit, row.inverse) + gumbel_of(word), token))
            atomicMin(&memory.bound, __float_as_int(bound_of(row, best.score)));
    });
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const double score = __shfl_xor_sync(kAllLanes, best.score, step);
        const std::int32_t token = __shfl_xor_sync(kAllLanes, best.token, step);
        best.offer(score, token);
    }
    if (threadIdx.x % 32 == 0) memory.best[threadIdx.x / 32] = best;
    __syncthreads();
    for (const Best& other : memory.best) best.offer(other.score, other.token);
    __syncthreads();
    return best.token;
}

// Draws from a row whose maximum is above -inf.
__device__ std::int32_t choose(Row row, const Node& node, SampleMemory& memory) {
    if (node.is_greedy()) return row.likeliest;
    row.scale(1.0 / static_cast<double>(node.temperature));
    Prefix kept = everything();
    if (node.min_p > 0.0f) kept = distance_prefix(row, min_p_distance(node.min_p));
    if (node.top_k > 0 && node.top_k < row.size)
        kept = shortest(row, kept,
                        {.weighted = false,
                         .count = static_cast<std::uint64_t>(node.top_k),
                         .top_p = 0.0f,
                         .whole = 0},
                        memory.prefix);
    if (node.top_p < 1.0f) {
        std::uint64_t whole = 0;
        for_each(row.size, [&](int i) {
            if (kept.holds(row.logits[i], i)) whole += row.weight(row.logits[i]);
        });
        whole = block_sum<kNodeThreads>(whole, memory.sums);
        kept =
            shortest(row, kept, {.weighted = true, .count = 0, .top_p = node.top_p, .whole = whole},
                     memory.prefix);
    }
    return draw_among(row, node, kept, memory);
}

// The tokens of the largest raw logits, one after the other.
__device__ void report_top(const Row& raw, std::uint64_t total, ListRange places,
                           TokenLogprob* alternatives, std::uint64_t* shared) {
    std::uint64_t last = ~std::uint64_t{0};
    for (std::uint32_t n = 0; n < places.count; ++n) {
        std::uint64_t best = 0;
        for_each(raw.size, [&](int i) {
            const float logit = raw.logits[i];
            if (logit == minus_infinity()) return;
            const std::uint64_t place =
                std::uint64_t{key_of(logit)} << 32 | (0xffffffffu - static_cast<std::uint32_t>(i));
            if (place < last && place > best) best = place;
        });
        best = block_max<kNodeThreads>(best, shared);
        if (best == 0) return;
        last = best;
        const auto token =
            static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
        if (threadIdx.x == 0)
            alternatives[places.first + n] = {
                token, log_probability(raw.logits[token], raw.maximum, total)};
    }
}

__device__ Draw sample_node(Row raw, const Node& node, ListRange reported,
                            TokenLogprob* alternatives, float* spare, SampleMemory& memory) {
    for_each(reported.count, [&](int i) {
        alternatives[reported.first + i] = {-1, minus_infinity()};
    });
    __syncthreads();
    if (node.wanted == kPad) return {-1, 0.0f, DrawFlag::fine};
    if (!scan(raw, memory.sums)) return {-1, 0.0f, DrawFlag::bad_logits};
    if (raw.maximum == minus_infinity()) return {-1, 0.0f, DrawFlag::nothing_left};

    std::int32_t token = node.wanted;
    if (token < 0 && node.is_adjusted()) {
        adjust(raw, node, {}, spare, memory.before);
        Row adjusted{.logits = spare, .size = raw.size};
        scan(adjusted, memory.sums);
        token = adjusted.maximum == minus_infinity() ? -1 : choose(adjusted, node, memory);
    } else if (token < 0) {
        token = choose(raw, node, memory);
    }
    float logprob = __int_as_float(0x7fc00000);
    if (node.logprob || reported.count != 0 || node.wanted >= 0) {
        raw.scale(1.0);
        const std::uint64_t total = sum_weights(raw, memory.sums);
        report_top(raw, total, reported, alternatives, memory.sums);
        if (token >= 0) logprob = log_probability(raw.logits[token], raw.maximum, total);
    }
    if (token < 0) return {-1, 0.0f, DrawFlag::nothing_left};
    return {token, logprob, DrawFlag::fine};
}

__global__ void __launch_bounds__(kNodeThreads)
    sample_kernel(Matrix logits, SamplingBatch batch, std::int64_t first, float* spare) {
    begin_kernel();
    __shared__ SampleMemory memory;
    const std::int64_t g = first + blockIdx.x;
    const Row raw{.logits = reinterpret_cast<const float*>(logits.data) + g * logits.stride,
                  .size = static_cast<std::int32_t>(logits.cols)};
    const Draw draw = sample_node(raw, Node(batch, g), batch.reported[g], batch.alternatives,
                                  spare + blockIdx.x * row_stride(logits.cols), memory);
    if (threadIdx.x == 0) batch.draws[g] = draw;
}

}  // namespace

void apply_count_updates(Stream stream, const SamplingBatch& batch) {
    launch("the updates of counts", update_counts, 1, 256, stream, batch);
}

void sample_nodes(Stream stream, const Matrix& logits, const SamplingBatch& batch, float* spare) {
    apply_count_updates(stream, batch);
    for (std::int64_t first = 0; first < logits.rows; first += kNodesAtOnce) {
        const auto nodes = static_cast<unsigned>(std::min(kNodesAtOnce, logits.rows - first));
        launch("sample_nodes", sample_kernel, nodes, kNodeThreads, stream, logits, batch, first,
               spare);
    }
}

}  // namespace espalier::ops::cuda
