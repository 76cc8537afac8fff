// SPDX-License-Identifier: Apache-2.0
// A draw, exactly. The token at a position is argmax(l + G) over what temperature, min-p, top-k and
// top-p leave, with Gumbel noise G that is a function of (seed, position, token id, choice) alone:
// so a draw does not depend on the batch, the tree or the device, and the target's choice can be
// drawn before a draft is asked about it.
//
// Order: raw logits ÷ temperature → min-p → top-k → top-p → argmax(l + G), ties to the lower id.
// temperature < 1e-5 is greedy: argmax of raw. G = −ln(−ln u), u = (x + ½)·2⁻³² in double, x the
// first word of Philox4x32-10 with key = seed and counter = (position, token id, choice, 0).
//
// So that every backend draws the same token, all of it is exact:
// - A scaled logit is the double raw · (1 / temperature); this keeps the order of the raw logits,
//   ties included.
// - exp and ln are those of ops/portable_math.hpp: plain double steps, the same bits everywhere.
// - A token's weight is the integer round(2⁴⁴ · exp(scaled − largest scaled)). Sums of integers are
//   exact in any order, so no backend needs to sort a vocabulary and threads cannot change a sum.
//   What rounding drops is below V · 2⁻⁴⁵ of the total, 5e-9 for 163,840 tokens: less than a float
//   top_p can say.
//
// min-p keeps p ≥ min_p · max p, as scaled − largest ≥ ln(min_p). top-k keeps the k largest, ties
// to the lower id. top-p keeps the smallest prefix of the descending order (ties by lower id) whose
// weight reaches top_p of the weight of all that min-p and top-k left, the crossing token included.
// Each filter keeps a prefix of that one order. Tokens with a raw logit of −inf are never drawn.
#pragma once

#include <array>
#include <cstdint>

namespace espalier::ops {

// Sums of so many integer weights are exact in 64 bits (draw.hpp).
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 19;

struct NodeSampling {
    float temperature = 1.0f;
    float min_p = 0.0f;      // 0: off
    float top_p = 1.0f;      // 1: off
    std::int32_t top_k = 0;  // 0: off
    std::uint64_t seed = 0;
    std::int32_t position = 0;  // of the token that is drawn
    std::int32_t choice = 0;    // which of n parallel answers
};

enum class DrawFlag : std::uint8_t {
    fine = 0,
    bad_logits,    // a NaN or +Inf raw logit: token is -1
    nothing_left,  // every logit is -inf: token is -1
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
