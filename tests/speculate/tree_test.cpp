// SPDX-License-Identifier: Apache-2.0
// Trees against a plain model that walks parents one by one.
#include "speculate/tree.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.hpp"
#include "speculate/random.hpp"

namespace espalier::speculate {
namespace {

TEST(Tree, WordsDepthsAndChildrenEqualThePlainModel) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        Random random(seed);
        const Tree tree = random_tree(random, random.between(1, kMaxNodes), random.between(2, 40));
        bool chain = true;
        for (std::int32_t i = 0; i < tree.size(); ++i) {
            std::uint64_t word = 0;
            std::int32_t depth = -1;
            for (std::int32_t n = i; n != kNoNode; n = tree.parent(n), ++depth) {
                ASSERT_GE(n, 0);
                word |= 1ull << n;
            }
            EXPECT_EQ(tree.words()[static_cast<std::size_t>(i)], word);
            EXPECT_EQ(tree.depth(i), depth);
            ASSERT_LT(tree.parent(i), i);
            chain = chain && tree.parent(i) == i - 1;
            for (TokenId token = 0; token < 40; ++token) {
                std::int32_t found = kNoNode;
                for (std::int32_t c = tree.size() - 1; c > 0; --c)
                    if (tree.parent(c) == i && tree.token(c) == token) {
                        EXPECT_EQ(found, kNoNode) << "twins";
                        found = c;
                    }
                EXPECT_EQ(tree.child(i, token), found);
            }
        }
        EXPECT_EQ(tree.is_chain(), chain);
    }
}

TEST(Tree, AChainHasCausalWords) {
    Tree tree(7);
    for (std::int32_t i = 1; i < kMaxNodes; ++i) EXPECT_EQ(tree.add(i - 1, i), i);
    EXPECT_TRUE(tree.is_chain());
    EXPECT_TRUE(tree.full());
    for (std::int32_t i = 0; i < kMaxNodes; ++i)
        EXPECT_EQ(tree.words()[static_cast<std::size_t>(i)], ~0ull >> (63 - i));
    EXPECT_EQ(tree.words()[63], ~0ull);
    EXPECT_EQ(tree.add(3, 4), 4);  // it is there already
    EXPECT_THROW(tree.add(3, 99), CheckFailure);
    EXPECT_THROW(tree.token(kMaxNodes), CheckFailure);
}

TEST(Tree, EveryPrefixIsATree) {
    Random random(5);
    const Tree tree = random_tree(random, kMaxNodes, 30);
    for (std::int32_t n = 1; n <= tree.size(); ++n) {
        const Tree first(tree, n);
        const auto again = Tree::from(first.tokens(), first.parents(), 30);
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_EQ(again->size(), n);
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
            EXPECT_EQ(again->words()[i], tree.words()[i]);
    }
}

std::string refusal(std::vector<TokenId> tokens, std::vector<std::int32_t> parents) {
    const auto tree = Tree::from(tokens, parents, 100);
    return tree ? "accepted" : tree.error().message;
}

TEST(Tree, RefusesWhatIsNoTreeByName) {
    EXPECT_EQ(refusal({1, 2}, {-1, 0}), "accepted");
    EXPECT_EQ(refusal({}, {}), "tree: 0 nodes, but a root is needed");
    EXPECT_EQ(refusal({1, 2}, {-1}), "tree: 2 tokens but 1 parents");
    EXPECT_EQ(refusal({1, 2}, {0, 0}), "tree: the root's parent is 0, not -1");
    EXPECT_EQ(refusal({1, 2, 3}, {-1, 0, 2}),
              "tree: node 2 has parent 2, which is not a node before it");
    EXPECT_EQ(refusal({1, 2, 3}, {-1, 0, -1}),
              "tree: node 2 has parent -1, which is not a node before it");
    EXPECT_EQ(refusal({1, 2, 100}, {-1, 0, 0}),
              "tree: node 2 has token 100 of a vocabulary of 100");
    EXPECT_EQ(refusal({-1, 2}, {-1, 0}), "tree: node 0 has token -1 of a vocabulary of 100");
    EXPECT_EQ(refusal({1, 2, 3, 2}, {-1, 0, 0, 0}),
              "tree: nodes 1 and 3 are both child 2 of node 0");
    EXPECT_EQ(refusal(std::vector<TokenId>(65, 1), std::vector<std::int32_t>(65, 0)),
              "tree: 65 nodes, at most 64 fit a word");
}

TEST(Tree, RandomArraysAreRefusedOrEqualWhatTheySay) {
    int accepted = 0;
    for (std::uint64_t seed = 0; seed < 5000; ++seed) {
        Random random(seed);
        const auto n = static_cast<std::size_t>(random.between(1, 6));
        std::vector<TokenId> tokens(n);
        std::vector<std::int32_t> parents(n, -1);
        bool valid = true;
        for (std::size_t i = 0; i < n; ++i) {
            tokens[i] = random.between(-1, 20);
            valid = valid && tokens[i] >= 0 && tokens[i] < 20;
            if (i == 0) continue;
            parents[i] = random.between(-1, static_cast<std::int32_t>(i));
            valid = valid && parents[i] >= 0 && parents[i] < static_cast<std::int32_t>(i);
            for (std::size_t j = 1; j < i; ++j)
                valid = valid && !(parents[j] == parents[i] && tokens[j] == tokens[i]);
        }
        const auto tree = Tree::from(tokens, parents, 20);
        ASSERT_EQ(static_cast<bool>(tree), valid) << "seed " << seed;
        if (!valid) continue;
        ++accepted;
        for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(tree->tokens()[i], tokens[i]);
            EXPECT_EQ(tree->parents()[i], parents[i]);
        }
    }
    EXPECT_GT(accepted, 200);
}

}  // namespace
}  // namespace espalier::speculate
