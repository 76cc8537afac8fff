// SPDX-License-Identifier: Apache-2.0
// Grants against brute force over all grants, and the laws they must obey.
#include "speculate/policy/budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "speculate/random.hpp"

namespace espalier::speculate {
namespace {

using Offers = std::vector<std::vector<double>>;
using Curve = std::function<double(double)>;

StepTime time_of(const Curve& seconds) {
    std::vector<StepSample> samples;
    for (const std::int64_t tokens : StepTime::kKnots)
        if (tokens <= 2048)
            samples.push_back({.size = {.rows = 1, .tokens = tokens},
                               .seconds = seconds(static_cast<double>(tokens))});
    return *StepTime::fit(samples);
}

StepTime random_time(Random& random) {
    const double fixed = random.chance(0.3) ? 0 : random.unit(),
                 each = random.unit() * random.unit();
    const std::int32_t tile = random.between(1, 24);
    const double step = random.chance(0.5) ? random.unit() : 0;  // plateaus, as tiles make them
    return time_of([=](double tokens) {
        return 0.01 + fixed + each * tokens + step * std::floor(tokens / tile);
    });
}

Offers random_offers(Random& random, std::int32_t requests, std::int32_t most) {
    Offers offers(static_cast<std::size_t>(requests));
    for (auto& offer : offers) {
        double survival = 1;
        for (std::int32_t n = random.between(0, most); n > 0; --n)
            offer.push_back(survival *= 0.3 + 0.7 * random.unit());
    }
    return offers;
}

struct Outcome {
    GrantedNodes grant;
    std::vector<std::int32_t> granted;
};

// keys: that a draft of request i sees; none: no keys anywhere.
Outcome ask(NodeBudget& budget, const StepTime& time, const StepLoad& load, const Offers& offers,
            const std::vector<double>& keys = {}) {
    std::vector<OfferedDrafts> views;
    for (std::size_t i = 0; i < offers.size(); ++i)
        views.push_back({offers[i], keys.empty() ? 0 : keys[i]});
    Outcome outcome{{}, std::vector<std::int32_t>(offers.size(), -1)};
    outcome.grant = budget.grant(time, load, views, outcome.granted);
    return outcome;
}

Outcome ask(const StepTime& time, const StepLoad& load, const Offers& offers) {
    NodeBudget fresh;
    return ask(fresh, time, load, offers);
}

StepLoad load_of(const Offers& offers, std::int64_t extra_tokens = 0) {
    const auto rows = static_cast<std::int64_t>(offers.size());
    return {.size = {.rows = rows, .tokens = rows + extra_tokens},
            .expected_tokens = static_cast<double>(rows),
            .max_drafts = 1 << 20};
}

StepSize with(const StepLoad& load, std::int64_t drafts, double keys = 0) {
    return {
        .rows = load.size.rows, .tokens = load.size.tokens + drafts, .keys = load.size.keys + keys};
}

double rate(const StepTime& time, const StepLoad& load, const Offers& offers,
            const std::vector<std::int32_t>& granted, const std::vector<double>& keys = {}) {
    double tokens = load.expected_tokens, seen = 0;
    std::int64_t drafts = 0;
    for (std::size_t i = 0; i < offers.size(); ++i)
        for (std::int32_t n = 0; n < granted[i]; ++n, ++drafts) {
            tokens += offers[i][static_cast<std::size_t>(n)];
            seen += keys.empty() ? 0 : keys[i];
        }
    return tokens / (time.seconds(with(load, drafts, seen)) + load.draft_seconds);
}

double best_rate(const StepTime& time, const StepLoad& load, const Offers& offers,
                 std::vector<std::int32_t>& granted, std::size_t request, std::int64_t left,
                 const std::vector<double>& keys = {}) {
    if (request == offers.size()) return rate(time, load, offers, granted, keys);
    double best = 0;
    for (granted[request] = 0;; ++granted[request]) {
        best = std::max(best, best_rate(time, load, offers, granted, request + 1,
                                        left - granted[request], keys));
        if (granted[request] == static_cast<std::int32_t>(offers[request].size()) ||
            granted[request] == left)
            break;
    }
    granted[request] = 0;
    return best;
}

TEST(NodeBudget, EqualsBruteForceOverAllGrants) {
    int paid = 0, refused = 0;
    for (std::uint64_t seed = 0; seed < 600; ++seed) {
        Random random(seed);
        const StepTime time = random_time(random);
        const Offers offers = random_offers(random, random.between(1, 4), 6);
        StepLoad load = load_of(offers, random.chance(0.5) ? 0 : random.between(0, 60));
        load.max_drafts = random.chance(0.3) ? random.between(0, 8) : 100;
        load.draft_seconds = random.chance(0.3) ? 0.2 * random.unit() : 0;
        const Outcome outcome = ask(time, load, offers);

        std::vector<std::int32_t> trial(offers.size(), 0);
        const double off = rate(time, load, offers, trial);
        const double best = best_rate(time, load, offers, trial, 0, load.max_drafts);
        const double chosen = rate(time, load, offers, outcome.granted);
        ASSERT_FALSE(outcome.grant.probe);
        ASSERT_GE(chosen, off);
        // 1e-12: sums of at most 24 survivals in another order.
        if (best > StepLoad{}.least_gain * off * (1 + 1e-12)) {
            ASSERT_NEAR(chosen / best, 1, 1e-12) << "seed " << seed;
        } else if (best < StepLoad{}.least_gain * off * (1 - 1e-12)) {
            ASSERT_EQ(outcome.grant.drafts, 0) << "seed " << seed;
        }
        ++(outcome.grant.drafts > 0 ? paid : refused);
        EXPECT_NEAR(outcome.grant.expected_tokens / outcome.grant.seconds, chosen, 1e-9 * chosen);
    }
    EXPECT_GT(paid, 100);
    EXPECT_GT(refused, 100);
}

// Contexts of different lengths: the order by worth is near the best of all grants.
TEST(NodeBudget, IsNearTheBestWhereContextsDiffer) {
    int dearer = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Random random(seed);
        const double each = random.unit() * random.unit();
        std::vector<StepSample> samples;
        for (const std::int64_t tokens : {1, 2, 4, 8, 16, 32, 64})
            for (const double keys : {0.0, 10.0, 100.0})
                samples.push_back({.size = {.rows = 1, .tokens = tokens, .keys = keys},
                                   .seconds = 1 + each * (static_cast<double>(tokens) + keys)});
        const StepTime time = *StepTime::fit(samples);
        const Offers offers = random_offers(random, random.between(2, 4), 5);
        std::vector<double> keys;
        for (std::size_t i = 0; i < offers.size(); ++i)
            keys.push_back(random.chance(0.5) ? 0.1 : 4 * random.unit());
        const StepLoad load = load_of(offers);
        NodeBudget budget;
        const Outcome outcome = ask(budget, time, load, offers, keys);
        std::vector<std::int32_t> trial(offers.size(), 0);
        const double best = best_rate(time, load, offers, trial, 0, 100, keys);
        const double off = rate(time, load, offers, trial, keys);
        const double chosen = rate(time, load, offers, outcome.granted, keys);
        ASSERT_GE(chosen, off);
        // Whole nodes cannot be split, so the order may miss by the last node's part.
        if (best > 1.1 * off) {
            ASSERT_GE(chosen, 0.97 * best) << "seed " << seed;
        }
        const Outcome blind = ask(budget, time, load, offers);
        dearer += outcome.grant.drafts < blind.grant.drafts ? 1 : 0;
    }
    EXPECT_GT(dearer, 100);  // keys cost something, so fewer nodes pay
}

TEST(NodeBudget, ADraftInALongContextYieldsToOneInAShort) {
    std::vector<StepSample> samples;
    for (const std::int64_t tokens : {1, 2, 4, 8, 16, 32, 64})
        for (const double keys : {0.0, 30.0})
            samples.push_back({.size = {.rows = 1, .tokens = tokens, .keys = keys},
                               .seconds = 1 + 0.02 * (static_cast<double>(tokens) + keys)});
    const StepTime time = *StepTime::fit(samples);
    const Offers offers(2, std::vector<double>{0.8, 0.7, 0.6, 0.5, 0.4});
    StepLoad load = load_of(offers);
    load.max_drafts = 5;
    NodeBudget budget;
    EXPECT_EQ(ask(budget, time, load, offers, {20.0, 0.5}).granted,
              (std::vector<std::int32_t>{0, 5}));
}

TEST(NodeBudget, ManyRequestsNeverLoseByTheirGrant) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
        Random random(seed);
        const StepTime time = random_time(random);
        const Offers offers = random_offers(random, random.between(1, 64), 63);
        const StepLoad load = load_of(offers, random.between(0, 600));
        const Outcome outcome = ask(time, load, offers);
        const double off = rate(time, load, offers, std::vector<std::int32_t>(offers.size(), 0));
        EXPECT_GE(rate(time, load, offers, outcome.granted), off);
        // No other count along the same order does better: the search stopped early rightly.
        std::vector<double> all;
        for (const auto& offer : offers) all.insert(all.end(), offer.begin(), offer.end());
        std::sort(all.rbegin(), all.rend());
        double tokens = load.expected_tokens, best = StepLoad{}.least_gain * off;
        bool pays = false;
        for (std::size_t n = 1; n <= all.size(); ++n) {
            tokens += all[n - 1];
            const double now = tokens / time.seconds(with(load, static_cast<std::int64_t>(n)));
            pays = pays || now > best;
            best = std::max(best, now);
        }
        if (!pays) best = off;
        EXPECT_NEAR(rate(time, load, offers, outcome.granted) / best, 1, 1e-9);
    }
}

TEST(NodeBudget, SurerDraftsAndCheaperTokensNeverGetLess) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Random random(seed);
        const Offers offers = random_offers(random, random.between(1, 16), 30);
        const StepLoad load = load_of(offers);
        const double each = 0.1 * random.unit();
        std::int64_t before = -1;
        for (const double surer : {0.25, 0.5, 0.75, 1.0}) {
            Offers scaled = offers;
            for (auto& offer : scaled)
                for (double& survival : offer) survival *= surer;
            const std::int64_t now =
                ask(time_of([=](double t) { return 1 + each * t; }), load, scaled).grant.drafts;
            EXPECT_GE(now, before) << "seed " << seed;
            before = now;
        }
        before = -1;
        for (const double cheaper : {1.0, 0.7, 0.4, 0.1, 0.0}) {
            const auto base = static_cast<double>(load.size.tokens);
            const StepTime time =
                time_of([=](double t) { return 1 + cheaper * each * std::max(0.0, t - base); });
            const std::int64_t now = ask(time, load, offers).grant.drafts;
            // The fit leaves errors of about 1e-4 of the time: a node on the edge may go either
            // way.
            EXPECT_GE(now, before - 1) << "seed " << seed;
            before = now;
        }
    }
}

TEST(NodeBudget, IsDeterministicAndFairAmongEquals) {
    const Offers offers(4, std::vector<double>{0.9, 0.8, 0.7});
    const StepTime time = time_of([](double t) { return 1 + 0.001 * t; });
    StepLoad load = load_of(offers);
    load.max_drafts = 6;
    const Outcome outcome = ask(time, load, offers);
    EXPECT_EQ(outcome.granted, (std::vector<std::int32_t>{2, 2, 1, 1}));
    EXPECT_EQ(ask(time, load, offers).granted, outcome.granted);
}

TEST(NodeBudget, TurnsItselfOffProbesCheaplyAndComesBack) {
    // A token costs as much as the step before it: drafts cannot pay.
    const StepTime dear = time_of([](double t) { return t; });
    const Offers offers(2, std::vector<double>{0.5, 0.5, 0.4, 0.4});
    const StepLoad load = load_of(offers);
    NodeBudget budget;
    double spent = 0, total = 0;
    int probes = 0;
    for (int i = 0; i < 20000; ++i) {
        const Outcome outcome = ask(budget, dear, load, offers);
        total += outcome.grant.seconds;
        if (outcome.grant.drafts == 0) continue;
        ASSERT_TRUE(outcome.grant.probe);
        ASSERT_EQ(outcome.grant.drafts, NodeBudget::kProbeDrafts);
        ASSERT_EQ(outcome.granted, (std::vector<std::int32_t>{3, 0}));
        spent += outcome.grant.seconds - dear.seconds(load.size);
        ++probes;
    }
    EXPECT_GT(probes, 20);
    EXPECT_LE(spent, ProbeSavings::kShare * total);
    // The same budget on a machine where tokens are nearly free.
    const StepTime free = time_of([](double t) { return 1 + 1e-4 * t; });
    const Outcome on = ask(budget, free, load, offers);
    EXPECT_FALSE(on.grant.probe);
    EXPECT_EQ(on.grant.drafts, 8);
}

// The cost of a step may be wrong where none has been for long.
TEST(NodeBudget, LikelyDraftsAreTriedWhateverTheySeemToCost) {
    const auto count_trials = [](const StepTime& time, double survival) {
        const Offers offers(1, std::vector<double>(12, survival));
        NodeBudget budget;
        int trials = 0;
        for (int i = 0; i < 480; ++i) {
            const Outcome outcome = ask(budget, time, load_of(offers), offers);
            trials += outcome.grant.probe ? 1 : 0;
        }
        return trials;
    };
    const StepTime dear = time_of([](double t) { return t; });
    EXPECT_EQ(count_trials(dear, 0.6), 20);
    EXPECT_LT(count_trials(dear, 0.4), 4);
    // One draft pays, and the second is believed to cost ten steps.
    const StepTime steep = time_of([](double t) { return t < 3 ? 1.0 : 10.0; });
    EXPECT_EQ(count_trials(steep, 0.6), 20);
}

TEST(NodeBudget, WithNothingOfferedThereIsNothingToProbe) {
    const StepTime time = time_of([](double t) { return 1 + 0.01 * t; });
    NodeBudget budget;
    const Offers offers(3);
    for (int i = 0; i < 1000; ++i)
        ASSERT_EQ(ask(budget, time, load_of(offers), offers).grant.drafts, 0);
    StepLoad load = load_of(Offers(1, {0.9}));
    load.max_drafts = 0;
    for (int i = 0; i < 1000; ++i)
        ASSERT_EQ(ask(budget, time, load, Offers(1, {0.9})).grant.drafts, 0);
    std::vector<std::int32_t> granted(2);
    EXPECT_THROW(budget.grant(time, load, {}, granted), CheckFailure);
}

}  // namespace
}  // namespace espalier::speculate
