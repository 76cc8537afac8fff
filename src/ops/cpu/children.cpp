// SPDX-License-Identifier: Apache-2.0
// Passes: largest logit and health · adjustments, if any (cpu/adjust) · the best scores, block by
// block · weights, for the probabilities.
#include "ops/cpu/children.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/cpu/adjust.hpp"
#include "ops/cpu/node_view.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

constexpr double kMostNoise = 24.0;  // G ≤ −ln(2⁻³³) < 23

struct Scored {
    double score;
    std::int32_t token;  // the target's id
    std::int32_t index;  // of its logit

    bool before(const Scored& other) const {
        return score > other.score || (score == other.score && token < other.token);
    }
};

// The `capacity` best of what it was offered, in their order.
class BestScores {
  public:
    explicit BestScores(std::size_t capacity = 0) : capacity_(capacity) {}

    bool full() const { return count_ == capacity_; }
    // A lower score cannot enter; an equal one may, by its id.
    double least() const {
        return full() ? entries_[count_ - 1].score : -std::numeric_limits<double>::infinity();
    }
    void offer(const Scored& candidate) {
        if (full() && !candidate.before(entries_[count_ - 1])) return;
        std::size_t place = full() ? count_ - 1 : count_++;
        for (; place > 0 && candidate.before(entries_[place - 1]); --place)
            entries_[place] = entries_[place - 1];
        entries_[place] = candidate;
    }
    std::span<const Scored> entries() const { return {entries_.data(), count_}; }

  private:
    std::array<Scored, kMaxDrafts> entries_;
    std::size_t capacity_;
    std::size_t count_ = 0;
};

// Offers one node's logits to a list.
class ChildSearch {
  public:
    ChildSearch(const NodeView& node, const SamplingNode& sampling,
                const DraftVocabulary& vocabulary, bool noisy)
        : node_(node), sampling_(sampling), vocabulary_(vocabulary), noisy_(noisy) {}

    BestScores operator()(std::size_t width) const {
        BestScores best(width);
        if (node_.pool == nullptr) {
            search(0, node_.vocabulary, best);
            return best;
        }
        std::array<BestScores, kMaxChunks> parts;
        node_.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
            BestScores& part = parts[static_cast<std::size_t>(chunk)];
            part = BestScores(width);
            search(first, end, part);
        });
        for (std::int64_t chunk = 0; chunk < node_.chunks(); ++chunk)
            for (const Scored& entry : parts[static_cast<std::size_t>(chunk)].entries())
                best.offer(entry);
        return best;
    }

  private:
    void search(std::int64_t first, std::int64_t end, BestScores& best) const {
        for (std::int64_t at = first; at < end; at += kScan) {
            const std::int64_t block_end = std::min(at + kScan, end);
            const float most = node_.kernels.scan(node_.logits + at, block_end - at).maximum;
            if (most == -kInfinity || !reaches(most, best)) continue;
            // Scores so large that noise is rounded away tie, and equal ones are decided by ids:
            // the margin below knows nothing of them.
            if (noisy_ && best.full() && std::abs(best.least()) < 0x1p29) {
                offer_survivors(at, block_end, best);
            } else {
                offer_all(at, block_end, best);
            }
        }
    }

    // True if a token with this logit may enter, whatever its noise.
    bool reaches(float logit, const BestScores& best) const {
        return scaled(logit, node_.scaling.inverse) + (noisy_ ? kMostNoise : 0.0) >= best.least();
    }

    std::int32_t token_of(std::int64_t index) const {
        return vocabulary_.target_of != nullptr ? vocabulary_.target_of[index]
                                                : static_cast<std::int32_t>(index);
    }

    void offer_all(std::int64_t first, std::int64_t end, BestScores& best) const {
        for (std::int64_t i = first; i < end; ++i) {
            const float logit = node_.logits[i];
            if (logit == -kInfinity || !reaches(logit, best)) continue;
            const std::int32_t token = token_of(i);
            double score = scaled(logit, node_.scaling.inverse);
            if (noisy_)
                score += gumbel(sampling_.seed, sampling_.position, token, sampling_.choice);
            best.offer({score, token, static_cast<std::int32_t>(i)});
        }
    }

    // As in cpu/sample.cpp: −ln u ≥ 1 − u, so a token can reach the least score of the list only if
    // 1 − u ≤ exp(scaled − least), and few logarithms are left to take.
    void offer_survivors(std::int64_t first, std::int64_t end, BestScores& best) const {
        constexpr float kMargin = 1.0f + 0x1p-16f;
        const std::int64_t count = end - first;
        const float* logits = node_.logits + first;
        std::array<std::int32_t, kScan> tokens;
        std::array<std::uint32_t, kScan> words;
        std::array<float, kScan> margins;
        for (std::int64_t i = 0; i < count; ++i)
            tokens[static_cast<std::size_t>(i)] = token_of(first + i);
        node_.kernels.philox(tokens.data(), count, sampling_.seed, sampling_.position,
                             sampling_.choice, words.data());
        node_.kernels.bound_margins(logits, words.data(),
                                    {.inverse = node_.scaling.inverse, .maximum = best.least()},
                                    kMargin, count, margins.data());
        if (node_.kernels.scan(margins.data(), count).maximum < 0.0f) return;
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
            if (margins[i] < 0.0f) continue;
            best.offer({scaled(logits[i], node_.scaling.inverse) + gumbel_of(words[i]), tokens[i],
                        static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i)});
        }
    }

    const NodeView& node_;
    const SamplingNode& sampling_;
    const DraftVocabulary& vocabulary_;
    bool noisy_;
};

// spare: [vocabulary], for adjusted logits.
void find_children(NodeView node, const SamplingNode& sampling, const DraftVocabulary& vocabulary,
                   bool coupled, float* spare, std::span<DraftChild> children) {
    std::fill(children.begin(), children.end(), DraftChild{});
    if (sampling.wanted == kPad) return;
    LogitScan found = scan_all(node).found;
    if (found.bad) return;
    if (sampling.is_adjusted()) {
        adjust(node, sampling, vocabulary, spare);
        node.logits = spare;
        found = scan_all(node).found;
    }
    if (found.maximum == -kInfinity) return;

    const bool greedy = !(sampling.temperature >= kGreedyBelow);
    node.maximum = found.maximum;
    node.scaling.inverse = greedy ? 1.0 : 1.0 / static_cast<double>(sampling.temperature);
    node.scaling.maximum = scaled(node.maximum, node.scaling.inverse);
    const BestScores best =
        ChildSearch(node, sampling, vocabulary, coupled && !greedy)(children.size());
    const std::uint64_t total = sum_weights(node);
    std::transform(
        best.entries().begin(), best.entries().end(), children.begin(), [&](const Scored& entry) {
            const double logit = scaled(node.logits[entry.index], node.scaling.inverse);
            return DraftChild{.score = entry.score,
                              .token = entry.token,
                              .probability = probability(logit - node.scaling.maximum, total)};
        });
}

}  // namespace

void draft_children(const KernelTable& kernels, OpContext& context, const Matrix& logits,
                    const SamplingBatch& batch, const DraftVocabulary& vocabulary,
                    const DraftRule& rule, DraftChild* children) {
    check_draft(logits, batch, vocabulary, rule);
    apply_count_updates(batch);
    for_nodes(kernels, context, logits, [&](std::int64_t g, const NodeView& node, float* spare) {
        find_children(node, node_of(batch, g), vocabulary, rule.coupled, spare,
                      {children + g * rule.width, static_cast<std::size_t>(rule.width)});
    });
}

}  // namespace espalier::ops
