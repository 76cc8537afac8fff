// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/adjust.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace espalier::ops {
namespace {

float kept_finite(float logit) {
    return std::clamp(logit, std::numeric_limits<float>::lowest(),
                      std::numeric_limits<float>::max());
}

float biased(float logit, float bias) {
    return logit == -kInfinity ? logit : kept_finite(logit + bias);
}

bool allows(const std::uint32_t* allowed, std::int32_t token) {
    return ((allowed[token / 32] >> (token % 32)) & 1u) != 0;
}

// Adjusts one row; `out_` is the row as far as it has come.
class Adjustment {
  public:
    Adjustment(const NodeView& node, const SamplingNode& sampling,
               const DraftVocabulary& vocabulary, float* out)
        : node_(node), sampling_(sampling), vocabulary_(vocabulary), out_(out) {}

    void copy_allowed() const {
        static_assert(kChunk % 32 == 0);  // a chunk begins with a word of the mask
        node_.for_chunks([&](std::int64_t, std::int64_t first, std::int64_t end) {
            if (sampling_.allowed == nullptr) {
                std::copy(node_.logits + first, node_.logits + end, out_ + first);
            } else if (vocabulary_.target_of == nullptr) {
                node_.kernels.keep_allowed(node_.logits + first, sampling_.allowed + first / 32,
                                           end - first, out_ + first);
            } else {
                for (std::int64_t i = first; i < end; ++i)
                    out_[i] = allows(sampling_.allowed, vocabulary_.target_of[i]) ? node_.logits[i]
                                                                                  : -kInfinity;
            }
        });
    }

    void add_biases() const {
        for (const LogitBias& entry : sampling_.biases)
            if (const std::int32_t at = place_of(entry.token); at >= 0)
                out_[at] = biased(out_[at], entry.bias);
    }

    void penalise() const {
        // Tokens of the path begin again where they were before the committed entries.
        std::array<float, kMaxDrafts> before;
        for (std::size_t i = 0; i < sampling_.changed.size(); ++i)
            if (const std::int32_t at = place_of(sampling_.changed[i].token); at >= 0)
                before[i] = out_[at];
        penalise(sampling_.committed, nullptr);
        penalise(sampling_.changed, before.data());
    }

    void ban() const {
        for (const std::int32_t token : sampling_.banned)
            if (const std::int32_t at = place_of(token); at >= 0) out_[at] = -kInfinity;
    }

  private:
    // Index of the token's logit, or -1.
    std::int32_t place_of(std::int32_t token) const {
        return vocabulary_.draft_of != nullptr ? vocabulary_.draft_of[token] : token;
    }

    // Penalises the tokens of `counts`, from the logits that `from` has for them, or where they are
    // if it is null. A block at a time: a token's sign and counts are coin tosses, so one by one
    // costs 8 ns for each; together they are the work of vectors.
    void penalise(std::span<const TokenCount> counts, const float* from) const {
        constexpr std::size_t kBlock = 128;
        const Penalties penalties = {.repetition = sampling_.repetition_penalty,
                                     .frequency = sampling_.frequency_penalty,
                                     .presence = sampling_.presence_penalty};
        std::array<float, kBlock> values;
        std::array<std::int32_t, kBlock> places, in_output, in_prompt;
        for (std::size_t first = 0; first < counts.size(); first += kBlock) {
            const std::size_t end = std::min(first + kBlock, counts.size());
            std::size_t found = 0;
            for (std::size_t i = first; i < end; ++i) {
                const std::int32_t at = place_of(counts[i].token);
                if (at < 0) continue;
                places[found] = at;
                values[found] = from != nullptr ? from[i] : out_[at];
                in_output[found] = counts[i].in_output;
                in_prompt[found] = static_cast<std::int32_t>(counts[i].in_prompt);
                ++found;
            }
            node_.kernels.penalise(values.data(), in_output.data(), in_prompt.data(), penalties,
                                   static_cast<std::int64_t>(found));
            for (std::size_t i = 0; i < found; ++i) out_[places[i]] = values[i];
        }
    }

    const NodeView& node_;
    const SamplingNode& sampling_;
    const DraftVocabulary& vocabulary_;
    float* out_;
};

}  // namespace

// The mask may come first: -inf stays -inf under a bias and a penalty.
void adjust(const NodeView& node, const SamplingNode& sampling, const DraftVocabulary& vocabulary,
            float* out) {
    const Adjustment adjustment(node, sampling, vocabulary, out);
    adjustment.copy_allowed();
    adjustment.add_biases();
    if (sampling.penalises()) adjustment.penalise();
    adjustment.ban();
}

}  // namespace espalier::ops
