// SPDX-License-Identifier: Apache-2.0
// What two results may differ in: nothing (bits), or as much as the contract's accuracy allows.
// Differences are sentences.
#pragma once

#include <optional>
#include <string>

#include "conformance/run.hpp"

namespace espalier::conformance {

using Difference = std::optional<std::string>;

// Equality of bits of one token's outputs and lse (where both have it).
Difference bit_difference(const Result& a, std::int64_t a_token, const Result& b,
                          std::int64_t b_token);
Difference bit_difference(const Result& a, const Result& b);

// A token that must give exact zeros and -inf.
Difference not_nothing(const Result& result, std::int64_t token);

struct Limits {
    double relative_l2 = 0;
    double lse = 0;
};

// bf16 and fp16: the contract's bound. fp8: its bound with 16-bit probabilities, the default. lse:
// 1e-3 + 2^-18 · largest |score|. f32 into f32: scores are chains of 576 roundings of partial sums
// near 24, each 2^-25 relative: 24·24·2^-25·scale ≈ 1.3e-6 in a score and as much in its
// probability; sums over 5000 keys add √5000·2^-25 ≈ 2e-6, and without fused multiply-add all of it
// doubles: 1e-5 is three deviations. Peaked queries are 4 times as large, and so are their scores'
// errors.
Limits accuracy_limits(mla::KvFormat format, Spread spread, DType out_dtype, double largest_score);

struct Closeness {
    double worst = 0;  // error over its limit; 1 is the limit
    Difference beyond;
};

// Relative L2 per (token, head) and lse against the oracle, over tokens [first_token, tokens);
// where the oracle sees nothing, exact zeros and -inf.
Closeness closeness(const Result& result, const Result& oracle, const Limits& limits,
                    std::int64_t first_token = 0);

// Signal over noise of the whole output against the oracle, in dB.
double signal_to_noise(const Result& result, const Result& oracle);

}  // namespace espalier::conformance
