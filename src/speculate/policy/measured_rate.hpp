// SPDX-License-Identifier: Apache-2.0
// Which ways of decoding pay, by what steps came to: tokens committed over all time spent. Plans
// are made from a model of a step, and no model knows all that drafting costs (the host's work for
// each row, caches that a draft model's weights displace, threads that wake up), while the best of
// many plans is the one whose estimate is most in error. Measured: 128 texts on an H200 with drafts
// that were predicted to gain ran at half of plain decoding's rate for as long as they lasted;
// Sapling on two cores at temperature 2 was 8 % slower than without.
//
// So a way that turns out slower than a simpler one is suspended: for 128 steps, and for twice as
// long each time that it fails again. A verdict waits until it is sure: one text accepts 0 to 6
// drafts a step, so its rate is known to 20 % after 16 steps, that of 128 texts to 2 %. By steps of
// about 1, 2, 4, 8, … rows: 128 clients, of whom one or two are in their prompts, are in the middle
// of a class and not between two. Pure: tokens and durations come in as data.
//
// A step counts for the way that it was allowed, chosen before anything was proposed, and not for
// what was asked in it: draft models are asked where the n-grams have nothing, which is where texts
// are hard, and seemed to be worth half of what they are. Draft models cost even where they are not
// asked, by looking on and by being planned for; drafters for nothing, by reading what was
// committed. That is taken out of the time of the ways that could do without.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "speculate/policy/memory.hpp"

namespace espalier::speculate {

// Work of a step beside plain decoding; each way includes the ones before it.
enum class DraftingWay : std::uint8_t {
    none,
    free,    // drafters that cost nothing
    passes,  // drafters with passes of their own
};

class MeasuredRate {
  public:
    // Every few steps one goes a simpler way than the best, because the simpler way's rate
    // would otherwise stay what it was at the beginning.
    static constexpr std::int64_t kSimplerEvery = 32;

    // The most expensive way that the next step of `rows` rows may go.
    struct Question {
        bool free = false, passes = false;  // kinds of drafters that the engine has
        bool counts = true;        // the step can be observed, so a simpler way may be tried
        double plain_seconds = 0;  // prediction of a plain step; 0: none
    };
    DraftingWay next(std::int64_t rows, const Question& question);
    // True if this way is suspended for steps of `rows` rows.
    bool suspended(std::int64_t rows, DraftingWay way) const { return pause(rows, way) > 0; }
    // A way that is suspended for longer than this many steps is so for these alone.
    void hasten(std::int64_t rows, DraftingWay way, std::int64_t steps);
    // For how many more such steps it is suspended.
    std::int64_t pause(std::int64_t rows, DraftingWay way) const;

    // Seconds of a step's drafters beside drafting: reading, and keeping a draft model's KV.
    struct Upkeep {
        double reading = 0, look_on = 0;
    };
    // One step: the way it went, its tokens, its seconds without prompts but with upkeep.
    struct Step {
        DraftingWay way = DraftingWay::none;
        double tokens = 0, seconds = 0;
        Upkeep upkeep = {};
    };
    void observe(std::int64_t rows, const Step& step);
    // Sums of tokens and seconds by rows and way; no pause. Restored ones count as kRemembered
    // steps at most. False, and nothing restored: no such sums.
    static constexpr double kRemembered = 12;
    Numbers save() const;
    bool restore(std::span<const double> numbers);

  private:
    static constexpr std::int64_t kWays = 3;
    static constexpr std::int64_t kFirstPause = 128, kLongestPause = 4096;

    struct Way {
        // Sums over the steps of late; the last three are of squares and products.
        double steps = 0, tokens = 0, seconds = 0, tokens2 = 0, both = 0, seconds2 = 0;
        std::int64_t since = 0;    // steps that went another way
        std::int64_t resumes = 0;  // suspended up to this step
        std::int64_t pause = kFirstPause;
        double rate() const { return tokens / seconds; }
        double error() const;  // of the rate, relative
        void add(double step_tokens, double step_seconds);
    };
    struct Rows {
        std::array<Way, kWays> ways;
        std::int64_t steps = 0;
    };
    static const Way* best_below(const Rows& rows, std::size_t way);
    void judge(Rows& rows, std::size_t way);
    static std::size_t index_of(std::int64_t rows);

    static constexpr std::size_t kRowClasses = 12;
    std::array<Rows, kRowClasses> rows_;
};

}  // namespace espalier::speculate
