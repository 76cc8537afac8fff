// SPDX-License-Identifier: Apache-2.0
// The best of a token's index scores, by a radix search for the last one that is chosen. The choice
// is a function of the scores: descending, ties to the lower index, −0 as 0, NaN below all numbers.
#pragma once

#include <cstdint>

namespace espalier::mla::cpu {

// Indices of the `wanted` best of count > wanted scores, ascending. Returns true if a score is NaN.
bool choose_best(const float* scores, std::int64_t count, std::int64_t wanted,
                 std::int32_t* chosen);

}  // namespace espalier::mla::cpu
