// SPDX-License-Identifier: Apache-2.0
#include "speculate/coupling.hpp"

#include <algorithm>
#include <cmath>

namespace espalier::speculate {

namespace {

constexpr float kGreedy = 1e-5f;  // as draws take it
constexpr std::array<float, 3> kClassEnds = {0.3f, CouplingPolicy::kFirstCoupled, 0.85f};
constexpr double kDecay = 1 - 1.0 / 1024;  // per place
// A mode never tried counts as this many places; the one that is expected to win has a lead of
// twice kLead.
constexpr double kWeight = 32, kMiddle = 0.5, kLead = 0.03;

}  // namespace

std::size_t CouplingPolicy::class_of(float temperature) {
    return static_cast<std::size_t>(std::count_if(kClassEnds.begin(), kClassEnds.end(),
                                                  [&](float end) { return temperature >= end; }));
}

bool CouplingPolicy::prefers_coupled(DrafterId drafter, float temperature) const {
    if (!(temperature >= kGreedy)) return false;
    const Class& seen = classes_.at(drafter).at(class_of(temperature));
    const double lead = temperature >= kFirstCoupled ? kLead : -kLead;
    const auto rate = [](const Counter& counter, double guess) {
        return (counter.hits + kWeight * guess) / (counter.places + kWeight);
    };
    // The guess is the other mode's rate once there is one, so that a mode is not judged by how
    // hard the text is.
    const double both_places = seen.modes[0].places + seen.modes[1].places;
    const double both_hits = seen.modes[0].hits + seen.modes[1].hits;
    const double middle = (both_hits + kMiddle * kWeight) / (both_places + kWeight);
    return rate(seen.modes[1], middle + lead) > rate(seen.modes[0], middle - lead);
}

bool CouplingPolicy::choose(DrafterId drafter, float temperature) {
    if (!(temperature >= kGreedy)) return false;
    const bool preferred = prefers_coupled(drafter, temperature);
    Class& seen = classes_.at(drafter).at(class_of(temperature));
    return ++seen.calls % kOtherEvery == 0 ? !preferred : preferred;
}

void CouplingPolicy::observe(DrafterId drafter, float temperature, bool coupled,
                             std::int64_t places, std::int64_t hits) {
    if (!(temperature >= kGreedy) || places <= 0) return;
    Counter& counter = classes_.at(drafter).at(class_of(temperature)).modes.at(coupled ? 1 : 0);
    const double kept = std::pow(kDecay, static_cast<double>(places));
    counter.places = counter.places * kept + static_cast<double>(places);
    counter.hits = counter.hits * kept + static_cast<double>(hits);
}

}  // namespace espalier::speculate
