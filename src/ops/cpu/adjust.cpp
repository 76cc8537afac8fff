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

float penalised(float logit, const NodeSampling& sampling, const TokenCount& count) {
    if (logit == -kInfinity || (!count.in_prompt && count.in_output == 0)) return logit;
    logit = kept_finite(logit > 0.0f ? logit / sampling.repetition_penalty
                                     : logit * sampling.repetition_penalty);
    if (count.in_output == 0) return logit;
    const float frequency = sampling.frequency_penalty * static_cast<float>(count.in_output);
    return kept_finite((logit - frequency) - sampling.presence_penalty);
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

void penalise(std::int64_t vocabulary, const NodeSampling& sampling, float* logits) {
    // The committed entries come first, so tokens of the path begin again where they were.
    std::array<float, kMaxChangedCounts> before;
    for (std::size_t i = 0; i < sampling.changed_counts.size(); ++i) {
        const std::int32_t token = sampling.changed_counts[i].token;
        check_token(token, vocabulary, "changed counts");
        before[i] = logits[token];
    }
    for (const TokenCount& count : sampling.committed_counts) {
        check_token(count.token, vocabulary, "committed counts");
        logits[count.token] = penalised(logits[count.token], sampling, count);
    }
    for (std::size_t i = 0; i < sampling.changed_counts.size(); ++i) {
        const TokenCount& count = sampling.changed_counts[i];
        logits[count.token] = penalised(before[i], sampling, count);
    }
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
    if (penalises(sampling)) penalise(node.vocabulary, sampling, out);
    for (const std::int32_t token : sampling.banned) {
        check_token(token, node.vocabulary, "banned");
        out[token] = -kInfinity;
    }
}

}  // namespace espalier::ops
