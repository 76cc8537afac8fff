// SPDX-License-Identifier: Apache-2.0
// The grant of nodes by predicted throughput, and the probes that let it come back.
#include "speculate/budget.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

double seconds_with(const StepTime& time, const StepLoad& load, std::int64_t drafts) {
    return time.seconds(load.rows, load.tokens + drafts) + (drafts > 0 ? load.draft_seconds : 0);
}

// Whether some n in (drafts, most] could reach `rate` if every further node survived like the next
// one. Both tokens and time are linear in n between knots then, so their ratio is monotone there
// and only knots and the end need to be asked.
bool may_reach(const StepTime& time, const StepLoad& load, std::int64_t drafts, std::int64_t most,
               double tokens, double survival, double rate) {
    const auto reaches = [&](std::int64_t n) {
        const double bound = tokens + static_cast<double>(n - drafts) * survival;
        return bound > rate * seconds_with(time, load, n);
    };
    if (drafts < most && (reaches(drafts + 1) || reaches(most))) return true;
    for (const std::int64_t knot : StepTime::kKnots) {
        const std::int64_t n = knot - load.tokens;
        if (n > drafts && n < most && reaches(n)) return true;
    }
    return false;
}

}  // namespace

// A heap's order: the largest survival first, the lower request among equals.
bool NodeBudget::later(const Next& a, const Next& b) {
    return a.survival != b.survival ? a.survival < b.survival : a.request > b.request;
}

NodeBudget::Next NodeBudget::take_best(std::span<const std::span<const double>> offers,
                                       std::span<std::int32_t> granted) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Next next = heap_.back();
    heap_.pop_back();
    const auto request = static_cast<std::size_t>(next.request);
    const auto taken = static_cast<std::size_t>(++granted[request]);
    if (taken < offers[request].size()) {
        heap_.push_back({offers[request][taken], next.request});
        std::push_heap(heap_.begin(), heap_.end(), later);
    }
    return next;
}

Grant NodeBudget::best(const StepTime& time, const StepLoad& load,
                       std::span<const std::span<const double>> offers,
                       std::span<std::int32_t> granted) {
    heap_.clear();
    taken_.clear();
    std::int64_t offered = 0;
    for (std::size_t i = 0; i < offers.size(); ++i) {
        granted[i] = 0;
        offered += static_cast<std::int64_t>(offers[i].size());
        if (!offers[i].empty()) heap_.push_back({offers[i][0], static_cast<std::int32_t>(i)});
    }
    std::make_heap(heap_.begin(), heap_.end(), later);

    const Grant without = {0, load.expected_tokens, seconds_with(time, load, 0), false};
    const std::int64_t most = std::min(offered, load.max_drafts);
    Grant best = without;
    // To be beaten, not to be met: so few nodes win over many at the same rate.
    double rate = kLeastGain * without.expected_tokens / without.seconds;
    double tokens = without.expected_tokens;
    for (std::int64_t n = 1; n <= most; ++n) {
        // Each eighth node only: the question costs as much as the eight.
        if (n % 8 == 1 && !may_reach(time, load, n - 1, most, tokens, heap_.front().survival, rate))
            break;
        const Next next = take_best(offers, granted);
        taken_.push_back(next.request);
        tokens += next.survival;
        const double seconds = seconds_with(time, load, n);
        if (tokens <= rate * seconds) continue;
        rate = tokens / seconds;
        best = {n, tokens, seconds, false};
    }
    for (std::size_t i = static_cast<std::size_t>(best.drafts); i < taken_.size(); ++i)
        --granted[static_cast<std::size_t>(taken_[i])];
    return best;
}

Grant NodeBudget::probe(const StepTime& time, const StepLoad& load,
                        std::span<const std::span<const double>> offers,
                        std::span<std::int32_t> granted) {
    Grant nothing = {0, load.expected_tokens, seconds_with(time, load, 0), false};
    ++steps_off_;
    saved_seconds_ += kProbeShare * nothing.seconds;

    std::size_t surest = offers.size();
    for (std::size_t i = 0; i < offers.size(); ++i)
        if (!offers[i].empty() && (surest == offers.size() || offers[i][0] > offers[surest][0]))
            surest = i;
    if (surest == offers.size() || load.max_drafts < 1) return nothing;

    const std::int64_t drafts =
        std::min({kProbeDrafts, load.max_drafts, static_cast<std::int64_t>(offers[surest].size())});
    const double seconds = seconds_with(time, load, drafts);
    const double cost = seconds - nothing.seconds;
    if (steps_off_ < kProbeSteps || saved_seconds_ < cost) return nothing;
    // What was saved beyond one probe is not kept: no bursts after a long silence.
    saved_seconds_ = 0;
    steps_off_ = 0;
    granted[surest] = static_cast<std::int32_t>(drafts);
    Grant probe = {drafts, load.expected_tokens, seconds, true};
    for (std::int64_t i = 0; i < drafts; ++i)
        probe.expected_tokens += offers[surest][static_cast<std::size_t>(i)];
    return probe;
}

Grant NodeBudget::grant(const StepTime& time, const StepLoad& load,
                        std::span<const std::span<const double>> offers,
                        std::span<std::int32_t> granted) {
    CHECK(offers.size() == granted.size(), "{} offers, {} places for grants", offers.size(),
          granted.size());
    CHECK(load.max_drafts >= 0 && load.expected_tokens >= 0, "room for {} drafts beside {} tokens",
          load.max_drafts, load.expected_tokens);
    const Grant paying = best(time, load, offers, granted);
    if (paying.drafts == 0) return probe(time, load, offers, granted);
    saved_seconds_ = 0;
    steps_off_ = 0;
    return paying;
}

}  // namespace espalier::speculate
