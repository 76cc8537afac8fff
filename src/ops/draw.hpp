// SPDX-License-Identifier: Apache-2.0
// The small scalar pieces of a draw (ops/sampling.hpp has the definition) that the plain and the
// fast versions share: where they make a discrete choice, all must have the same bits.
#pragma once

#include <cstdint>

#include "base/portable_math.hpp"
#include "ops/sampling.hpp"

namespace espalier::ops {

inline constexpr float kGreedyBelow = 1e-5f;  // temperatures below are greedy

// Below 2⁴⁴ · 2¹⁹ every sum of weights is exact in 64 bits, in any order.
inline constexpr double kWeightOne = 0x1p44;

// round(2⁴⁴ · eᵈ) for d ≤ 0. Adding 2⁵² leaves the rounded integer in the low bits.
ESPALIER_FORCE_INLINE std::uint64_t weight_of(double d) {
    const double shifted = portable_exp(d) * kWeightOne + 0x1p52;
    return __builtin_bit_cast(std::uint64_t, shifted) - __builtin_bit_cast(std::uint64_t, 0x1p52);
}

// Number of buckets for a logit's distance below the maximum, 1/64 scaled unit each: monotone, and
// beyond 32 units (where weights are zero) everything shares the last one.
inline constexpr std::int32_t kBuckets = 2048;
inline constexpr float kBucketsPerUnit = 64.0f;
ESPALIER_FORCE_INLINE std::int32_t bucket_of(float logit, float maximum, float per_unit) {
    const float place = (maximum - logit) * per_unit;
    return static_cast<std::int32_t>(place < 2047.0f ? place : 2047.0f);
}

ESPALIER_FORCE_INLINE double scaled(float logit, double inverse) {
    return static_cast<double>(logit) * inverse;
}

// First word of Philox4x32-10, counter = (position, token, choice, 0), as loops can vectorise it.
ESPALIER_FORCE_INLINE std::uint32_t philox_word(std::uint64_t seed, std::int32_t position,
                                                std::int32_t token, std::int32_t choice) {
    std::uint32_t c0 = static_cast<std::uint32_t>(position);
    std::uint32_t c1 = static_cast<std::uint32_t>(token);
    std::uint32_t c2 = static_cast<std::uint32_t>(choice);
    std::uint32_t c3 = 0;
    std::uint32_t k0 = static_cast<std::uint32_t>(seed);
    std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = std::uint64_t{0xD2511F53u} * c0;
        const std::uint64_t second = std::uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<std::uint32_t>(second >> 32) ^ c1 ^ k0;
        c1 = static_cast<std::uint32_t>(second);
        c2 = static_cast<std::uint32_t>(first >> 32) ^ c3 ^ k1;
        c3 = static_cast<std::uint32_t>(first);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

// G from the random word.
constexpr double gumbel_of(std::uint32_t word) {
    const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
    return -portable_log(-portable_log(u));
}

// Log-softmax of the raw logits at `logit`, from the sum of all raw weights.
constexpr float log_probability(float logit, float maximum, std::uint64_t raw_total) {
    const double total = static_cast<double>(raw_total) * (1.0 / kWeightOne);
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(maximum) -
                              portable_log(total));
}

// A token's share of the weights, from its scaled distance to the largest logit.
constexpr float probability(double distance, std::uint64_t total) {
    return static_cast<float>(portable_exp(distance) /
                              (static_cast<double>(total) * (1.0 / kWeightOne)));
}

// Does a prefix of the descending order with this weight reach top_p of the whole?
constexpr bool reaches(std::uint64_t prefix, float top_p, std::uint64_t whole) {
    return static_cast<double>(prefix) >= static_cast<double>(top_p) * static_cast<double>(whole);
}

// The smallest scaled distance from the maximum that min-p keeps.
constexpr double min_p_distance(float min_p) {
    return portable_log(static_cast<double>(min_p < 1.0f ? min_p : 1.0f));
}

}  // namespace espalier::ops
