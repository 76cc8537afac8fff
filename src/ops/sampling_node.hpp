// SPDX-License-Identifier: Apache-2.0
// One node of a SamplingBatch as the backends that run on the host read it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "ops/sampling_batch.hpp"

namespace espalier::ops {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Names are those of SamplingBatch. Everything is borrowed from the batch.
struct SamplingNode : DrawParameters {
    std::int32_t position = 0;
    std::int32_t choice = 0;
    std::int32_t wanted = kDraw;
    bool logprob = true;
    std::span<const LogitBias> biases;
    std::span<const std::int32_t> banned;
    std::span<const TokenCount> committed;
    std::span<const TokenCount> changed;
    const std::uint32_t* allowed = nullptr;  // null: everything

    bool is_adjusted() const {
        return !biases.empty() || !banned.empty() || allowed != nullptr || penalises();
    }
};

SamplingNode node_of(const SamplingBatch& batch, std::int64_t g);

inline std::span<TokenLogprob> alternatives_of(const SamplingBatch& batch, std::int64_t g) {
    return {batch.alternatives + batch.reported[g].first, batch.reported[g].count};
}

// Before the first node is read.
void apply_count_updates(const SamplingBatch& batch);

}  // namespace espalier::ops
