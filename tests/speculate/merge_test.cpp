// SPDX-License-Identifier: Apache-2.0
// Merging, ranking and accounting against plain sets of paths and brute force over subtrees.
#include "speculate/merge.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <string>
#include <vector>

#include "speculate/random.hpp"

namespace espalier::speculate {

// Decayed number of observations behind a place.
class AcceptanceInspection {
  public:
    static double tried(const AcceptanceTable& table, const Place& place) {
        return table.places_.at(place.drafter)
            .at(place.depth)
            .at(place.rank)
            .at(place.bucket)
            .tried;
    }
};

namespace {

auto observe_draws(const Candidates& candidates, std::span<const TokenId> drawn,
                   AcceptanceTable& table, RequestBias& bias) {
    std::vector<Comparison> comparisons;
    candidates.compare(drawn, comparisons);
    return observe(comparisons, table, bias);
}

double tried(const AcceptanceTable& table, const Place& place) {
    return AcceptanceInspection::tried(table, place);
}

using Path = std::vector<TokenId>;

Path path_of(const Tree& tree, std::int32_t node) {
    Path path;
    for (std::int32_t n = node; n > 0; n = tree.parent(n)) path.insert(path.begin(), tree.token(n));
    return path;
}

Proposal random_proposal(Random& random, DrafterId drafter, std::int32_t nodes,
                         std::int32_t vocabulary) {
    const Tree tree = random_tree(random, nodes, vocabulary);
    Proposal proposal(drafter, 0);
    for (std::int32_t i = 1; i < tree.size(); ++i)
        proposal.add(tree.parent(i), tree.token(i), static_cast<float>(random.unit()));
    return proposal;
}

void train(Random& random, AcceptanceTable& table) {
    for (int i = 0; i < 2000; ++i)
        table.observe(place_of(static_cast<DrafterId>(random.between(0, 3)), random.between(1, 10),
                               random.between(0, 5), static_cast<float>(random.unit())),
                      random.chance(0.4));
}

TEST(Merge, IsTheUnionOfPathsWithEverySourceKept) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Random random(seed);
        Candidates candidates(0);
        std::map<Path, std::uint8_t> expected;
        const std::int32_t drafters = random.between(1, kMaxDrafters);
        for (std::int32_t d = 0; d < drafters; ++d) {
            const Proposal p =
                random_proposal(random, static_cast<DrafterId>(d), random.between(1, 20), 3);
            ASSERT_TRUE(candidates.add(p, 3));
            for (std::int32_t i = 0; i < p.tree.size(); ++i)
                expected[path_of(p.tree, i)] |= static_cast<std::uint8_t>(1 << d);
        }
        ASSERT_EQ(candidates.size(), static_cast<std::int32_t>(expected.size()));
        const RankedTree ranked = candidates.rank(AcceptanceTable{}, RequestBias{}, kMaxNodes);
        ASSERT_EQ(ranked.tree.size(),
                  std::min(kMaxNodes, static_cast<std::int32_t>(expected.size())));
        for (std::int32_t i = 0; i < ranked.tree.size(); ++i)
            EXPECT_EQ(ranked.origins[static_cast<std::size_t>(i)].drafters,
                      expected.at(path_of(ranked.tree, i)));
    }
}

TEST(Merge, NarrowingKeepsATreeOfAtMostSoManyNodesALevel) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Random random(seed);
        const Proposal whole = random_proposal(random, 1, random.between(1, 40), 5);
        for (const std::int32_t width : {1, 2, 5, 63}) {
            const Proposal kept = narrowed(whole, width);
            std::map<std::int32_t, std::int32_t> of_level;
            for (std::int32_t i = 1; i < kept.tree.size(); ++i) {
                ++of_level[kept.tree.depth(i)];
                // Each is a node of the whole, with its score.
                std::int32_t node = 0;
                for (const TokenId token : path_of(kept.tree, i))
                    node = whole.tree.child(node, token);
                ASSERT_NE(node, kNoNode);
                EXPECT_EQ(kept.score[static_cast<std::size_t>(i)],
                          whole.score[static_cast<std::size_t>(node)]);
            }
            for (const auto& [depth, count] : of_level) EXPECT_LE(count, width) << depth;
            if (width == 1) {
                EXPECT_TRUE(kept.tree.is_chain());
            }
            if (width == 63) {
                EXPECT_EQ(kept.tree.size(), whole.tree.size());
            }
        }
    }
}

// A node that several propose is counted to the one whose measured estimate put it where it stands,
// with that drafter's own rank.
TEST(Merge, CountsANodeToTheSurestDrafter) {
    AcceptanceTable table;
    for (int i = 0; i < 300; ++i) {
        table.observe(place_of(0, 1, 0, 0.6f), i % 10 == 0);
        table.observe(place_of(1, 1, 1, -0.1f), i % 10 < 6);
    }
    Proposal first(0, 7), second(1, 7);
    first.add(0, 20, 0.6f);
    second.add(0, 30, 0.5f);
    second.add(0, 20, 0.45f);
    Candidates candidates(7);
    ASSERT_TRUE(candidates.add(first, 100));
    ASSERT_TRUE(candidates.add(second, 100));
    const RankedTree ranked = candidates.rank(table, RequestBias{}, kMaxNodes);
    const std::int32_t node = ranked.tree.child(0, 20);
    ASSERT_NE(node, kNoNode);
    EXPECT_EQ(ranked.origins[static_cast<std::size_t>(node)],
              (DraftOrigin{.drafters = 3, .drafter = 1, .depth = 1, .rank = 1}));
    // The other was right alone at one of two places: that is what it adds.
    AcceptanceTable seen;
    RequestBias bias;
    const auto shown = observe_draws(candidates, std::array<TokenId, 1>{30}, seen, bias);
    EXPECT_EQ(shown[0].places, 1);
    EXPECT_EQ(shown[0].hits, 0);
    EXPECT_EQ(shown[1].hits, 1);
    EXPECT_GT(seen.novelty(1), AcceptanceTable{}.novelty(1));
    EXPECT_EQ(seen.novelty(0), AcceptanceTable{}.novelty(0));  // the other one had it
}

// The largest sum of survival over all connected subtrees with the root and n nodes, by trying all.
double brute_force(const RankedTree& all, std::int32_t n) {
    double best = 0;
    const std::int32_t size = all.tree.size();
    for (std::uint64_t set = 1; set < 1ull << size; set += 2) {
        if (std::popcount(set) != n) continue;
        double sum = 0;
        bool connected = true;
        for (std::int32_t i = 0; i < size && connected; ++i) {
            if ((set >> i & 1) == 0) continue;
            connected = (all.tree.words()[static_cast<std::size_t>(i)] & ~set) == 0;
            sum += all.survival[static_cast<std::size_t>(i)];
        }
        if (connected) best = std::max(best, sum);
    }
    return best;
}

TEST(Merge, EveryBudgetGetsTheConnectedSubtreeOfLargestSurvival) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Random random(seed);
        AcceptanceTable table;
        RequestBias bias;
        train(random, table);
        Candidates candidates(0);
        for (DrafterId d = 0; d < 2; ++d)
            ASSERT_TRUE(candidates.add(random_proposal(random, d, 6, 4), 4));
        const RankedTree all = candidates.rank(table, bias, kMaxNodes);
        for (std::int32_t n = 1; n <= all.tree.size(); ++n) {
            const RankedTree cut = candidates.rank(table, bias, n);
            ASSERT_EQ(cut.tree.size(), n);
            double sum = 0;
            for (std::int32_t i = 0; i < n; ++i) {
                const auto at = static_cast<std::size_t>(i);
                // The cut tree is a prefix of the whole: same nodes, same order.
                ASSERT_EQ(cut.tree.token(i), all.tree.token(i));
                ASSERT_EQ(cut.tree.parent(i), all.tree.parent(i));
                ASSERT_EQ(cut.survival[at], all.survival[at]);
                sum += cut.survival[at];
            }
            // Sums of at most 12 values below 1 in another order differ by less than 12 ulp.
            ASSERT_NEAR(sum, brute_force(all, n), 12 * 12 * 0x1p-53) << "seed " << seed;
        }
    }
}

TEST(Merge, SurvivalFallsAlongPathsAndSiblingsShareCertainty) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Random random(seed);
        AcceptanceTable table;
        RequestBias bias;
        train(random, table);
        for (int i = 0; i < 20; ++i) bias.observe(0, 0.1, true);  // a request above its table
        Candidates candidates(0);
        for (DrafterId d = 0; d < kMaxDrafters; ++d)
            ASSERT_TRUE(candidates.add(random_proposal(random, d, 16, 8), 8));
        const RankedTree ranked = candidates.rank(table, bias, kMaxNodes);
        EXPECT_EQ(ranked.drafts().size(), static_cast<std::size_t>(ranked.tree.size() - 1));
        std::vector<double> children(kMaxNodes);
        for (std::int32_t i = 1; i < ranked.tree.size(); ++i) {
            const auto at = static_cast<std::size_t>(i);
            const auto parent = static_cast<std::size_t>(ranked.tree.parent(i));
            EXPECT_GT(ranked.survival[at], 0);
            EXPECT_LE(ranked.survival[at], ranked.survival[parent]);
            EXPECT_LE(ranked.survival[at], ranked.survival[at - 1]);
            children[parent] += ranked.survival[at];
            EXPECT_LE(children[parent], ranked.survival[parent] * (1 + 1e-12));  // 64 roundings
        }
    }
}

TEST(Merge, RefusesABadProposalWhole) {
    Candidates candidates(5);
    Proposal good(1, 5);
    good.add(0, 9, 0.5f);
    ASSERT_TRUE(candidates.add(good, 10));
    const auto message = [&](const Proposal& p) {
        const auto added = candidates.add(p, 10);
        return added ? std::string("accepted") : added.error().message;
    };
    Proposal outside(2, 5);
    outside.add(outside.add(0, 3, 0.9f), 10, 0.9f);
    EXPECT_EQ(message(outside), "drafter 2: node 2 has token 10 of a vocabulary of 10");
    EXPECT_EQ(message(Proposal(2, 6)), "drafter 2: root is token 6, the request's is 5");
    EXPECT_EQ(message(good), "drafter 1: a second proposal for one step");
    EXPECT_EQ(message(Proposal(4, 5)), "drafter 4: at most 4 drafters");
    EXPECT_EQ(candidates.size(), 2);
}

TEST(Merge, BadScoresAreTamed) {
    Proposal p(0, 1);
    EXPECT_EQ(p.score[static_cast<std::size_t>(p.add(0, 1, std::nanf("")))], 0.0f);
    EXPECT_EQ(p.score[static_cast<std::size_t>(p.add(0, 2, 7.0f))], 1.0f);
    EXPECT_EQ(p.score[static_cast<std::size_t>(p.add(0, 3, -1.0f))], 0.0f);
    EXPECT_EQ(p.score[static_cast<std::size_t>(p.add(0, 3, 0.5f))], 0.5f);  // raised
    EXPECT_EQ(p.score[static_cast<std::size_t>(p.add(0, 3, 0.2f))], 0.5f);  // not lowered
    EXPECT_EQ(p.tree.size(), 4);
}

TEST(Acceptance, EstimatesComeToWhatIsTrueAndFollowChanges) {
    Random random(1);
    AcceptanceTable table;
    const Place place = place_of(1, 2, 0, 0.6f);
    const double before = table.estimate(place);
    EXPECT_GT(before, 0.3);
    EXPECT_LT(before, 0.95);
    for (int i = 0; i < 2000; ++i) table.observe(place, random.chance(0.2));
    // 256 draws at 0.2 scatter by 0.025; 4 sigma.
    EXPECT_NEAR(table.estimate(place), 0.2, 0.1);
    // Never tried, but the pool has learnt; another drafter has not.
    EXPECT_LT(table.estimate(place_of(1, 9, 0, 0.6f)), 0.35);
    EXPECT_EQ(table.estimate(place_of(2, 2, 0, 0.6f)), before);
    for (int i = 0; i < 1000; ++i) table.observe(place, random.chance(0.9));
    EXPECT_NEAR(table.estimate(place), 0.9, 0.1);
    EXPECT_LE(tried(table, place), 256);
}

TEST(Acceptance, WhatToExpectBeforeDraftingComesFromAllMarginsAndFades) {
    Random random(3);
    AcceptanceTable table;
    const double guess = table.expected(1, 1, 0);
    EXPECT_GT(guess, table.expected(1, 1, 1));
    for (int i = 0; i < 3000; ++i) {
        const float margin = random.chance(0.5) ? 0.05f : 0.9f;
        table.observe(place_of(1, 1, 0, margin), random.chance(margin < 0.5f ? 0.2 : 0.8));
    }
    EXPECT_NEAR(table.expected(1, 1, 0), 0.5, 0.1);  // half of each kind
    EXPECT_NEAR(table.expected(1, 7, 0), 0.5, 0.1);  // never tried there: the pool speaks
    EXPECT_EQ(table.expected(2, 1, 0), guess);
    for (int i = 0; i < 200; ++i) table.fade(1);
    EXPECT_NEAR(table.expected(1, 1, 0), guess, 0.01);
}

TEST(Acceptance, GuessesFallWithRankAndRiseWithMargin) {
    const AcceptanceTable table;
    for (const float margin : {0.0f, 0.2f, 0.4f, 0.6f, 0.9f}) {
        for (std::int32_t rank = 1; rank < 3; ++rank)
            EXPECT_GT(table.estimate(place_of(0, 1, rank, -margin)),
                      table.estimate(place_of(0, 1, rank + 1, -margin)));
        EXPECT_GT(table.estimate(place_of(0, 1, 0, margin)),
                  table.estimate(place_of(0, 1, 1, -margin)));
    }
    EXPECT_GT(table.estimate(place_of(0, 1, 0, 0.9f)), table.estimate(place_of(0, 1, 0, 0.1f)));
}

TEST(Acceptance, OnlyChildrenOfThePathAreJudgedAndOnlyAsFarAsWasDrawn) {
    //        0 ─┬─ 1 ─── 2 ─── 3
    //           └─ 4 ─── 5
    Proposal p(0, 0);
    const std::int32_t one = p.add(0, 1, 0.8f), four = p.add(0, 4, 0.1f);
    p.add(p.add(one, 2, 0.8f), 3, 0.8f);
    p.add(four, 5, 0.3f);
    Candidates candidates(0);
    ASSERT_TRUE(candidates.add(p, 10));
    const Place first = place_of(0, 1, 0, 0.7f), second = place_of(0, 1, 1, -0.7f);
    const Place deeper = place_of(0, 2, 0, 0.8f), deepest = place_of(0, 3, 0, 0.8f);
    const Place elsewhere = place_of(0, 2, 0, 0.3f);

    const auto judged = [&](std::vector<TokenId> drawn) {
        AcceptanceTable table;
        RequestBias bias;
        observe_draws(candidates, drawn, table, bias);
        return std::vector<double>{tried(table, first), tried(table, second), tried(table, deeper),
                                   tried(table, deepest), tried(table, elsewhere)};
    };
    EXPECT_EQ(judged({}), (std::vector<double>{0, 0, 0, 0, 0}));
    EXPECT_EQ(judged({7}), (std::vector<double>{1, 1, 0, 0, 0}));
    EXPECT_EQ(judged({1}),
              (std::vector<double>{1, 1, 0, 0, 0}));  // stopped there: 2 is not to blame
    EXPECT_EQ(judged({7, 1}), (std::vector<double>{1, 1, 0, 0, 0}));  // 1 came a place too late
    EXPECT_EQ(judged({1, 9}), (std::vector<double>{1, 1, 1, 0, 0}));
    EXPECT_EQ(judged({4, 5}), (std::vector<double>{1, 1, 0, 0, 1}));
    EXPECT_EQ(judged({1, 2, 3, 6}), (std::vector<double>{1, 1, 1, 1, 0}));

    AcceptanceTable table;
    RequestBias bias;
    for (int i = 0; i < 200; ++i)
        observe_draws(candidates, std::vector<TokenId>{4, 6}, table, bias);
    EXPECT_LT(table.estimate(first), 0.05);
    EXPECT_GT(table.estimate(second), 0.9);
    EXPECT_EQ(candidates.rank(table, bias, 2).tree.token(1), 4);  // measured, not believed
}

TEST(Acceptance, ARequestWithoutRepeatsIsWrittenOffWithinADozenTokens) {
    RequestBias bias;
    EXPECT_EQ(bias.factor(0), 1);
    for (int i = 0; i < 12; ++i) bias.observe(0, 0.6, false);
    EXPECT_LT(bias.factor(0), 0.3);
    EXPECT_EQ(bias.factor(1), 1);
    for (int i = 0; i < 300; ++i) bias.observe(0, 0.1, true);
    EXPECT_EQ(bias.factor(0), RequestBias::kLargest);
}

}  // namespace
}  // namespace espalier::speculate
