// SPDX-License-Identifier: Apache-2.0
// Single walks: the smallest tree, the largest, and what a walk costs. walk_property_test.cpp has
// the equality with one token at a time.
#include "accept/walk.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <vector>

#include "accept/tiny_tokenizer.hpp"
#include "support/allocation_counter.hpp"

namespace espalier::accept {
namespace {

struct Chain {
    std::vector<std::int32_t> parents{-1}, tokens{-1};
    TreeView view() const { return {parents, tokens}; }
    void add(std::int32_t token) {
        parents.push_back(static_cast<std::int32_t>(parents.size()) - 1);
        tokens.push_back(token);
    }
};

TEST(Walk, ARootAloneIsPlainDecode) {
    OutputOptions options;
    options.max_tokens = 2;
    RequestProgress progress(OutputRules::make(options, tiny_tokenizer(), 1000).value(),
                             tiny_tokenizer(), std::array{id_of("a")});
    const std::array<std::int32_t, 1> parents = {-1};
    const std::array<ops::Draw, 1> draws = {ops::Draw{id_of("b"), -0.5f, ops::DrawFlag::fine}};
    Emission out;
    const WalkResult first = walk({parents, parents}, {draws, {}, 0}, progress, out);
    EXPECT_EQ(first.path.values().size(), 1u);
    EXPECT_FALSE(first.finish);
    const WalkResult second = walk({parents, parents}, {draws, {}, 0}, progress, out);
    EXPECT_EQ(second.finish, (Finish{FinishReason::length, -1}));
    EXPECT_EQ(out.text, "bb");
    EXPECT_THROW(walk({parents, parents}, {draws, {}, 0}, progress, out), std::logic_error);
}

// Tokens of up to 15 bytes: the decoder returns longer ones in strings of their own.
TEST(Walk, AllocatesNothingOnceItHasItsMemory) {
    OutputOptions options;
    options.max_tokens = 100000;
    options.stop = {"abc\n", "bcb"};
    options.top_logprobs = 2;
    options.count_tokens = true;
    RequestProgress progress(OutputRules::make(options, tiny_tokenizer(), 1000).value(),
                             tiny_tokenizer(), std::array{id_of("a")});
    Chain tree;
    std::vector<ops::Draw> draws;
    for (const std::string_view token : {"a", "b", "你", "\xe4", "\xbd\xa0", "abc", "c", "a"}) {
        tree.add(id_of(token));
        draws.push_back({id_of(token), -1.0f, ops::DrawFlag::fine});
    }
    draws.push_back({id_of("b"), -1.0f, ops::DrawFlag::fine});
    const std::vector<TokenLogprob> top(2 * draws.size());
    Emission out;
    std::int64_t before = 0;
    for (int step = 0; step < 1000; ++step) {
        if (step == 10) before = allocations_so_far();
        out.clear();
        const NodeCounts counts = progress.counts_at(std::span(tree.tokens).subspan(1));
        ASSERT_FALSE(walk(tree.view(), {draws, top, 0}, progress, out).finish);
        ASSERT_EQ(counts.changed().size(), 7u);
    }
    EXPECT_GT(before, 0);
    EXPECT_EQ(allocations_so_far() - before, 0);
    EXPECT_EQ(progress.usage().completion_tokens, 9000);
}

// Each draft is counted to its drafter, and a token says which draft was right about it; the token
// that nobody drafted says nothing.
TEST(Walk, TellsWhereAcceptedTokensCameFrom) {
    OutputOptions options;
    options.max_tokens = 1000;
    RequestProgress progress(OutputRules::make(options, tiny_tokenizer(), 1000).value(),
                             tiny_tokenizer(), std::array{id_of("a")});
    const std::int32_t a = id_of("a"), b = id_of("b"), c = id_of("c");
    const std::vector<std::int32_t> parents = {-1, 0, 0, 2, 2}, tokens = {a, a, b, a, c};
    const std::vector<DraftOrigin> origins = {{},
                                              {.drafters = 1, .drafter = 0, .depth = 1},
                                              {.drafters = 5, .drafter = 2, .depth = 1, .rank = 1},
                                              {.drafters = 4, .drafter = 2, .depth = 2},
                                              {.drafters = 1, .drafter = 0, .depth = 2, .rank = 3}};
    std::vector<ops::Draw> draws(5, {c, 0.0f, ops::DrawFlag::fine});
    draws[0].token = b;
    Emission out;
    walk({parents, tokens, origins}, {draws, {}, 0}, progress, out);
    ASSERT_EQ(out.tokens.size(), 3u);
    EXPECT_EQ(out.tokens[0].origin, origins[2]);
    EXPECT_EQ(out.tokens[1].origin, origins[4]);
    EXPECT_FALSE(out.tokens[2].origin.drafted());
    const Usage& usage = progress.usage();
    EXPECT_EQ(usage.drafted_from, (std::array<std::int64_t, kMaxDrafters>{2, 0, 2, 0}));
    EXPECT_EQ(usage.accepted_from, (std::array<std::int64_t, kMaxDrafters>{1, 0, 1, 0}));
    EXPECT_EQ(usage.accepted, 2);
    CommittedToken same = out.tokens[0];
    same.origin = {};
    EXPECT_EQ(same, out.tokens[0]);  // how soon it was there is no part of it
}

TEST(Walk, TakesTheLargestTree) {
    OutputOptions options;
    options.max_tokens = 1000;
    RequestProgress progress(OutputRules::make(options, tiny_tokenizer(), 1000).value(),
                             tiny_tokenizer(), std::array{id_of("a")});
    Chain chain;
    for (int i = 0; i < 63; ++i) chain.add(id_of("b"));
    std::vector<ops::Draw> draws(64, {id_of("b"), 0.0f, ops::DrawFlag::fine});
    Emission out;
    const WalkResult result = walk(chain.view(), {draws, {}, 0}, progress, out);
    EXPECT_EQ(result.tokens.values().size(), 64u);
    EXPECT_EQ(progress.usage().accepted_at_depth[63], 1);
    chain.add(id_of("b"));
    draws.emplace_back();
    EXPECT_THROW(walk(chain.view(), {draws, {}, 0}, progress, out), std::logic_error);
}

}  // namespace
}  // namespace espalier::accept
