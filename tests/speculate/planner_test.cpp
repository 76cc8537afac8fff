// SPDX-License-Identifier: Apache-2.0
// Plans of what is drafted: the laws they must obey, on machines whose times are known and drafters
// whose acceptance is.
#include "speculate/policy/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "speculate/random.hpp"

namespace espalier::speculate {
namespace {

// A drafter's first choice is right so often, at any depth, its second in `second` of the places,
// further ones never.
struct DrafterHabits {
    double first = 0.8;
    double second = 0.05;
    double level_seconds = 0.0005;
};

// A target of 10 ms a step and so much per token, and up to two drafters.
struct Planning {
    Planning(double token_seconds, const std::vector<DrafterHabits>& drafters) {
        std::vector<StepSample> samples;
        for (const std::int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 512})
            samples.push_back({.size = {.rows = 1, .tokens = tokens},
                               .seconds = 0.01 + token_seconds * static_cast<double>(tokens)});
        target = *StepTime::fit(samples);
        for (std::size_t d = 0; d < drafters.size(); ++d) {
            for (int i = 0; i < 1000; ++i) learn(static_cast<DrafterId>(d), drafters[d], i);
            for (const std::int32_t levels : {1, 3, 6})
                for (int i = 0; i < 30; ++i)
                    times[d].observe(levels, levels,
                                     static_cast<double>(levels) * drafters[d].level_seconds);
        }
        count = drafters.size();
    }
    void learn(DrafterId d, const DrafterHabits& habits, int i) {
        const double share = (i * 37 % 100) / 100.0;
        for (std::int32_t depth = 1; depth <= 16; ++depth) {
            table.observe(place_of(d, depth, 0, 0.6f), share < habits.first);
            table.observe(place_of(d, depth, 1, -0.6f),
                          share >= habits.first && share < habits.first + habits.second);
            for (const std::int32_t rank : {2, 3})
                table.observe(place_of(d, depth, rank, -0.8f), false);
        }
    }
    PlanRow row() const { return {.bias = &bias, .max_drafts = kMaxDrafts}; }
    // Past the first calls, which look at costs. Returns the shapes of row 0.
    std::vector<DraftShape> plan(std::vector<PlanRow> rows) {
        for (int i = 0; i < 5; ++i) ask(rows);
        std::vector<DraftShape> shapes;
        for (std::size_t d = 0; d < count; ++d)
            shapes.push_back(planner.shape(static_cast<DrafterId>(d), 0));
        return shapes;
    }
    void ask(const std::vector<PlanRow>& rows) {
        const auto n = static_cast<std::int64_t>(rows.size());
        PlanQuestion question{.target = *target,
                              .table = table,
                              .load = {.size = {.rows = n, .tokens = n},
                                       .expected_tokens = static_cast<double>(n),
                                       .max_drafts = 512},
                              .rows = rows};
        for (std::size_t d = 0; d < count; ++d) question.times[d] = &times[d];
        planner.plan(question);
    }

    std::optional<StepTime> target;
    std::array<DraftTime, kMaxDrafters> times;
    std::size_t count = 0;
    AcceptanceTable table;
    RequestBias bias;
    DraftPlanner planner;
};

TEST(Planner, GoesDeeperTheMoreIsRightAndTheLessItCosts) {
    std::int32_t before = 0;
    for (const double right : {0.3, 0.5, 0.7, 0.9}) {
        Planning planning(1e-4, {{.first = right}});
        const std::int32_t depth = planning.plan({planning.row()})[0].depth;
        EXPECT_GE(depth, before) << right;
        before = depth;
    }
    EXPECT_GT(before, 6);
    before = kMaxNodes;
    for (const double level : {1e-6, 2e-4, 1e-3, 4e-3}) {
        Planning planning(1e-4, {{.level_seconds = level}});
        const std::int32_t depth = planning.plan({planning.row()})[0].depth;
        EXPECT_LE(depth, before) << level;
        before = depth;
    }
    EXPECT_GE(before, 1);
}

TEST(Planner, IsWiderWhereTheSecondChoiceIsOftenRight) {
    Planning sure(1e-4, {{.first = 0.9, .second = 0.01}});
    EXPECT_EQ(sure.plan({sure.row()})[0].width, 1);
    Planning torn(1e-5, {{.first = 0.45, .second = 0.4, .level_seconds = 1e-3}});
    EXPECT_GE(torn.plan({torn.row()})[0].width, 2);
}

TEST(Planner, DraftsLessPerRequestInALargerBatch) {
    // On a machine whose tokens cost a tenth of a step, so that a batch pays for every node.
    std::int32_t before = kMaxNodes;
    for (const std::size_t rows : {1, 4, 16}) {
        Planning planning(1e-3, {{.first = 0.7, .level_seconds = 1e-4}});
        const DraftShape shape = planning.plan(std::vector<PlanRow>(rows, planning.row())).front();
        EXPECT_LE(shape.nodes, before) << rows;
        before = shape.nodes;
    }
}

TEST(Planner, ARequestThatDoesNotBenefitIsNotAskedAndComesBack) {
    Planning planning(1e-4, {{.first = 0.8, .level_seconds = 1e-3}});
    RequestBias poor;
    for (int i = 0; i < 60; ++i) poor.observe(0, 0.8, false);
    PlanRow other = planning.row();
    other.bias = &poor;
    planning.plan({planning.row(), other});
    EXPECT_GT(planning.planner.shape(0, 0).depth, 0);
    EXPECT_EQ(planning.planner.shape(0, 1).depth, 0);
    int waited = 0;
    for (; planning.planner.shape(0, 1).depth == 0 && waited < 5000; ++waited) {
        poor.relax(0);
        planning.ask({planning.row(), other});
    }
    EXPECT_GT(waited, 100);  // asking again costs some steps: not often
    EXPECT_LT(waited, 2000);
}

TEST(Planner, ADrafterOfUnknownCostIsAskedForLittle) {
    Planning fresh(1e-4, {DrafterHabits{}});
    fresh.times[0] = {};
    fresh.ask({fresh.row()});
    EXPECT_EQ(fresh.planner.shape(0, 0), DraftPlanner::kFirstShape);
    EXPECT_FALSE(fresh.planner.probes(0));
    // Two calls took a second for each level: no other shape is tried for its own sake.
    fresh.times[0].observe(3, 3, 3.0);
    fresh.ask({fresh.row()});
    EXPECT_EQ(fresh.planner.shape(0, 0).depth, 1);
    fresh.times[0].observe(1, 1, 1.0);
    fresh.ask({fresh.row()});
    EXPECT_EQ(fresh.planner.shape(0, 0).depth, 0);
}

TEST(Planner, StopsAskingWhatDoesNotPayProbesAndComesBack) {
    Planning planning(1e-4, {{.first = 0.2, .level_seconds = 0.005}});  // half a step for a fifth
    const std::vector<PlanRow> rows = {planning.row()};
    planning.plan(rows);
    double probed = 0, total = 0;
    int probes = 0;
    for (int step = 0; step < 10000; ++step) {
        planning.ask(rows);
        total += 0.0101;
        const DraftShape shape = planning.planner.shape(0, 0);
        if (shape.depth == 0) continue;
        ASSERT_TRUE(planning.planner.probes(0)) << step;
        ASSERT_EQ(shape.depth, 1);
        planning.table.fade(0);  // as the engine does
        for (std::int32_t rank = 0; rank < 4; ++rank)
            planning.table.observe(place_of(0, 1, rank, 0.6f), rank == 0 && probes % 5 == 0);
        probed += planning.times[0].seconds(1, 1);
        ++probes;
    }
    EXPECT_GT(probes, 50);
    EXPECT_LE(probed, ProbeSavings::kShare * total * 1.01);
    // The text changes: what it drafts is right now.
    int needed = 0;
    for (planning.ask(rows); planning.planner.shape(0, 0).depth == 0 || planning.planner.probes(0);
         planning.ask(rows), ++needed) {
        ASSERT_LT(needed, 6000);
        if (!planning.planner.probes(0)) continue;
        planning.table.fade(0);
        planning.table.observe(place_of(0, 1, 0, 0.6f), true);
    }
    EXPECT_GT(planning.planner.shape(0, 0).depth, 0);
}

TEST(Planner, StaysWithinWhatARequestMayVerify) {
    Planning planning(1e-4, {{.first = 0.9, .level_seconds = 1e-6}});
    for (const std::int32_t most : {0, 1, 3, 5, 63}) {
        PlanRow row = planning.row();
        row.max_drafts = most;
        for (const DraftShape& shape : planning.plan({row})) {
            EXPECT_LE(shape.depth, most);
            EXPECT_LE(shape.width, most);
            EXPECT_LE(shape.nodes, 1 + most);
            EXPECT_EQ(shape.depth > 0, most > 0);
        }
    }
    planning.ask({});
}

// Drafts that are there already (an n-gram that repeats the text) are not made again.
TEST(Planner, DoesNotPayForWhatIsThereAlready) {
    Planning planning(1e-4, {{.first = 0.8, .level_seconds = 1e-3}});
    for (int i = 0; i < 200; ++i) planning.table.observe_novelty(0, i % 10 == 0);
    PlanRow row = planning.row();
    const DraftShape alone = planning.plan({row})[0];
    EXPECT_GE(alone.depth, 3);
    row.drafts = 12;
    for (std::size_t depth = 0; depth < 12; ++depth)
        row.reach[depth] = std::pow(0.95f, static_cast<float>(depth + 1));
    EXPECT_EQ(planning.plan({row})[0].depth, 0);
}

// Equal costs: the better of two is asked.
TEST(Planner, AsksTheDrafterThatPaysMore) {
    Planning planning(
        1e-4, {{.first = 0.5, .level_seconds = 1e-3}, {.first = 0.8, .level_seconds = 1e-3}});
    for (int i = 0; i < 200; ++i) {
        planning.table.observe_novelty(0, false);
        planning.table.observe_novelty(1, i % 3 == 0);
    }
    const std::vector<DraftShape> shapes = planning.plan({planning.row()});
    EXPECT_EQ(shapes[0].depth, 0);
    EXPECT_GE(shapes[1].depth, 3);
}

// ---- parts
// ----------------------------------------------------------------------------------------

// Against every choice of the best nodes, by trying all pairs of parent and rank.
TEST(ExpectedTree, KeepsTheBestNodesOfEachLevel) {
    Random random(3);
    for (int trial = 0; trial < 50; ++trial) {
        AcceptanceTable table;
        std::array<double, 3> share;
        share[0] = 0.3 + 0.4 * random.unit();
        share[1] = (1 - share[0]) * 0.5 * random.unit();
        share[2] = share[1] * random.unit();
        for (int i = 0; i < 2000; ++i) {
            const double drawn = random.unit();
            for (std::int32_t depth = 1; depth <= 16; ++depth)
                for (std::int32_t rank = 0; rank < 4; ++rank) {
                    const double lo = rank == 0 ? 0 : rank == 1 ? share[0] : share[0] + share[1];
                    const bool hit = rank < 3 && drawn >= lo &&
                                     drawn < lo + share[static_cast<std::size_t>(rank)];
                    table.observe(place_of(0, depth, rank, 0.3f), hit);
                }
        }
        const ExpectedTree tree(table, 0, false, 1.0);
        for (std::size_t width = 0; width < ExpectedTree::kWidths.size(); ++width) {
            std::vector<double> parents = {1};
            for (std::int32_t depth = 1; depth <= 3; ++depth) {
                std::vector<double> children;
                for (const double parent : parents)
                    for (std::int32_t rank = 0; rank < 8; ++rank)
                        children.push_back(parent * table.expected(0, depth, std::min(rank, 3)));
                std::sort(children.rbegin(), children.rend());
                children.resize(ExpectedTree::kKept);
                const auto level = tree.level(width, depth);
                ASSERT_EQ(level.size(), children.size());
                for (std::size_t i = 0; i < level.size(); ++i)
                    EXPECT_NEAR(level[i], children[i], 0.02) << depth << " " << i;
                parents = children;
                parents.resize(static_cast<std::size_t>(ExpectedTree::kWidths[width]));
            }
        }
    }
}

TEST(ExpectedTree, NeverExpectsMoreThanCertainty) {
    AcceptanceTable table;
    for (int i = 0; i < 500; ++i)
        for (std::int32_t depth = 1; depth <= 16; ++depth)
            for (std::int32_t rank = 0; rank < 4; ++rank)
                table.observe(place_of(0, depth, rank, 0.3f), true);
    const ExpectedTree tree(table, 0, false, RequestBias::kLargest);
    for (std::size_t width = 0; width < ExpectedTree::kWidths.size(); ++width) {
        float before = 1;
        for (std::int32_t depth = 1; depth <= ExpectedTree::kLevels; ++depth) {
            EXPECT_LE(tree.reach(width, depth), 0.991f * before);
            before = tree.reach(width, depth);
            for (const float survival : tree.level(width, depth)) EXPECT_LE(survival, before);
        }
    }
}

TEST(DraftTime, TellsLevelsFromNodesAndShrugsAtAWildCall) {
    Random random(5);
    DraftTime time;
    EXPECT_FALSE(time.known());
    for (int i = 0; i < 2000; ++i) {
        const std::int32_t levels = random.between(1, 8);
        const std::int64_t nodes = levels * random.between(1, 40);
        time.observe(levels, nodes, 1e-3 * levels + 1e-5 * static_cast<double>(nodes));
    }
    EXPECT_NEAR(time.seconds(4, 4) / 4.04e-3, 1, 0.1);
    EXPECT_NEAR(time.seconds(2, 80) / 2.8e-3, 1, 0.1);
    const double before = time.seconds(2, 8);
    time.observe(2, 8, 1.0);
    EXPECT_LE(time.seconds(2, 8), 1.11 * before);
    for (const double seconds : {0.0, -1.0, std::nan("")}) time.observe(1, 1, seconds);
    EXPECT_LE(time.seconds(2, 8), 1.11 * before);
}

// Chains for 128 texts say nothing of a token's cost: it is the level's until another width tells.
// And the first calls, which make recordings, do not count once there are others.
TEST(DraftTime, BlamesLevelsUntilTokensAreToldApartAndForgetsSlowFirstCalls) {
    DraftTime time;
    const auto taken = [](std::int32_t levels, std::int64_t tokens) {
        return 1e-4 * levels + 1e-7 * static_cast<double>(tokens);
    };
    time.observe(3, 3 * 128, 10 * taken(3, 3 * 128));
    time.observe(2, 2 * 128, 4 * taken(2, 2 * 128));
    for (const std::int32_t levels : {1, 3, 2, 4})
        time.observe(levels, levels * 128, taken(levels, levels * 128));
    EXPECT_NEAR(time.seconds(3, 3 * 128) / taken(3, 3 * 128), 1, 0.01);
    EXPECT_LT(time.per_token(), 1.2e-7);
    for (int i = 0; i < 3; ++i) time.observe(2, 2 * 512, taken(2, 2 * 512));
    EXPECT_NEAR(time.per_token() / 1e-7, 1, 0.05);
    EXPECT_NEAR(time.per_level() / 1e-4, 1, 0.05);
}

}  // namespace
}  // namespace espalier::speculate
