// SPDX-License-Identifier: Apache-2.0
// The grant of nodes by predicted throughput, and the probes that let it come back.
#include "speculate/policy/budget.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

// The step with this many drafts more, which see this many keys in all.
double seconds_with(const StepTime& time, const StepLoad& load, std::int64_t drafts, double keys) {
    return time.seconds({.rows = load.size.rows,
                         .tokens = load.size.tokens + drafts,
                         .keys = load.size.keys + keys}) +
           load.draft_seconds - load.prompt_seconds;
}

// True if some n in (drafts, most] could reach `rate` if every further node survived like the
// surest and saw no key. Both tokens and time are linear in n between knots then, so their ratio is
// monotone there and only knots and the end need to be asked.
bool may_reach(const StepTime& time, const StepLoad& load, std::int64_t drafts, double keys,
               std::int64_t most, double tokens, double survival, double rate) {
    const auto reaches = [&](std::int64_t n) {
        const double bound = tokens + static_cast<double>(n - drafts) * survival;
        return bound > rate * seconds_with(time, load, n, keys);
    };
    if (drafts < most && (reaches(drafts + 1) || reaches(most))) return true;
    for (const std::int64_t knot : StepTime::kKnots) {
        const std::int64_t n = knot - load.size.tokens;
        if (n > drafts && n < most && reaches(n)) return true;
    }
    return false;
}

}  // namespace

void ProbeSavings::wait(double step_seconds) {
    ++steps_;
    saved_seconds_ += kShare * step_seconds;
}

// Savings beyond one probe are dropped, so that a long silence is not followed by a burst.
bool ProbeSavings::spend(double seconds) {
    if (steps_ < kSteps || saved_seconds_ < seconds) return false;
    reset();
    return true;
}

// A heap's order: the largest worth first, the lower request among equals.
bool NodeBudget::later(const Next& a, const Next& b) {
    return a.worth != b.worth ? a.worth < b.worth : a.request > b.request;
}

void NodeBudget::begin(std::span<const OfferedDrafts> offers, std::span<std::int32_t> granted,
                       double token_seconds, double key_seconds) {
    CHECK(offers.size() == granted.size(), "{} offers, {} places for grants", offers.size(),
          granted.size());
    heap_.clear();
    taken_.clear();
    taken_.reserve(offers.size() * kMaxNodes);
    token_seconds_ = token_seconds;
    key_seconds_ = key_seconds;
    for (std::size_t i = 0; i < offers.size(); ++i) {
        granted[i] = 0;
        if (offers[i].survival.empty()) continue;
        const double survival = offers[i].survival[0];
        heap_.push_back({survival / (token_seconds_ + key_seconds_ * offers[i].keys), survival,
                         static_cast<std::int32_t>(i)});
    }
    std::make_heap(heap_.begin(), heap_.end(), later);
}

NodeBudget::Next NodeBudget::take_best(std::span<const OfferedDrafts> offers,
                                       std::span<std::int32_t> granted) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Next next = heap_.back();
    heap_.pop_back();
    const auto request = static_cast<std::size_t>(next.request);
    const auto taken = static_cast<std::size_t>(++granted[request]);
    if (taken < offers[request].survival.size()) {
        const double survival = offers[request].survival[taken];
        heap_.push_back({survival / (token_seconds_ + key_seconds_ * offers[request].keys),
                         survival, next.request});
        std::push_heap(heap_.begin(), heap_.end(), later);
    }
    taken_.push_back(next.request);
    return next;
}

double NodeBudget::surest_left() const {
    double surest = 0;
    for (const Next& next : heap_) surest = std::max(surest, next.survival);
    return surest;
}

GrantedNodes NodeBudget::best(const StepTime& time, const StepLoad& load,
                              std::span<const OfferedDrafts> offers,
                              std::span<std::int32_t> granted) {
    std::int64_t offered = 0;
    for (const OfferedDrafts& offer : offers)
        offered += static_cast<std::int64_t>(offer.survival.size());
    const std::int64_t most = std::min(offered, load.max_drafts);
    const GrantedNodes without = {.drafts = 0,
                                  .expected_tokens = load.expected_tokens,
                                  .seconds = seconds_with(time, load, 0, 0)};
    // A node's cost, for the order: a token's share of the longest batch, and its keys. Never zero.
    const double token_seconds = std::max((seconds_with(time, load, most, 0) - without.seconds) /
                                              static_cast<double>(std::max<std::int64_t>(most, 1)),
                                          1e-9 * without.seconds);
    begin(offers, granted, token_seconds, seconds_with(time, load, 0, 1) - without.seconds);

    GrantedNodes best = without;
    // To be beaten, not to be met: so few nodes win over many at the same rate.
    double rate = load.least_gain * without.expected_tokens / without.seconds;
    double tokens = without.expected_tokens, keys = 0;
    for (std::int64_t n = 1; n <= most; ++n) {
        // Each eighth node only: the question costs as much as the eight.
        if (n % 8 == 1 && !may_reach(time, load, n - 1, keys, most, tokens, surest_left(), rate))
            break;
        const Next next = take_best(offers, granted);
        tokens += next.survival;
        keys += offers[static_cast<std::size_t>(next.request)].keys;
        const double seconds = seconds_with(time, load, n, keys);
        if (tokens <= rate * seconds) continue;
        rate = tokens / seconds;
        best = {.drafts = n, .expected_tokens = tokens, .seconds = seconds};
    }
    for (std::size_t i = static_cast<std::size_t>(best.drafts); i < taken_.size(); ++i)
        --granted[static_cast<std::size_t>(taken_[i])];
    return best;
}

std::int64_t NodeBudget::grant_surest(std::int64_t drafts, std::span<const OfferedDrafts> offers,
                                      std::span<std::int32_t> granted) {
    begin(offers, granted, 1, 0);
    std::int64_t given = 0;
    for (; given < drafts && !heap_.empty(); ++given) take_best(offers, granted);
    return given;
}

GrantedNodes NodeBudget::probe(const StepTime& time, const StepLoad& load,
                               std::span<const OfferedDrafts> offers,
                               std::span<std::int32_t> granted) {
    const GrantedNodes nothing = {.drafts = 0,
                                  .expected_tokens = load.expected_tokens,
                                  .seconds = seconds_with(time, load, 0, 0)};
    std::size_t surest = offers.size();
    for (std::size_t i = 0; i < offers.size(); ++i)
        if (!offers[i].survival.empty() &&
            (surest == offers.size() || offers[i].survival[0] > offers[surest].survival[0]))
            surest = i;
    if (surest == offers.size() || load.max_drafts < 1) {
        off_.wait(nothing.seconds);
        return nothing;
    }
    const std::int64_t drafts = std::min(
        {kProbeDrafts, load.max_drafts, static_cast<std::int64_t>(offers[surest].survival.size())});
    const double seconds =
        seconds_with(time, load, drafts, static_cast<double>(drafts) * offers[surest].keys);
    off_.wait(nothing.seconds);
    const bool doubted = off_.steps() >= kDoubtedSteps && offers[surest].survival[0] > kLikely;
    if (doubted)
        off_.reset();
    else if (!off_.spend(seconds - nothing.seconds))
        return nothing;
    granted[surest] = static_cast<std::int32_t>(drafts);
    GrantedNodes probe = {.drafts = drafts,
                          .expected_tokens = load.expected_tokens,
                          .seconds = seconds,
                          .probe = true};
    for (std::int64_t i = 0; i < drafts; ++i)
        probe.expected_tokens += offers[surest].survival[static_cast<std::size_t>(i)];
    return probe;
}

// True if further drafts are to be tried: some that are likely have not been granted for long.
bool NodeBudget::doubts(std::span<const OfferedDrafts> offers,
                        std::span<const std::int32_t> granted) {
    bool likely = false;
    for (std::size_t i = 0; i < offers.size(); ++i) {
        const auto next = static_cast<std::size_t>(granted[i]);
        likely = likely || (next < offers[i].survival.size() && offers[i].survival[next] > kLikely);
    }
    if (!likely || ++doubted_steps_ < kDoubtedSteps) return false;
    doubted_steps_ = 0;
    return true;
}

GrantedNodes NodeBudget::grant(const StepTime& time, const StepLoad& load,
                               std::span<const OfferedDrafts> offers,
                               std::span<std::int32_t> granted) {
    CHECK(load.max_drafts >= 0 && load.expected_tokens >= 0, "room for {} drafts beside {} tokens",
          load.max_drafts, load.expected_tokens);
    GrantedNodes paying = best(time, load, offers, granted);
    if (paying.drafts == 0) return probe(time, load, offers, granted);
    off_.reset();
    if (!doubts(offers, granted)) return paying;
    const std::int64_t more = 2 * paying.drafts + kProbeDrafts;
    paying.drafts = grant_surest(std::min(more, load.max_drafts), offers, granted);
    paying.probe = true;
    return paying;
}

}  // namespace espalier::speculate
