// SPDX-License-Identifier: Apache-2.0
// Passes: largest logit and health · adjustments, if any (cpu/adjust) · filters (cpu/prefix) ·
// noise · weights of raw · alternatives, if asked for (cpu/top).
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
    GumbelArgmax(const NodeView& node, const SamplingNode& sampling, Best start)
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
        if (count_ >= kScan) run(logits_.data());
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
    const SamplingNode& sampling_;
    Best best_;
    float bound_ = 0.0f;
    std::size_t count_ = 0;
    std::array<std::int32_t, 2 * kScan> tokens_;
    std::array<float, 2 * kScan> logits_;
    std::array<std::uint32_t, 2 * kScan> words_;
    std::array<float, 2 * kScan> margins_;
};

// argmax of scaled + G over the prefix.
std::int32_t draw_among(const NodeView& node, const SamplingNode& sampling, const Prefix& kept,
                        std::int32_t likeliest) {
    const Best start = {
        node.scaling.maximum + gumbel(sampling.seed, sampling.position, likeliest, sampling.choice),
        likeliest};
    // Under a grammar most blocks may be empty: then they are skipped as a filter skips them.
    const bool all = kept == everything() && sampling.allowed == nullptr;
    std::array<Best, kMaxChunks> best;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        GumbelArgmax argmax(node, sampling, start);
        for (std::int64_t at = first; at < end; at += kScan) {
            const std::int64_t block_end = std::min(at + kScan, end);
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

struct Choice {
    std::int32_t token;
    // Σ of weights at temperature 1 over the whole vocabulary, where a filter came by it; or 0.
    std::uint64_t total;
};

// Draws from a node whose scan found something above -inf.
Choice choose(NodeView node, const NodeScan& scan, const SamplingNode& sampling) {
    node.maximum = scan.found.maximum;
    const float* first =
        std::find(node.logits + scan.chunk * kChunk, node.logits + node.vocabulary, node.maximum);
    const auto likeliest = static_cast<std::int32_t>(first - node.logits);
    if (!(sampling.temperature >= kGreedyBelow)) return {likeliest, 0};

    node.scaling.inverse = 1.0 / static_cast<double>(sampling.temperature);
    node.scaling.maximum = scaled(node.maximum, node.scaling.inverse);
    const bool limited = sampling.top_k > 0 && sampling.top_k < node.vocabulary;
    Prefix kept = everything();
    if (sampling.min_p > 0.0f) kept = distance_prefix(node, min_p_distance(sampling.min_p));
    if (limited) kept = top_k_prefix(node, kept, sampling.top_k);
    std::uint64_t total = 0;
    if (sampling.top_p < 1.0f) kept = top_p_prefix(node, kept, sampling.top_p, total);
    const bool whole = sampling.temperature == 1.0f && !limited && !(sampling.min_p > 0.0f);
    return {draw_among(node, sampling, kept, likeliest), whole ? total : 0};
}

// spare: [vocabulary], for adjusted logits.
Choice choose_adjusted(const NodeView& raw, const SamplingNode& sampling, float* spare) {
    NodeView node = raw;
    adjust(raw, sampling, {}, spare);
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

Draw sample_node(NodeView raw, const SamplingNode& sampling, std::span<TokenLogprob> alternatives,
                 float* spare) {
    std::fill(alternatives.begin(), alternatives.end(), TokenLogprob{-1, -kInfinity});
    if (sampling.wanted == kPad) return {};
    const NodeScan scan = scan_all(raw);
    if (scan.found.bad) return {-1, 0.0f, DrawFlag::bad_logits};
    if (scan.found.maximum == -kInfinity) return {-1, 0.0f, DrawFlag::nothing_left};
    raw.maximum = scan.found.maximum;

    Choice choice = {sampling.wanted, 0};
    if (sampling.wanted < 0)
        choice = sampling.is_adjusted() ? choose_adjusted(raw, sampling, spare)
                                        : choose(raw, scan, sampling);
    float logprob = std::numeric_limits<float>::quiet_NaN();
    if (sampling.logprob || !alternatives.empty() || sampling.wanted >= 0) {
        raw.scaling = {1.0, static_cast<double>(raw.maximum)};
        const std::uint64_t total = choice.total != 0 ? choice.total : sum_weights(raw);
        report_top(raw, total, alternatives);
        if (choice.token >= 0)
            logprob = log_probability(raw.logits[choice.token], raw.maximum, total);
    }
    if (choice.token < 0) return {-1, 0.0f, DrawFlag::nothing_left};
    return {choice.token, logprob, DrawFlag::fine};
}

}  // namespace

void sample_nodes(const KernelTable& kernels, OpContext& context, const Matrix& logits,
                  const SamplingBatch& batch) {
    check_sampling(logits, batch);
    check_size(logits.cols, batch.vocabulary, "logits");
    apply_count_updates(batch);
    for_nodes(kernels, context, logits, [&](std::int64_t g, const NodeView& node, float* spare) {
        batch.draws[g] = sample_node(node, node_of(batch, g), alternatives_of(batch, g), spare);
    });
}

}  // namespace espalier::ops
