// SPDX-License-Identifier: Apache-2.0
// How long a step takes, as a function of (rows, tokens): a curve over tokens, linear between fixed
// knots, plus a cost per row. Fitted to measurements at start-up, corrected by every step after.
// Pure: durations come in as data.
//
// seconds = scale · (curve(tokens) + per_row · rows). The one scale lets a machine that slows down
// as a whole (heat, a neighbour) be followed without visiting every knot again; otherwise the knots
// not visited would look cheap and speculation would rush there.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/error.hpp"

namespace espalier::speculate {

struct StepSample {
    std::int64_t rows = 0;
    std::int64_t tokens = 0;  // of all rows
    double seconds = 0;
};

class StepTime {
  public:
    // Dense where tiles of 16 and 64 rows show; linear beyond the last.
    static constexpr std::array<std::int64_t, 22> kKnots = {
        1,  2,  3,   4,   6,   8,   12,  16,   24,   32,   48,
        64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192};

    // Robust least squares in relative error; outliers (a page fault, a first touch) lose their
    // weight. Knots without samples continue their neighbours' slope. Refuses samples that are not
    // positive, and an empty list.
    static Expected<StepTime> fit(std::span<const StepSample> samples);

    // Positive, and not decreasing in tokens or rows.
    double seconds(std::int64_t rows, std::int64_t tokens) const;

    // Corrects the curve near the sample and the scale. One wild step moves the estimate by at most
    // a few times the usual scatter; a lasting change is followed within about fifty steps. A
    // sample that is not positive carries no information and changes nothing.
    void observe(const StepSample& sample);

  private:
    using Curve = std::array<double, kKnots.size()>;
    StepTime() = default;

    Curve raw_ = {};    // as fitted and corrected, seconds at scale 1
    Curve curve_ = {};  // nearest not decreasing curve
    double per_row_ = 0;
    double scale_ = 1;
    double scatter_ = 0.01;  // usual relative error
};

}  // namespace espalier::speculate
