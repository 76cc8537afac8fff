// SPDX-License-Identifier: Apache-2.0
// A draw, exactly. The token at a position is argmax(l + G) over what a request's adjustments and
// filters leave, with Gumbel noise G that is a function of (seed, position, token id, choice)
// alone: so a draw does not depend on the batch, the tree or the device, and the target's choice
// can be drawn before a draft is asked about it.
//
// Order: raw logits → logit_bias → repetition penalty → frequency and presence penalty → bans →
// grammar → ÷ temperature → min-p → top-k → top-p → argmax(l + G), ties to the lower id.
// temperature < 1e-5 is greedy: argmax of the adjusted logits. G = −ln(−ln u), u = (x + ½)·2⁻³² in
// double, x the first word of Philox4x32-10 with key = seed and counter = (position, token id,
// choice, 0). What is reported (logprobs and alternatives) is the log-softmax of the raw logits.
//
// Adjusting a logit l, each line one or two f32 operations, each rounded:
//   l = l + bias
//   l = l > 0 ? l / repetition_penalty : l · repetition_penalty   (token in prompt or output)
//   l = (l − frequency_penalty · count) − presence_penalty        (token in output)
//   l = −inf                                            (banned, or not allowed by the grammar)
// A finite logit stays finite until the last line: where f32 ends, it stays at its largest or
// smallest number. A raw −inf stays −inf.
//
// So that every backend draws the same token, all of it is exact:
// - A scaled logit is the double l · (1 / temperature); this keeps the order of the adjusted
//   logits, ties included.
// - exp and ln are those of base/portable_math.hpp: plain double steps, the same bits everywhere.
// - A token's weight is the integer round(2⁴⁴ · exp(scaled − largest scaled)). Sums of integers are
//   exact in any order, so no backend needs to sort a vocabulary and threads cannot change a sum.
//   What rounding drops is below V · 2⁻⁴⁵ of the total, 5e-9 for 163,840 tokens: less than a float
//   top_p can say.
//
// min-p keeps p ≥ min_p · max p, as scaled − largest ≥ ln(min_p). top-k keeps the k largest, ties
// to the lower id. top-p keeps the smallest prefix of the descending order (ties by lower id) whose
// weight reaches top_p of the weight of all that min-p and top-k left, the crossing token included.
// Each filter keeps a prefix of that one order. Tokens with a logit of −inf are never drawn.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/limits.hpp"

namespace espalier::ops {

// Sums of this many integer weights are exact in 64 bits (draw.hpp).
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 19;

// Raised whenever the same logits and parameters draw another token than before: a trace of one
// version is not run again by another.
inline constexpr std::int32_t kSamplingVersion = 1;

inline constexpr std::int32_t kMaxTopLogprobs = 20;

struct LogitBias {
    std::int32_t token = 0;
    float bias = 0.0f;  // finite
    bool operator==(const LogitBias&) const = default;
};

// Number of times a token occurs in a request's output, and whether it occurs in the prompt.
struct TokenCount {
    std::int32_t token = 0;
    std::int32_t in_output = 0;
    bool in_prompt = false;
    bool operator==(const TokenCount&) const = default;
};

// Counts of a request as their owner keeps them, so that a copy can follow: entries are appended
// and rewritten, never moved.
struct CommittedCounts {
    std::span<const TokenCount> entries;  // each token once
    std::int64_t changes = 0;             // entries appended or rewritten so far, one by one
    // [change % kMaxNodes]: the entry that a change touched, for the last kMaxNodes changes.
    std::span<const std::int32_t> recent{};
};

struct TokenLogprob {
    std::int32_t token = -1;
    float logprob = 0.0f;
    bool operator==(const TokenLogprob&) const = default;
};

// The numbers of a request that its draws take. Device code reads them as they are.
struct DrawParameters {
    float temperature = 1.0f;
    float min_p = 0.0f;               // 0: off
    float top_p = 1.0f;               // 1: off
    std::int32_t top_k = 0;           // 0: off
    float repetition_penalty = 1.0f;  // > 0 and finite; 1: off
    float frequency_penalty = 0.0f;   // finite; 0: off
    float presence_penalty = 0.0f;    // finite; 0: off
    std::uint64_t seed = 0;

    // A penalty is on, so a draw needs counts of tokens.
    bool penalises() const {
        return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
    }
};

enum class DrawFlag : std::uint8_t {
    fine = 0,
    bad_logits,    // a NaN or +Inf raw logit: token is -1
    nothing_left,  // every logit is -inf, raw or adjusted: token is -1
};

struct Draw {
    std::int32_t token = -1;
    float logprob = 0.0f;  // log-softmax of the raw logits at token, from the sum of raw weights
    DrawFlag flag = DrawFlag::fine;
};

// Philox4x32-10 (Salmon et al., 2011).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key);

// G of the definition above.
double gumbel(std::uint64_t seed, std::int32_t position, std::int32_t token, std::int32_t choice);

}  // namespace espalier::ops
