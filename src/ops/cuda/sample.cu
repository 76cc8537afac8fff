// SPDX-License-Identifier: Apache-2.0
// A draw by its definition (ops/sampling.hpp), a block of threads for each node, or a cluster of
// blocks for few nodes of a large vocabulary. Passes over the row: largest logit and health ·
// adjustments, if any · filters (prefix.cuh), by the first block · weights of raw · noise ·
// alternatives, if asked for, by the first block.
#include "base/cuda/cluster.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/prefix.cuh"

namespace espalier::ops::cuda {
namespace {

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

static_assert(kNodeWarps == 32, "a warp compares the warps' best");

__device__ Best best_of_warp(Best best) {
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) {
        const double score = __shfl_xor_sync(kAllLanes, best.score, step);
        const std::int32_t token = __shfl_xor_sync(kAllLanes, best.token, step);
        best.offer(score, token);
    }
    return best;
}

struct SampleMemory {
    GroupMemory scanned[2];  // raw, adjusted
    PrefixMemory prefix;
    Prefix kept;
    std::uint64_t total;  // of raw weights
    std::uint64_t sums[kNodeWarps];
    Best best[kMostNodeBlocks][kNodeWarps];
    float before[kMaxDrafts];
    int bound;  // bits of a float ≥ 0
};

// −ln u ≥ 1 − u, so G ≤ −ln(1 − u), and a token can reach a score only if 1 − u ≤ exp(scaled −
// score): about ln V logarithms are taken of a vocabulary. The margin of 2⁻¹⁶ covers the f32 steps
// (cpu/sample.cpp has the sum). What a thread learns late costs logarithms, not bits.
__device__ float bound_of(const Row& row, double score) {
    return static_cast<float>(portable_exp(row.largest - score) * (1.0 + 0x1p-16));
}

// argmax of scaled + G over the prefix, of this block's: each warp's to the first block.
__device__ void draw_among(const Row& row, const Node& node, const Prefix& kept,
                           const NodeBlocks& blocks, SampleMemory& memory) {
    Best best = {row.largest + noise_of(node.noise_word(row.likeliest)), row.likeliest};
    if (threadIdx.x == 0) memory.bound = __float_as_int(bound_of(row, best.score));
    __syncthreads();
    for_own(row, [&](int token) {
        const float logit = row.logits[token];
        if (!kept.holds(logit, token)) return;
        const std::uint32_t word = node.noise_word(token);
        const float one_minus_u = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;
        const float bound = __int_as_float(*static_cast<volatile int*>(&memory.bound));
        if (portable_exp(static_cast<float>(row.distance(logit))) * bound - one_minus_u < 0.0f)
            return;
        if (best.offer(scaled(logit, row.inverse) + noise_of(word), token))
            atomicMin(&memory.bound, __float_as_int(bound_of(row, best.score)));
    });
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) *in_block(&memory.best[blocks.rank][threadIdx.x / 32], 0) = best;
}

// Part of the row that min-p, top-k and top-p leave, by one block.
__device__ Prefix filter(const Row& row, const Node& node, SampleMemory& memory) {
    Prefix kept = everything();
    if (node.min_p > 0.0f) kept = distance_prefix(row, min_p_distance(node.min_p));
#pragma unroll 1
    for (const bool weighted : {false, true}) {
        if (weighted ? !(node.top_p < 1.0f) : node.top_k <= 0 || node.top_k >= row.size) continue;
        std::uint64_t whole = 0;
        if (weighted) {
            for_each(row.size, [&](int i) {
                if (kept.holds(row.logits[i], i)) whole += row.weight(row.logits[i]);
            });
            whole = block_sum<kNodeThreads>(whole, memory.sums);
        }
        kept = shortest(row, kept,
                        {.weighted = weighted,
                         .count = static_cast<std::uint64_t>(node.top_k),
                         .top_p = node.top_p,
                         .whole = whole},
                        memory.prefix);
    }
    return kept;
}

// Draws from a row whose maximum is above -inf and whose node is not greedy.
__device__ void draw(Row row, const Node& node, const NodeBlocks& blocks, SampleMemory& memory) {
    row.scale(1.0 / static_cast<double>(node.temperature));
    Prefix kept = everything();
    if (node.is_filtered()) {
        if (blocks.rank == 0) {
            kept = filter(row, node, memory);
            if (threadIdx.x < blocks.count) *in_block(&memory.kept, threadIdx.x) = kept;
        }
        blocks.meet();
        kept = memory.kept;
    }
    draw_among(row, node, kept, blocks, memory);
}

// The best of all warps of all blocks. By the first block.
__device__ std::int32_t drawn_token(const NodeBlocks& blocks, const SampleMemory& memory) {
    const unsigned lane = threadIdx.x % 32;
    Best best = memory.best[0][lane];
#pragma unroll 1
    for (unsigned block = 1; block < blocks.count; ++block)
        best.offer(memory.best[block][lane].score, memory.best[block][lane].token);
    return best_of_warp(best).token;
}

// The tokens of the largest raw logits, one after the other. By the first block.
__device__ void report_top(const Row& raw, std::uint64_t total, ListRange places,
                           TokenLogprob* alternatives, std::uint64_t* shared) {
    std::uint64_t last = ~std::uint64_t{0};
#pragma unroll 1
    for (std::uint32_t n = 0; n < places.count; ++n) {
        std::uint64_t best = 0;
        for_each(raw.size, [&](int i) {
            const float logit = raw.logits[i];
            if (logit == minus_infinity()) return;
            const std::uint64_t place = place_of(key_of(logit), static_cast<std::uint32_t>(i));
            if (place < last && place > best) best = place;
        });
        best = block_max<kNodeThreads>(best, shared);
        if (best == 0) return;
        last = best;
        const auto token = static_cast<std::int32_t>(index_of(best));
        if (threadIdx.x == 0)
            alternatives[places.first + n] = {
                token, log_probability(raw.logits[token], raw.logits[raw.likeliest], total)};
    }
}

__device__ Draw sample_node(Row raw, const Node& node, ListRange reported,
                            TokenLogprob* alternatives, float* spare, const NodeBlocks& blocks,
                            SampleMemory& memory) {
    if (blocks.rank == 0)
        for_each(reported.count, [&](int i) {
            alternatives[reported.first + i] = {-1, minus_infinity()};
        });
    if (node.wanted == kPad) return {-1, 0.0f, DrawFlag::fine};
    if (!scan(raw, blocks, memory.scanned[0])) return {-1, 0.0f, DrawFlag::bad_logits};
    if (raw.maximum == minus_infinity()) return {-1, 0.0f, DrawFlag::nothing_left};

    Row row = raw;
    if (node.wanted < 0 && node.is_adjusted()) {
        adjust(raw, node, {}, spare, memory.before);
        row.logits = spare;
        scan(row, blocks, memory.scanned[1]);
    }
    const bool left = row.maximum != minus_infinity();
    const bool drawn = node.wanted < 0 && left && !node.is_greedy();
    const bool weighed = node.logprob || reported.count != 0 || node.wanted >= 0;
    if (weighed) {
        raw.scale(1.0);
        add_weights(raw, &memory.total);
    }
    if (drawn) draw(row, node, blocks, memory);
    if (weighed || drawn) blocks.meet();
    if (blocks.rank != 0) return {};

    std::int32_t token = node.wanted >= 0 ? node.wanted : left ? row.likeliest : -1;
    if (drawn) token = drawn_token(blocks, memory);
    float logprob = __int_as_float(0x7fc00000);
    if (weighed) {
        report_top(raw, memory.total, reported, alternatives, memory.sums);
        if (token >= 0)
            logprob = log_probability(raw.logits[token], raw.logits[raw.likeliest], memory.total);
    }
    if (token < 0) return {-1, 0.0f, DrawFlag::nothing_left};
    return {token, logprob, DrawFlag::fine};
}

__global__ void __launch_bounds__(kNodeThreads)
    sample_kernel(Matrix logits, SamplingBatch batch, std::int64_t first, float* spare) {
    begin_kernel();
    __shared__ SampleMemory memory;
    const NodeBlocks blocks;
    const std::int64_t own = blockIdx.x / blocks.count;
    const std::int64_t g = first + own;
    if (threadIdx.x == 0) memory.total = 0;
    if (blocks.count > 1) blocks.meet();  // all of them have started
    const Node node(batch, g);
    update_counts(batch, node);
    const Draw draw =
        sample_node(Row(logits, g, blocks), node, batch.reported[g], batch.alternatives,
                    spare + own * row_stride(logits.cols), blocks, memory);
    if (blocks.rank == 0 && threadIdx.x == 0) batch.draws[g] = draw;
}

}  // namespace

void sample_nodes(Stream stream, const Matrix& logits, const SamplingBatch& batch, float* spare) {
    for (std::int64_t first = 0; first < logits.rows; first += kNodesAtOnce) {
        const std::int64_t nodes = std::min(kNodesAtOnce, logits.rows - first);
        const unsigned blocks = node_blocks(stream, nodes, logits.cols);
        launch("sample_nodes", sample_kernel,
               {.grid = static_cast<unsigned>(nodes) * blocks,
                .threads = kNodeThreads,
                .cluster = static_cast<int>(blocks)},
               stream, logits, batch, first, spare);
    }
}

}  // namespace espalier::ops::cuda
