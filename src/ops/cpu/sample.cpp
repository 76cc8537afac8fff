// SPDX-License-Identifier: Apache-2.0
// Passes: largest logit and health · adjustments, if any (cpu/adjust) · filters (cpu/prefix) ·
// noise · weights of raw · alternatives, if asked for (cpu/top). With as many nodes as workers each
// task is a node; with fewer, each node's vocabulary is split in fixed chunks. Both give the same
// draws, because weights are integers and a maximum has no order.
#include "ops/cpu/sample.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "ops/cpu/adjust.hpp"
#include "ops/cpu/prefix.hpp"
#include "ops/cpu/top.hpp"
#include "ops/draw.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

constexpr std::int64_t kBlock = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The best score so far; a higher one wins, then the lower id.
struct Best {
    double score;
    std::int32_t token;

    void offer(double other_score, std::int32_t other) {
        if (other_score > score || (other_score == score && other < token)) {
            score = other_score;
            token = other;
        }
    }
};

// Draws among the tokens it is given, a block at a time, and takes logarithms only where they can
// win: −ln u ≥ 1 − u, so G ≤ −ln(1 − u), and a token can reach the best only if 1 − u ≤ exp(scaled
// − best). That leaves about ln V tokens of a vocabulary.
class GumbelArgmax {
  public:
    GumbelArgmax(const NodeView& node, const NodeSampling& sampling, Best start)
        : node_(node), sampling_(sampling), best_(start) {
        update_bound();
    }

    // Tokens [first, end), at most a block, that `kept` holds.
    void consider(std::int64_t first, std::int64_t end, const Prefix& kept) {
        // No branch: which ones are kept is hard to predict.
        for (std::int64_t token = first; token < end; ++token) {
            const float logit = node_.logits[token];
            tokens_[count_] = static_cast<std::int32_t>(token);
            logits_[count_] = logit;
            count_ += kept.holds(logit, token) ? 1 : 0;
        }
        if (count_ >= kBlock) run(logits_.data());
    }

    // All of them; a logit of -inf has likelihood 0 and never wins.
    void consider_all(std::int64_t first, std::int64_t end) {
        for (std::int64_t token = first; token < end; ++token)
            tokens_[static_cast<std::size_t>(token - first)] = static_cast<std::int32_t>(token);
        count_ = static_cast<std::size_t>(end - first);
        run(node_.logits + first);
    }

    Best finish() {
        run(logits_.data());
        return best_;
    }

  private:
    void update_bound() {
        // The margin of 2⁻¹⁶ covers the f32 kernel: exp 2 ulp, its argument (down to −26, where
        // noise ends) and 1 − u one rounding each, below 2⁻¹⁸ together; and that scores are
        // rounded: with |scaled| ≤ 2³⁰ by at most 2⁻²⁴. Beyond, unequal logits are further apart
        // than noise reaches, and equal ones tie to the lower id, which came first.
        bound_ =
            static_cast<float>(portable_exp(node_.scaling.maximum - best_.score) * (1.0 + 0x1p-16));
    }

    // logits: of tokens_[0 … count_).
    void run(const float* logits) {
        const auto count = static_cast<std::int64_t>(count_);
        node_.kernels.philox(tokens_.data(), count, sampling_.seed, sampling_.position,
                             sampling_.choice, words_.data());
        node_.kernels.bound_margins(logits, words_.data(), node_.scaling, bound_, count,
                                    margins_.data());
        // Most blocks hold no survivor; to ask each token alone takes 100 µs of a vocabulary.
        if (node_.kernels.scan(margins_.data(), count).maximum >= 0.0f) offer_survivors(logits);
        count_ = 0;
    }

    void offer_survivors(const float* logits) {
        for (std::size_t i = 0; i < count_; ++i) {
            if (margins_[i] < 0.0f) continue;
            best_.offer(scaled(logits[i], node_.scaling.inverse) + gumbel_of(words_[i]),
                        tokens_[i]);
        }
        update_bound();
    }

    const NodeView& node_;
    const NodeSampling& sampling_;
    Best best_;
    float bound_ = 0.0f;
    std::size_t count_ = 0;
    std::array<std::int32_t, 2 * kBlock> tokens_;
    std::array<float, 2 * kBlock> logits_;
    std::array<std::uint32_t, 2 * kBlock> words_;
    std::array<float, 2 * kBlock> margins_;
};

// argmax of scaled + G over the prefix.
std::int32_t draw_among(const NodeView& node, const NodeSampling& sampling, const Prefix& kept,
                        std::int32_t likeliest) {
    const Best start = {
        node.scaling.maximum + gumbel(sampling.seed, sampling.position, likeliest, sampling.choice),
        likeliest};
    // Under a grammar most blocks may be empty: then they are skipped as a filter skips them.
    const bool all = kept == everything() && sampling.allowed == nullptr;
    std::array<Best, kMaxChunks> best;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        GumbelArgmax argmax(node, sampling, start);
        for (std::int64_t at = first; at < end; at += kBlock) {
            const std::int64_t block_end = std::min(at + kBlock, end);
            if (all) {
                argmax.consider_all(at, block_end);
            } else if (node.kernels.scan(node.logits + at, block_end - at).maximum >= kept.least) {
                argmax.consider(at, block_end, kept);
            }
        }
        best[static_cast<std::size_t>(chunk)] = argmax.finish();
    });
    Best overall = start;
    for (std::int64_t chunk = 0; chunk < node.chunks(); ++chunk) {
        const Best& candidate = best[static_cast<std::size_t>(chunk)];
        overall.offer(candidate.score, candidate.token);
    }
    return overall.token;
}

struct NodeScan {
    LogitScan found;
    std::int64_t chunk;  // the first one that holds the maximum
};

NodeScan scan_all(const NodeView& node) {
    std::array<LogitScan, kMaxChunks> scans;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        scans[static_cast<std::size_t>(chunk)] =
            node.kernels.scan(node.logits + first, end - first);
    });
    NodeScan all = {{-kInfinity, false}, 0};
    for (std::int64_t chunk = 0; chunk < node.chunks(); ++chunk) {
        const LogitScan& part = scans[static_cast<std::size_t>(chunk)];
        if (part.maximum > all.found.maximum) all = {{part.maximum, all.found.bad}, chunk};
        all.found.bad = all.found.bad || part.bad;
    }
    return all;
}

std::uint64_t sum_raw_weights(const NodeView& node) {
    const Scaling raw = {1.0, static_cast<double>(node.maximum)};
    std::array<std::uint64_t, kMaxChunks> sums;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        sums[static_cast<std::size_t>(chunk)] =
            node.kernels.sum_weights(node.logits + first, raw, end - first);
    });
    std::uint64_t total = 0;
    for (std::int64_t chunk = 0; chunk < node.chunks(); ++chunk)
        total += sums[static_cast<std::size_t>(chunk)];
    return total;
}

struct Choice {
    std::int32_t token;
    // Σ of weights at temperature 1 over the whole vocabulary, where a filter came by it; or 0.
    std::uint64_t total;
};

// Draws from a node whose scan found something above -inf.
Choice choose(NodeView node, const NodeScan& scan, const NodeSampling& sampling) {
    node.maximum = scan.found.maximum;
    const float* first =
        std::find(node.logits + scan.chunk * kChunk, node.logits + node.vocabulary, node.maximum);
    const auto likeliest = static_cast<std::int32_t>(first - node.logits);
    if (!(sampling.temperature >= kGreedyBelow)) return {likeliest, 0};

    node.scaling.inverse = 1.0 / static_cast<double>(sampling.temperature);
    node.scaling.maximum = scaled(node.maximum, node.scaling.inverse);
    const bool limited = sampling.top_k > 0 && sampling.top_k < node.vocabulary;
    Prefix kept = everything();
    if (sampling.min_p > 0.0f) kept = min_p_prefix(node, sampling.min_p);
    if (limited) kept = top_k_prefix(node, kept, sampling.top_k);
    std::uint64_t total = 0;
    if (sampling.top_p < 1.0f) kept = top_p_prefix(node, kept, sampling.top_p, total);
    const bool whole = sampling.temperature == 1.0f && !limited && !(sampling.min_p > 0.0f);
    return {draw_among(node, sampling, kept, likeliest), whole ? total : 0};
}

// spare: [vocabulary], for adjusted logits.
Choice choose_adjusted(const NodeView& raw, const NodeSampling& sampling, float* spare) {
    NodeView node = raw;
    adjust(raw, sampling, spare);
    node.logits = spare;
    const NodeScan scan = scan_all(node);
    if (scan.found.maximum == -kInfinity) return {-1, 0};
    return {choose(node, scan, sampling).token, 0};
}

void report_top(const NodeView& raw, std::uint64_t total, std::span<TokenLogprob> top) {
    if (top.empty()) return;
    const TopList largest = largest_logits(raw, top.size());
    std::transform(
        largest.entries().begin(), largest.entries().end(), top.begin(),
        [&](const TokenLogit& entry) {
            return TokenLogprob{entry.token, log_probability(entry.logit, raw.maximum, total)};
        });
}

Draw sample_node(NodeView raw, const NodeSampling& sampling, float* spare) {
    check_node(sampling, raw.vocabulary);
    std::fill(sampling.top.begin(), sampling.top.end(), TokenLogprob{-1, -kInfinity});
    const NodeScan scan = scan_all(raw);
    if (scan.found.bad) return {-1, 0.0f, DrawFlag::bad_logits};
    if (scan.found.maximum == -kInfinity) return {-1, 0.0f, DrawFlag::nothing_left};
    raw.maximum = scan.found.maximum;

    Choice choice = {sampling.wanted, 0};
    if (sampling.wanted < 0)
        choice = is_adjusted(sampling) ? choose_adjusted(raw, sampling, spare)
                                       : choose(raw, scan, sampling);
    float logprob = std::numeric_limits<float>::quiet_NaN();
    if (asks_logprobs(sampling)) {
        const std::uint64_t total = choice.total != 0 ? choice.total : sum_raw_weights(raw);
        report_top(raw, total, sampling.top);
        if (choice.token >= 0)
            logprob = log_probability(raw.logits[choice.token], raw.maximum, total);
    }
    if (choice.token < 0) return {-1, 0.0f, DrawFlag::nothing_left};
    return {choice.token, logprob, DrawFlag::fine};
}

std::int64_t chunks_of(std::int64_t vocabulary) { return (vocabulary + kChunk - 1) / kChunk; }

// f32 of one worker's adjusted logits: whole cache lines.
std::int64_t spare_stride(std::int64_t vocabulary) { return (vocabulary + 15) / 16 * 16; }

}  // namespace

void sample_nodes(const KernelTable& kernels, OpContext& context, const Matrix& logits,
                  const NodeSampling* nodes, Draw* draws) {
    check_f32(logits, "logits");
    CHECK(logits.cols <= kMaxVocabulary, "a vocabulary of {}, at most {}", logits.cols,
          kMaxVocabulary);
    const auto view = [&](std::int64_t g, ThreadPool* pool, std::uint64_t* histograms) {
        return NodeView{kernels,   logits.row<float>(g), logits.cols, 0.0f, {1.0, 0.0}, pool,
                        histograms};
    };
    const Arena::Mark mark(context.arena);
    const std::int64_t stride = spare_stride(logits.cols);
    if (logits.rows >= context.device.workers()) {
        auto* spare = context.arena.take<float>(context.device.workers() * stride);
        pool_of(context).run(logits.rows, [&](std::int64_t g, int worker) {
            std::array<std::uint64_t, kHistogram> histogram;
            draws[g] =
                sample_node(view(g, nullptr, histogram.data()), nodes[g], spare + worker * stride);
        });
        return;
    }
    auto* spare = context.arena.take<float>(stride);
    auto* histograms = context.arena.take<std::uint64_t>(chunks_of(logits.cols) * kHistogram);
    for (std::int64_t g = 0; g < logits.rows; ++g)
        draws[g] = sample_node(view(g, &pool_of(context), histograms), nodes[g], spare);
}

std::size_t sampling_scratch_bytes(std::int64_t vocabulary, int workers) {
    const auto spare = static_cast<std::size_t>(workers * spare_stride(vocabulary)) * sizeof(float);
    const auto histograms =
        static_cast<std::size_t>(chunks_of(vocabulary) * kHistogram) * sizeof(std::uint64_t);
    return spare + (histograms + 63) / 64 * 64;  // the arena hands out whole cache lines
}

}  // namespace espalier::ops
