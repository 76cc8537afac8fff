// SPDX-License-Identifier: Apache-2.0
// Counters of acceptance, their shrinkage and the guesses they start from.
#include "speculate/policy/acceptance.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

constexpr std::array<float, kMarginBuckets - 1> kBucketEnds = {0.1f, 0.25f, 0.5f, 0.75f};
constexpr std::array<double, kMarginBuckets> kBucketMiddles = {0.05, 0.175, 0.375, 0.625, 0.875};

// Before anything is measured. First choices: a third of those with no margin are right, four in
// five of the surest. Others: what the first choice probably leaves, thinner with every rank.
double guess(std::int32_t rank, std::int32_t bucket) {
    const double middle = kBucketMiddles[static_cast<std::size_t>(bucket)];
    const double first = 0.33 + 0.55 * middle;
    return rank == 0 ? first : 0.3 * (1 - middle) / (rank * rank);
}

}  // namespace

Place place_of(DrafterId drafter, std::int32_t depth, std::int32_t rank, float margin,
               bool coupled) {
    CHECK(drafter < kMaxDrafters, "drafter {} of {}", drafter, kMaxDrafters);
    CHECK(depth >= 1 && rank >= 0, "depth {}, rank {}", depth, rank);
    const float distance = std::abs(margin);
    const auto bucket = std::count_if(kBucketEnds.begin(), kBucketEnds.end(),
                                      [&](float end) { return distance >= end; });
    return Place{drafter, static_cast<std::uint8_t>(std::min(depth, kDepthClasses) - 1),
                 static_cast<std::uint8_t>(std::min(rank, kRankClasses - 1)),
                 static_cast<std::uint8_t>(bucket), coupled};
}

void AcceptanceTable::Counter::add(bool hit) {
    tried = tried * kDecay + 1;
    accepted = accepted * kDecay + (hit ? 1 : 0);
}

double AcceptanceTable::estimate(const Place& p) const {
    const std::size_t which = row(p.drafter, p.coupled);
    const double pooled =
        pools_.at(which).at(p.rank).at(p.bucket).towards(guess(p.rank, p.bucket), kGuessWeight);
    return places_.at(which).at(p.depth).at(p.rank).at(p.bucket).towards(pooled, kPoolWeight);
}

void AcceptanceTable::observe(const Place& p, bool accepted) {
    const std::size_t which = row(p.drafter, p.coupled);
    places_.at(which).at(p.depth).at(p.rank).at(p.bucket).add(accepted);
    pools_.at(which).at(p.rank).at(p.bucket).add(accepted);
}

double AcceptanceTable::expected(DrafterId drafter, std::int32_t depth, std::int32_t rank,
                                 bool coupled) const {
    const Place place = place_of(drafter, depth, rank, 0);
    const std::size_t which = row(drafter, coupled);
    const auto all_margins = [](const PerBucket& buckets) {
        Counter sum;
        for (const Counter& one : buckets) {
            sum.tried += one.tried;
            sum.accepted += one.accepted;
        }
        return sum;
    };
    const double pooled = all_margins(pools_.at(which).at(place.rank))
                              .towards(guess(rank, kMarginBuckets / 2), kGuessWeight);
    return all_margins(places_.at(which).at(place.depth).at(place.rank))
        .towards(pooled, kPoolWeight);
}

double AcceptanceTable::novelty(DrafterId drafter) const {
    constexpr double kGuess = 0.25;
    return novel_.at(drafter).towards(kGuess, kPoolWeight);
}

void AcceptanceTable::fade(DrafterId drafter) {
    constexpr double kKept = 0.9;
    const auto fade_ranks = [](PerRank& ranks) {
        for (PerBucket& buckets : ranks)
            for (Counter& one : buckets) {
                one.tried *= kKept;
                one.accepted *= kKept;
            }
    };
    for (const bool coupled : {false, true}) {
        for (PerRank& ranks : places_.at(row(drafter, coupled))) fade_ranks(ranks);
        fade_ranks(pools_.at(row(drafter, coupled)));
    }
}

template <typename Visitor, typename Self>
void AcceptanceTable::visit_counters(Visitor&& visit, Self& self, DrafterId drafter) {
    for (const bool coupled : {false, true}) {
        for (auto& buckets : self.pools_.at(row(drafter, coupled)))
            for (auto& one : buckets) visit(one);
        for (auto& ranks : self.places_.at(row(drafter, coupled)))
            for (auto& buckets : ranks)
                for (auto& one : buckets) visit(one);
    }
    visit(self.novel_.at(drafter));
}

Numbers AcceptanceTable::save(DrafterId drafter) const {
    Numbers numbers;
    visit_counters(
        [&](const Counter& one) {
            numbers.push_back(one.tried);
            numbers.push_back(one.accepted);
        },
        *this, drafter);
    return numbers;
}

bool AcceptanceTable::restore(DrafterId drafter, std::span<const double> numbers) {
    std::size_t counters = 0;
    visit_counters([&](const Counter&) { ++counters; }, *this, drafter);
    if (numbers.size() != 2 * counters || !are_plausible(numbers)) return false;
    for (std::size_t i = 0; i < numbers.size(); i += 2)
        if (numbers[i + 1] > numbers[i]) return false;
    std::size_t at = 0;
    visit_counters(
        [&](Counter& one) {
            const double tried = numbers[at], accepted = numbers[at + 1];
            const double kept = tried > kRemembered ? kRemembered / tried : 1;
            one = {.tried = kept * tried, .accepted = kept * accepted};
            at += 2;
        },
        *this, drafter);
    return true;
}

double RequestBias::factor(DrafterId drafter) const {
    const Sum& sum = sums_.at(drafter);
    return std::min(kLargest, (sum.accepted + kWeight) / (sum.expected + kWeight));
}

void RequestBias::observe(DrafterId drafter, double expected, bool accepted) {
    Sum& sum = sums_.at(drafter);
    sum.expected = sum.expected * kDecay + expected;
    sum.accepted = sum.accepted * kDecay + (accepted ? 1 : 0);
}

void RequestBias::relax(DrafterId drafter) {
    constexpr double kKept = 1 - 1.0 / 256;
    sums_.at(drafter).expected *= kKept;
    sums_.at(drafter).accepted *= kKept;
}

std::array<Shown, kMaxDrafters> observe(std::span<const Comparison> comparisons,
                                        AcceptanceTable& table, RequestBias& bias) {
    std::array<Shown, kMaxDrafters> shown = {};
    for (std::size_t i = 0; i < comparisons.size();) {
        const std::int32_t level = comparisons[i].level;
        std::array<double, kMaxDrafters> expected = {};
        std::array<bool, kMaxDrafters> proposed = {}, hit = {};
        for (; i < comparisons.size() && comparisons[i].level == level; ++i) {
            const Comparison& one = comparisons[i];
            const DrafterId d = one.place.drafter;
            expected.at(d) += table.estimate(one.place);
            proposed[d] = true;
            hit[d] = hit[d] || one.hit;
            table.observe(one.place, one.hit);
        }
        const auto drafters = std::count(proposed.begin(), proposed.end(), true);
        const auto hits = std::count(hit.begin(), hit.end(), true);
        for (DrafterId d = 0; d < kMaxDrafters; ++d) {
            if (!proposed[d]) continue;
            bias.observe(d, std::min(1.0, expected[d]), hit[d]);
            ++shown[d].places;
            shown[d].hits += hit[d] ? 1 : 0;
            const bool others_hit = hits > (hit[d] ? 1 : 0);
            if (drafters > 1 && !others_hit) table.observe_novelty(d, hit[d]);
        }
    }
    return shown;
}

}  // namespace espalier::speculate
