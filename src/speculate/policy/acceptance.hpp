// SPDX-License-Identifier: Apache-2.0
// How often a drafter was right, per (drafter, plain or coupled, depth, rank, margin bucket). Pure
// counters with decay: fed with what the target drew, read when drafting is planned and proposals
// are merged. Estimates steer speed only.
//
// An estimate is the chance that a node is accepted *given that its parent is*. It shrinks towards
// what the same (drafter, rank, bucket) shows over all depths, and that towards a fixed guess, so a
// place never tried is neither trusted nor written off.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "speculate/drafter.hpp"
#include "speculate/policy/memory.hpp"

namespace espalier::speculate {

constexpr std::int32_t kDepthClasses = 16;  // depths from 16 on share one
constexpr std::int32_t kRankClasses = 4;    // ranks from 3 on share one
constexpr std::int32_t kMarginBuckets = 5;

// Place of a proposed node. rank: its place among its siblings by score, from 0. margin: how
// far its score lies above the best other sibling's (rank 0; with no sibling, above 0) or below it.
struct Place {
    DrafterId drafter = 0;
    std::uint8_t depth = 0;   // class, depth 1 is 0
    std::uint8_t rank = 0;    // class
    std::uint8_t bucket = 0;  // of |margin|
    bool coupled = false;     // drawn with the target's noise: other scores, other chances
};

// depth ≥ 1, rank ≥ 0, margin in [-1, 1].
Place place_of(DrafterId drafter, std::int32_t depth, std::int32_t rank, float margin,
               bool coupled = false);

class AcceptanceTable {
  public:
    // The last ~256 observations of a place count; older ones fade.
    static constexpr double kDecay = 1.0 - 1.0 / 256;
    // A place never tried counts its pooled estimate as this many observations, a pool never tried
    // the fixed guess.
    static constexpr double kPoolWeight = 8;
    static constexpr double kGuessWeight = 4;

    // In (0, 1).
    double estimate(const Place& place) const;
    void observe(const Place& place, bool accepted);
    // The chance, in (0, 1), that a drafter's choice of this rank at this depth is accepted given
    // that its parent is, whatever its margin: what can be expected before anything is drafted.
    double expected(DrafterId drafter, std::int32_t depth, std::int32_t rank,
                    bool coupled = false) const;
    // The chance, in (0, 1), that a drafter has the token where the others that proposed there do
    // not: what asking it too can add.
    double novelty(DrafterId drafter) const;
    void observe_novelty(DrafterId drafter, bool hit) { novel_.at(drafter).add(hit); }
    // A drafter that is asked only now and then: what it showed before counts a tenth less, so that
    // some thirty probes tell whether it has become right.
    void fade(DrafterId drafter);

    // A drafter's counters. Restored ones count as kRemembered observations at most, so that a
    // text of a few hundred tokens corrects them. False, and nothing restored: no such counters.
    static constexpr double kRemembered = 24;
    Numbers save(DrafterId drafter) const;
    bool restore(DrafterId drafter, std::span<const double> numbers);

  private:
    friend class AcceptanceInspection;  // tests count observations

    struct Counter {
        double tried = 0;
        double accepted = 0;
        void add(bool hit);
        double towards(double prior, double weight) const {
            return (accepted + prior * weight) / (tried + weight);
        }
    };
    using PerBucket = std::array<Counter, kMarginBuckets>;
    using PerRank = std::array<PerBucket, kRankClasses>;

    template <typename Visitor, typename Self>
    static void visit_counters(Visitor&& visit, Self& self, DrafterId drafter);

    // By drafter; coupled ones after all plain ones.
    static std::size_t row(DrafterId drafter, bool coupled) {
        return static_cast<std::size_t>(drafter + (coupled ? kMaxDrafters : 0));
    }

    std::array<std::array<PerRank, kDepthClasses>, 2 * kMaxDrafters> places_;
    std::array<PerRank, 2 * kMaxDrafters> pools_;
    std::array<Counter, kMaxDrafters> novel_;
};

// A proposed node below a node that was drawn, beside the token drawn there.
struct Comparison {
    Place place;
    std::int32_t level = 0;  // of the draw
    bool hit = false;
};

// Draws below nodes where a drafter had proposals, and the draws that it had among them.
struct Shown {
    std::int64_t places = 0, hits = 0;
};

class RequestBias;
// Counts comparisons, level by level: a level's proposals are expected by what was known before.
std::array<Shown, kMaxDrafters> observe(std::span<const Comparison> comparisons,
                                        AcceptanceTable& table, RequestBias& bias);

// Difference of a request from the table, per drafter: accepted over expected, with decay. Quoting
// and code editing sit above 1, text without repeats goes towards 0 within a dozen tokens, whatever
// other requests do.
class RequestBias {
  public:
    static constexpr double kDecay = 1.0 - 1.0 / 64;
    static constexpr double kWeight =
        2;  // expected acceptances before the request speaks for itself
    static constexpr double kLargest = 2;

    double factor(DrafterId drafter) const;  // in (0, kLargest]
    void observe(DrafterId drafter, double expected, bool accepted);
    // A step in which the drafter was not asked for this request: what it showed fades, so that in
    // some 250 steps it is asked once more.
    void relax(DrafterId drafter);

  private:
    struct Sum {
        double expected = 0;
        double accepted = 0;
    };
    std::array<Sum, kMaxDrafters> sums_ = {};
};

}  // namespace espalier::speculate
