// SPDX-License-Identifier: Apache-2.0
// The suffix automaton and its proposals against a search that compares every pair of places.
#include "speculate/ngram.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "speculate/random.hpp"

namespace espalier::speculate {
namespace {

using Text = std::vector<TokenId>;

Text random_text(Random& random, std::int32_t length) {
    Text text;
    const std::int32_t vocabulary = random.between(1, 6);
    const double copying = random.unit();
    while (static_cast<std::int32_t>(text.size()) < length) {
        if (!text.empty() && random.chance(copying)) {  // quote an earlier piece
            const auto from = static_cast<std::size_t>(
                random.between(0, static_cast<std::int32_t>(text.size()) - 1));
            const auto count = static_cast<std::size_t>(random.between(1, 50));
            for (std::size_t i = 0; i < count; ++i) text.push_back(text[from + i]);
        } else {
            text.push_back(random.between(0, vocabulary - 1));
        }
    }
    text.resize(static_cast<std::size_t>(length));
    return text;
}

// Tokens that followed earlier occurrences of the last `length` tokens, with how often.
std::map<TokenId, std::int32_t> followers(const Text& text, std::size_t length) {
    std::map<TokenId, std::int32_t> counts;
    for (std::size_t end = length; end < text.size(); ++end)
        if (std::equal(text.end() - static_cast<std::ptrdiff_t>(length), text.end(),
                       text.begin() + static_cast<std::ptrdiff_t>(end - length)))
            ++counts[text[end]];
    return counts;
}

std::size_t longest_match(const Text& text) {
    std::size_t length = 0;
    while (length + 1 < text.size() && !followers(text, length + 1).empty()) ++length;
    return length;
}

TEST(SuffixAutomaton, MatchesAndCountsEqualTheNaiveSearchAfterEveryToken) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
        Random random(seed);
        const Text text = random_text(random, random.between(1, 120));
        SuffixAutomaton automaton;
        Text so_far;
        for (const TokenId token : text) {
            automaton.append(token);
            so_far.push_back(token);
            const auto match = automaton.link(automaton.text());
            const auto length = static_cast<std::size_t>(automaton.length(match));
            ASSERT_EQ(length, longest_match(so_far)) << "seed " << seed;
            // With its follower a match must not be longer than what is counted.
            if (length >= SuffixAutomaton::kCountedLength || length == 0) continue;
            std::map<TokenId, std::int32_t> counts;
            for (auto e = automaton.first_edge(match); e != SuffixAutomaton::kNone;
                 e = automaton.edge(e).next)
                counts[automaton.edge(e).token] = automaton.count(automaton.edge(e).target);
            ASSERT_EQ(counts, followers(so_far, length)) << "seed " << seed;
        }
    }
}

TEST(SuffixAutomaton, EveryShortSubstringIsCountedAndNoOtherIsFound) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        Random random(seed + 1000);
        const Text text = random_text(random, 150);
        SuffixAutomaton automaton;
        for (const TokenId token : text) automaton.append(token);
        const auto find = [&](const Text& part) {
            auto state = SuffixAutomaton::kEmpty;
            for (const TokenId token : part)
                if (state != SuffixAutomaton::kNone) state = automaton.follow(state, token);
            return state;
        };
        std::map<Text, std::int32_t> counts;
        for (std::size_t i = 0; i < text.size(); ++i)
            for (std::size_t n = 1; n <= 35 && i + n <= text.size(); ++n)
                ++counts[Text(text.begin() + static_cast<std::ptrdiff_t>(i),
                              text.begin() + static_cast<std::ptrdiff_t>(i + n))];
        for (const auto& [part, count] : counts) {
            const auto state = find(part);
            ASSERT_NE(state, SuffixAutomaton::kNone);
            ASSERT_LE(automaton.count(state), count);
            if (part.size() > SuffixAutomaton::kCountedLength) continue;
            ASSERT_EQ(automaton.count(state), count) << "seed " << seed;
        }
        for (int i = 0; i < 200; ++i) {
            const Text part = random_text(random, random.between(1, 8));
            ASSERT_EQ(find(part) != SuffixAutomaton::kNone, counts.count(part) != 0);
        }
    }
}

Proposal propose(const NgramHistory& history, TokenId root, std::int32_t nodes = kMaxNodes) {
    Proposal proposal(0, root);
    history.propose({.nodes = nodes}, proposal);
    return proposal;
}

TEST(Ngram, EveryProposedPathContinuesARepeatOfItsContext) {
    std::int64_t proposed = 0;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        Random random(seed);
        const Text text = random_text(random, random.between(5, 150));
        NgramLimits limits;
        limits.least_match = random.between(1, 4);
        limits.max_depth = random.between(1, 10);
        limits.max_children = random.between(1, 5);
        const std::int32_t nodes = random.between(1, kMaxNodes);
        NgramHistory history(limits);
        for (const TokenId token : text) history.append(token);
        const Proposal p = propose(history, text.back(), nodes);

        ASSERT_LE(p.tree.size(), nodes);
        const auto least = static_cast<std::size_t>(limits.least_match);
        if (longest_match(text) < least) {
            ASSERT_EQ(p.tree.size(), 1);
        }
        std::vector<float> sums(kMaxNodes);
        std::vector<std::int32_t> children(kMaxNodes);
        for (std::int32_t i = 1; i < p.tree.size(); ++i) {
            const float score = p.score[static_cast<std::size_t>(i)];
            ASSERT_GT(score, 0.0f);
            ASSERT_LE(p.tree.depth(i), limits.max_depth);
            const auto parent = static_cast<std::size_t>(p.tree.parent(i));
            ASSERT_LT(sums[parent] += score, 1.0f);
            ASSERT_LE(++children[parent], limits.max_children);
            // Naively: text + path to the parent must end in `least` tokens that were followed by
            // this token somewhere in the text.
            Text path;
            for (std::int32_t n = p.tree.parent(i); n > 0; n = p.tree.parent(n))
                path.insert(path.begin(), p.tree.token(n));
            Text drafted = text;
            drafted.insert(drafted.end(), path.begin(), path.end());
            Text needle(drafted.end() - static_cast<std::ptrdiff_t>(least), drafted.end());
            needle.push_back(p.tree.token(i));
            ASSERT_NE(std::search(text.begin(), text.end(), needle.begin(), needle.end()),
                      text.end())
                << "seed " << seed << " node " << i;
            ++proposed;
        }
    }
    EXPECT_GT(proposed, 2000);
}

TEST(Ngram, TheFirstChildIsTheMostFrequentFollowerOfTheLongestMatch) {
    int compared = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Random random(seed);
        const Text text = random_text(random, random.between(20, 120));
        NgramHistory history(NgramLimits{});
        for (const TokenId token : text) history.append(token);
        const std::size_t length = longest_match(text);
        if (length < 3 || length >= 32) continue;
        const auto counts = followers(text, length);
        std::int32_t most = 0;
        for (const auto& [token, count] : counts) most = std::max(most, count);
        const Proposal p = propose(history, text.back());
        ASSERT_GT(p.tree.size(), 1);
        const auto found = counts.find(p.tree.token(1));
        ASSERT_NE(found, counts.end()) << "seed " << seed;
        EXPECT_EQ(found->second, most) << "seed " << seed;
        ++compared;
    }
    EXPECT_GT(compared, 100);
}

TEST(Ngram, BranchesWhereHistoryBranched) {
    NgramHistory history(NgramLimits{});
    // "1 2 3 4 8" twice and "1 2 3 5 9" once, each after another token; now "1 2 3" again.
    for (const TokenId t : {1, 2, 3, 4, 8, 6, 1, 2, 3, 5, 9, 7, 1, 2, 3, 4, 8, 0, 1, 2, 3})
        history.append(t);
    const Proposal p = propose(history, 3);
    const auto four = p.tree.child(0, 4), five = p.tree.child(0, 5);
    ASSERT_NE(four, kNoNode);
    ASSERT_NE(five, kNoNode);
    EXPECT_NE(p.tree.child(four, 8), kNoNode);
    EXPECT_NE(p.tree.child(five, 9), kNoNode);
    EXPECT_GT(p.score[static_cast<std::size_t>(four)], p.score[static_cast<std::size_t>(five)]);
}

TEST(Ngram, APeriodIsContinuedPastTheEndOfTheText) {
    NgramHistory history(NgramLimits{});
    for (int i = 0; i < 30; ++i) history.append(i % 3);
    const Proposal p = propose(history, 2);
    std::int32_t node = 0;
    for (int i = 0; i < 20; ++i) {
        node = p.tree.child(node, i % 3);
        ASSERT_NE(node, kNoNode) << "depth " << i + 1;
    }
}

TEST(Ngram, MemoryIsBoundedAndOldTextForgotten) {
    NgramLimits limits;
    limits.history = 1000;
    NgramHistory history(limits);
    Random random(3);
    std::int64_t largest = 0;
    for (int i = 0; i < 20000; ++i) {
        history.append(random.between(0, 3));
        largest = std::max(largest, history.bytes());
    }
    // 1.5 histories of at most 192 bytes per token, and two empty tables of 64 places.
    EXPECT_LE(largest, 1000 * 3 / 2 * 192 + 1024);
    // Half of the limit is always remembered, nothing beyond it.
    const auto recalls_after = [&](int tokens) {
        NgramHistory recalling(limits);
        for (int i = 0; i < 3217; ++i) recalling.append(random.between(0, 3));
        for (const TokenId token : {70, 71, 72}) recalling.append(token);
        for (int i = 0; i < tokens; ++i) recalling.append(random.between(0, 3));
        for (const TokenId token : {70, 71}) recalling.append(token);
        return propose(recalling, 71).tree.child(0, 72) != kNoNode;
    };
    EXPECT_TRUE(recalls_after(480));
    EXPECT_FALSE(recalls_after(1000));
}

TEST(Ngram, OneAutomatonStaysBelowItsDocumentedBytesPerToken) {
    for (const int kind : {0, 1, 2}) {
        SuffixAutomaton automaton;
        Random random(9);
        for (int i = 0; i < 30000; ++i) {
            // One token; two at random; the worst case for states, a b b b …
            automaton.append(kind == 0 ? 0 : kind == 1 ? random.between(0, 1) : i == 0 ? 0 : 1);
            ASSERT_LE(automaton.bytes(), automaton.tokens() * 192 + 1024);
        }
    }
}

// 100k tokens take ~30 ms on one core; a quadratic mistake would take minutes and meet the test's
// time limit. What the history may hold is bounded.
TEST(Ngram, AppendsAHundredThousandTokensOfAnyKind) {
    for (const int kind : {0, 1, 2, 3}) {
        Random random(1);
        NgramHistory history(NgramLimits{});
        for (int i = 0; i < 100000; ++i)
            history.append(kind == 0   ? random.between(0, 99999)
                           : kind == 1 ? random.between(0, 1)
                           : kind == 2 ? 5
                                       : i % 1000);
        EXPECT_LE(history.bytes(), NgramLimits{}.history * 3 / 2 * 192) << "kind " << kind;
    }
}

TEST(NgramDrafter, KeepsRequestsApartAndSlotsReusable) {
    NgramDrafter drafter(NgramLimits{});
    EXPECT_FALSE(drafter.needs().hidden_states);
    const Text first = {1, 2, 3, 4, 1, 2}, second = {1, 2, 7, 8, 1};
    drafter.begin(RequestSlot(0), first, 10);
    drafter.begin(RequestSlot(3), second, 10);
    const Text two = {2};
    const Commitment commitment{RequestSlot(3), two};
    drafter.commit({&commitment, 1});
    Proposal a(2, 2), b(2, 2);
    const DraftCall calls[] = {{.request = RequestSlot(0), .root_position = 5, .proposal = &a},
                               {.request = RequestSlot(3), .root_position = 5, .proposal = &b}};
    ASSERT_TRUE(drafter.propose(calls));
    EXPECT_NE(a.tree.child(0, 3), kNoNode);
    EXPECT_EQ(a.tree.child(0, 7), kNoNode);
    EXPECT_NE(b.tree.child(0, 7), kNoNode);
    drafter.end(RequestSlot(0));
    drafter.begin(RequestSlot(0), second, 10);
    Proposal c(2, 1);
    const DraftCall again[] = {{.request = RequestSlot(0), .root_position = 4, .proposal = &c}};
    ASSERT_TRUE(drafter.propose(again));
    EXPECT_EQ(c.tree.size(), 1);  // "8 1" is new
    drafter.end(RequestSlot(0));
    drafter.end(RequestSlot(3));
    EXPECT_EQ(drafter.bytes(), 0);
}

// An expected output is drafted from its first token on, and again behind what was not expected.
TEST(NgramDrafter, DraftsAnExpectedOutput) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        Random random(seed);
        const auto fresh = [&](int least, int most) {
            Text text;
            for (int i = random.between(least, most); i > 0; --i)
                text.push_back(random.between(100, 100'000));
            return text;
        };
        const Text prompt = fresh(2, 5000), expected = fresh(6, 60);
        NgramDrafter drafter(NgramLimits{});
        const RequestSlot slot(1);
        drafter.expect(slot, prompt, expected);
        const auto first =
            static_cast<std::size_t>(random.between(0, static_cast<std::int32_t>(prompt.size())));
        drafter.begin(slot, std::span(prompt).first(first), 100);
        const Commitment rest{slot, std::span(prompt).subspan(first)};
        drafter.commit({&rest, 1});
        const auto next = [&](TokenId root) {
            Proposal proposal(2, root);
            const DraftCall call{.request = slot, .root_position = 5, .proposal = &proposal};
            EXPECT_TRUE(drafter.propose({&call, 1}));
            return proposal;
        };
        Proposal at_first = next(prompt.back());
        std::int32_t node = 0;
        for (std::size_t i = 0; i < 6; ++i) {
            node = at_first.tree.child(node, expected[i]);
            ASSERT_NE(node, kNoNode) << "seed " << seed << ", token " << i;
        }
        const Text other = {7, expected[3], expected[4]};  // one that was not expected before
        const Commitment came{slot, other};
        drafter.commit({&came, 1});
        EXPECT_NE(next(expected[4]).tree.child(0, expected[5]), kNoNode) << "seed " << seed;
        drafter.end(slot);
        drafter.begin(slot, Text{1, 2}, 10);
        EXPECT_EQ(next(2).tree.size(), 1);  // nothing is left of it
        drafter.end(slot);
    }
}

}  // namespace
}  // namespace espalier::speculate
