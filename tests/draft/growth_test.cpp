// SPDX-License-Identifier: Apache-2.0
// Growing a tree level by level: which nodes are run, where their KV lies, and what is proposed.
#include "draft/growth.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>

#include "base/random.hpp"

namespace espalier::draft {
namespace {

using speculate::Proposal;

TEST(Growth, AChainIsOneNodeALevel) {
    Growth growth;
    growth.start(5, {.depth = 3, .width = 1, .nodes = 4}, 64, 64);
    std::vector<std::int32_t> places;
    for (std::int32_t level = 0; !growth.frontier().empty(); ++level) {
        ASSERT_EQ(growth.frontier().size(), 1u);
        places.push_back(growth.node(growth.frontier()[0]).place);
        const Growth::Child children[] = {{100 + level, 0.9f}, {200 + level, 0.05f}};
        growth.add_children(growth.frontier()[0], children);
        growth.next_level();
    }
    EXPECT_EQ(places, (std::vector<std::int32_t>{0, 1, 2}));
    Proposal proposal(1, 5);
    growth.finish(proposal);
    EXPECT_EQ(std::vector(proposal.tree.tokens().begin(), proposal.tree.tokens().end()),
              (std::vector<TokenId>{5, 100, 101, 102}));
    EXPECT_TRUE(proposal.tree.is_chain());
    EXPECT_FLOAT_EQ(proposal.score[3], 0.9f);
}

// What was seen beside the chain takes the nodes that the chain leaves: it cost no pass.
TEST(Growth, SiblingsOfTheFrontierAreProposedToo) {
    Growth growth;
    growth.start(5, {.depth = 2, .width = 1, .nodes = 4}, 64, 64);
    const Growth::Child first[] = {{1, 0.5f}, {2, 0.4f}, {3, 0.1f}};
    growth.add_children(0, first);
    growth.next_level();
    ASSERT_EQ(growth.frontier().size(), 1u);
    const Growth::Child second[] = {{4, 0.6f}, {5, 0.3f}};
    growth.add_children(growth.frontier()[0], second);
    growth.next_level();
    EXPECT_TRUE(growth.frontier().empty());
    Proposal proposal(1, 5);
    growth.finish(proposal);
    // 0.5, 0.4, 0.5 · 0.6
    EXPECT_EQ(std::vector(proposal.tree.tokens().begin(), proposal.tree.tokens().end()),
              (std::vector<TokenId>{5, 1, 2, 4}));
    EXPECT_EQ(proposal.tree.parent(3), 1);
}

TEST(Growth, NothingIsDraftedBelowWhatWillNotBe) {
    Growth growth;
    growth.start(5, {.depth = 9, .width = 4, .nodes = 20}, 64, 64);
    const Growth::Child children[] = {{1, 0.9f}, {2, 0.019f}, {3, 0.001f}};
    growth.add_children(0, children);
    growth.next_level();
    EXPECT_EQ(growth.frontier().size(), 1u);  // 0.019 is below the least
    growth.next_level();                      // and a node without children ends it
    EXPECT_TRUE(growth.frontier().empty());
}

TEST(Growth, ShapesThatAllowNothingGrowNothing) {
    const speculate::DraftShape shapes[] = {{.depth = 0, .width = 3, .nodes = 9},
                                            {.depth = 3, .width = 0, .nodes = 9},
                                            {.depth = 3, .width = 3, .nodes = 1}};
    for (const auto& shape : shapes) {
        Growth growth;
        growth.start(5, shape, 64, 64);
        EXPECT_TRUE(growth.frontier().empty());
        Proposal proposal(1, 5);
        growth.finish(proposal);
        EXPECT_EQ(proposal.tree.size(), 1);
    }
}

// Random children: shape and places are kept, words are ancestors, the tree holds the likeliest.
TEST(Growth, RandomTreesKeepToTheirShape) {
    Random random(11);
    Growth growth;
    for (int trial = 0; trial < 300; ++trial) {
        const speculate::DraftShape shape{.depth = random.between(1, 8),
                                          .width = random.between(1, 8),
                                          .nodes = random.between(2, 64)};
        const std::int32_t places = random.between(1, 64), width = random.between(1, 6);
        growth.start(0, shape, places, width);
        std::int32_t levels = 0, used = 0;
        std::vector<double> paths;
        for (; !growth.frontier().empty(); ++levels) {
            ASSERT_LE(std::ssize(growth.frontier()), std::min(shape.width, width));
            for (const std::int32_t index : growth.frontier()) {
                const Growth::Node& node = growth.node(index);
                ASSERT_EQ(node.depth, levels);
                ASSERT_EQ(node.place, used++);
                ASSERT_EQ(std::popcount(node.word), 1 + levels);
                ASSERT_TRUE(node.word >> node.place == 1);
                if (index != 0) {
                    ASSERT_EQ(node.word & growth.node(node.parent).word,
                              growth.node(node.parent).word);
                }
                std::vector<Growth::Child> children;
                float left = 1;
                for (int i = random.between(0, 5); i > 0; --i) {
                    const auto score = left * 0.01f * static_cast<float>(random.between(1, 100));
                    children.push_back({static_cast<TokenId>(children.size()), score});
                    left -= score;
                }
                std::sort(children.begin(), children.end(),
                          [](const auto& a, const auto& b) { return a.score > b.score; });
                for (const auto& child : children)
                    paths.push_back(node.path * static_cast<double>(child.score));
                growth.add_children(index, children);
            }
            growth.next_level();
        }
        ASSERT_LE(levels, shape.depth);
        ASSERT_LE(used, places);
        Proposal proposal(1, 0);
        growth.finish(proposal);
        const std::int32_t drafts = proposal.tree.size() - 1;
        ASSERT_EQ(drafts, std::min<std::int64_t>(std::ssize(paths), shape.nodes - 1));
        std::sort(paths.begin(), paths.end(), std::greater<>());
        std::vector<double> got(static_cast<std::size_t>(proposal.tree.size()), 1.0);
        for (std::int32_t node = 1; node <= drafts; ++node) {
            const auto at = static_cast<std::size_t>(node);
            got[at] = got[static_cast<std::size_t>(proposal.tree.parent(node))] *
                      static_cast<double>(proposal.score[at]);
            ASSERT_NEAR(got[at], paths[at - 1], 1e-12);
        }
    }
}

}  // namespace
}  // namespace espalier::draft
