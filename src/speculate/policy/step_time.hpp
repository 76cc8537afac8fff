// SPDX-License-Identifier: Apache-2.0
// How long a step takes, as a function of rows, tokens and the keys these tokens see: a curve over
// tokens, linear between fixed knots, plus a cost per row and a cost per key. Fitted to the first
// measurements, corrected by every step after. Pure: durations come in as data.
//
// seconds = scale · (curve(tokens) + per_row · rows + per_key · keys). The one scale lets a machine
// that slows down as a whole (heat, a neighbour) be followed without visiting every knot again;
// otherwise the knots not visited would look cheap and speculation would rush there. The keys are
// what makes a draft dearer in a long context: where 8 tokens cost 1.6 times one token at depth 0,
// they cost 2.4 times as much at depth 1000.
//
// An estimate that is too low defends itself: what looks free is granted, and the time that it
// takes looks like a machine that has become slow as a whole. (Two hundred nodes in every step of
// eight texts, at 0.37 of plain decoding's rate, were seen for as long as the run lasted.) Two
// things prevent it: no token is computed faster than in the fastest prompt, and where no step has
// been of late, the first one there is believed and says nothing of the scale.
//
// An estimate that is too high is not visited, so nothing would correct it. A machine's neighbours
// make steps longer, never shorter: a step that takes twice what its size is known to take teaches
// nothing (until 48 of them outnumber the others: the machine has become slower as a whole), and
// one that takes half of it is believed at once.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.hpp"
#include "speculate/policy/memory.hpp"

namespace espalier::speculate {

struct StepSize {
    std::int64_t rows = 0;
    std::int64_t tokens = 0;  // of all rows
    // Pairs of a token and a key that it sees, in units of the arithmetic that a token costs beside
    // attention: so a key's cost can be guessed before contexts of several lengths were seen.
    double keys = 0;
};

struct StepSample {
    StepSize size = {};
    double seconds = 0;
};

class StepTime {
  public:
    // Dense where tiles of 16 and 64 rows show; linear beyond the last.
    static constexpr std::array<std::int64_t, 22> kKnots = {
        1,  2,  3,   4,   6,   8,   12,  16,   24,   32,   48,
        64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192};

    // Robust least squares in relative error; outliers (a page fault, a first touch) lose their
    // weight. Knots without samples continue their neighbours' slope, and a key costs what the
    // slope of the whole curve says, as far as the samples do not. Refuses samples that are not
    // positive, and an empty list.
    static Expected<StepTime> fit(std::span<const StepSample> samples);

    // The curve and the costs beside it. Nothing: the numbers are of no curve. A restored curve
    // counts as one sample at each place that was known, so that the first steps correct it.
    Numbers save() const;
    static std::optional<StepTime> restore(std::span<const double> numbers);

    // Positive, and not decreasing in rows, tokens or keys.
    double seconds(const StepSize& size) const;

    // Corrects the curve near the sample, the cost of a key by its part in the time, and the scale.
    // At a place with few samples the curve takes the mean of these and the scale stays. Elsewhere
    // one wild step moves the estimate by at most a few times the usual scatter; a lasting change
    // is followed within about fifty steps. A sample that is not positive carries no information
    // and changes nothing. Returns whether the step was disturbed: it took twice what was predicted
    // at a place that is known, or beside such steps.
    bool observe(const StepSample& sample);

  private:
    using Curve = std::array<double, kKnots.size()>;
    StepTime() = default;

    void visit(const StepSample& sample);
    bool disturbed(double ratio, bool known);

    Curve raw_ = {};    // as fitted and corrected, seconds at scale 1
    Curve curve_ = {};  // nearest not decreasing curve
    double per_row_ = 0;
    double per_key_ = 0;
    double least_ = 0;  // no step is shorter, at scale 1
    double scale_ = 1;
    double scatter_ = 0.01;  // usual relative error
    Curve samples_ = {};     // seen near each knot, of late
    // Seconds at scale 1 of a token of the fastest prompt; 0: none was seen.
    double prompt_token_ = 0;
    std::int64_t slow_steps_ = 0;      // disturbed ones of late, less the others
    std::int64_t believed_steps_ = 0;  // fine ones to come, until which slow ones are believed
};

}  // namespace espalier::speculate
