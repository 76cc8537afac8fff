// SPDX-License-Identifier: Apache-2.0
// Weights made smaller: a matrix rounded to int8 or int4 in groups of 32 inputs, in the layout of
// compressed-tensors. A group has one scale, a bf16 number; a weight becomes the nearest code, ties
// to even. Int8: the scale is the largest magnitude over 127.5, half the range of codes. Int4: of
// that (over 7.5), of the number of the largest magnitude over −7, −8, −8.5 and −9, and of the
// scale that fits the best one's codes in least squares, the one that leaves the least squared
// error. Scales of int4 may so be negative: the range has a code more below zero than above.
#pragma once

#include <vector>

#include "base/thread_pool.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

inline constexpr std::int64_t kRoundedGroup = 32;

// Output n of a source in f32: k numbers, scales included (one rounding each).
void widen_output(const WeightSource& source, std::int64_t n, float* to);

// Codes and scales as they lie in a file: int8 as it is; int4 plus 8, eight to a word.
class RoundedWeight {
  public:
    // code: int8 or int4. The source is read on the pool. NaN and infinity are an error.
    static Expected<RoundedWeight> round(ThreadPool& pool, const WeightSource& source,
                                         WeightCode code);

    WeightSource source() const;
    std::span<const std::byte> codes() const { return codes_; }    // [n, row_stride]
    std::span<const std::byte> scales() const { return scales_; }  // [n, groups] bf16

  private:
    WeightCode code_ = WeightCode::int8;
    std::int64_t n_ = 0, k_ = 0;
    std::int64_t row_stride_ = 0;  // weights
    std::vector<std::byte> codes_, scales_;
};

}  // namespace espalier::linalg
