// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/adjust.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool penalises(const NodeSampling& sampling) {
    return sampling.repetition_penalty != 1.0f || sampling.frequency_penalty != 0.0f ||
           sampling.presence_penalty != 0.0f;
}

float kept_finite(float logit) {
    return std::clamp(logit, std::numeric_limits<float>::lowest(),
                      std::numeric_limits<float>::max());
}

float biased(float logit, float bias) {
    return logit == -kInfinity ? logit : kept_finite(logit + bias);
}

void copy_allowed(const NodeView& node, const std::uint32_t* allowed, float* out) {
    static_assert(kChunk % 32 == 0);  // a chunk begins with a word of the mask
    node.for_chunks([&](std::int64_t, std::int64_t first, std::int64_t end) {
        if (allowed == nullptr) {
            std::copy(node.logits + first, node.logits + end, out + first);
        } else {
            node.kernels.keep_allowed(node.logits + first, allowed + first / 32, end - first,
                                      out + first);
        }
    });
}

// Penalises logits[count.token], from the logits that `from` has for the entries, or where they
// are if it is null. A block at a time: a token's sign and counts are coin tosses, so one by one
// costs 8 ns for each; together they are the work of vectors.
void penalise(const NodeView& node, const NodeSampling& sampling,
              std::span<const TokenCount> counts, const float* from, float* logits) {
    constexpr std::size_t kBlock = 128;
    const Penalties penalties = {sampling.repetition_penalty, sampling.frequency_penalty,
                                 sampling.presence_penalty};
    std::array<float, kBlock> values;
    std::array<std::int32_t, kBlock> in_output, in_prompt;
    for (std::size_t first = 0; first < counts.size(); first += kBlock) {
        const auto block = counts.subspan(first, std::min(kBlock, counts.size() - first));
        for (std::size_t i = 0; i < block.size(); ++i) {
            check_token(block[i].token, node.vocabulary, "counts");
            values[i] = from != nullptr ? from[first + i] : logits[block[i].token];
            in_output[i] = block[i].in_output;
            in_prompt[i] = static_cast<std::int32_t>(block[i].in_prompt);
        }
        node.kernels.penalise(values.data(), in_output.data(), in_prompt.data(), penalties,
                              static_cast<std::int64_t>(block.size()));
        for (std::size_t i = 0; i < block.size(); ++i) logits[block[i].token] = values[i];
    }
}

void penalise_path(const NodeView& node, const NodeSampling& sampling, float* logits) {
    // Tokens of the path begin again where they were before the committed entries.
    std::array<float, kMaxDrafts> before;
    for (std::size_t i = 0; i < sampling.changed_counts.size(); ++i) {
        check_token(sampling.changed_counts[i].token, node.vocabulary, "changed counts");
        before[i] = logits[sampling.changed_counts[i].token];
    }
    penalise(node, sampling, sampling.committed_counts, nullptr, logits);
    penalise(node, sampling, sampling.changed_counts, before.data(), logits);
}

}  // namespace

bool is_adjusted(const NodeSampling& sampling) {
    return !sampling.logit_bias.empty() || !sampling.banned.empty() ||
           sampling.allowed != nullptr || penalises(sampling);
}

// The mask may come first: -inf stays -inf under a bias and a penalty.
void adjust(const NodeView& node, const NodeSampling& sampling, float* out) {
    copy_allowed(node, sampling.allowed, out);
    for (const LogitBias& entry : sampling.logit_bias) {
        check_token(entry.token, node.vocabulary, "logit bias");
        CHECK(std::isfinite(entry.bias), "a logit bias of {}", entry.bias);
        out[entry.token] = biased(out[entry.token], entry.bias);
    }
    if (penalises(sampling)) penalise_path(node, sampling, out);
    for (const std::int32_t token : sampling.banned) {
        check_token(token, node.vocabulary, "banned");
        out[token] = -kInfinity;
    }
}

}  // namespace espalier::ops
