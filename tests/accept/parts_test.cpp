// SPDX-License-Identifier: Apache-2.0
// Stop strings, token counts and prompt logprobs, each against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "accept/prompt_logprobs.hpp"
#include "accept/stop_scanner.hpp"
#include "accept/token_counts.hpp"
#include "base/random.hpp"

namespace espalier::accept {
namespace {

std::string random_letters(Random& random, int longest) {
    std::string text;
    for (int i = random.between(1, longest); i > 0; --i)
        text += static_cast<char>('a' + random.between(0, 1));
    return text;
}

// Two letters only, so that every string overlaps itself and the others.
TEST(StopScanner, EqualsPlainSearchAfterEveryByte) {
    Random random(1);
    for (int round = 0; round < 3000; ++round) {
        std::vector<std::string> stops;
        for (int i = random.between(0, 4); i > 0; --i) stops.push_back(random_letters(random, 6));
        StopScanner scanner(stops);
        std::string text;
        for (const char byte : random_letters(random, 40)) {
            text += byte;
            const auto match = scanner.push(byte);
            std::size_t longest = 0;
            std::size_t held = 0;
            for (const std::string& stop : stops) {
                if (text.ends_with(stop)) longest = std::max(longest, stop.size());
                for (std::size_t k = 1; k < stop.size(); ++k)
                    if (text.ends_with(stop.substr(0, k))) held = std::max(held, k);
            }
            ASSERT_EQ(match.has_value(), longest > 0);
            if (match) {
                ASSERT_EQ(match->bytes, longest);
                ASSERT_EQ(stops[static_cast<std::size_t>(match->index)].size(), longest);
            }
            ASSERT_EQ(scanner.held_bytes(), held);
        }
    }
}

TEST(TokenCounts, CountAncestorsAtANode) {
    Random random(2);
    for (int round = 0; round < 200; ++round) {
        const int vocabulary = random.between(1, 400);
        const auto tokens = [&](int longest) {
            std::vector<std::int32_t> list(static_cast<std::size_t>(random.between(0, longest)));
            for (std::int32_t& token : list) token = random.between(0, vocabulary - 1) * 997;
            return list;
        };
        std::map<std::int32_t, TokenCount> plain;
        const auto see = [&](std::int32_t token) -> TokenCount& {
            plain[token].token = token;
            return plain[token];
        };
        const auto prompt = tokens(300);
        TokenCounts counts(prompt);
        for (const std::int32_t token : prompt) see(token).in_prompt = true;
        for (const std::int32_t token : tokens(300)) {
            counts.add(token);
            ++see(token).in_output;
        }
        ASSERT_EQ(counts.entries().size(), plain.size());
        for (const TokenCount& entry : counts.entries()) ASSERT_EQ(entry, plain.at(entry.token));

        const auto path = tokens(63);
        for (const std::int32_t token : path) ++see(token).in_output;
        const NodeCounts node = counts.at(path);
        std::map<std::int32_t, TokenCount> at_node;
        for (const TokenCount& entry : node.committed) at_node[entry.token] = entry;
        for (const TokenCount& entry : node.changed()) at_node[entry.token] = entry;
        ASSERT_EQ(at_node, plain);
        ASSERT_EQ(counts.of(-5), (TokenCount{.token = -5}));
    }
}

TEST(PromptLogprobs, AreTheSameForEveryChunking) {
    Random random(3);
    for (int round = 0; round < 500; ++round) {
        std::vector<std::int32_t> prompt(static_cast<std::size_t>(random.between(1, 40)));
        for (std::int32_t& token : prompt) token = random.between(0, 99);
        const auto length = static_cast<std::int64_t>(prompt.size());
        const int top_count = random.between(0, 2);
        // The model: logits at position i give token t this logprob.
        const auto logprob = [](std::int64_t position, std::int32_t token) {
            return -static_cast<float>(position * 100 + token);
        };
        PromptLogprobs logprobs(prompt, top_count);
        std::int64_t first = 0;
        while (first < length) {
            const std::int64_t count =
                random.between(1, static_cast<int>(std::min<std::int64_t>(9, length - first)));
            std::vector<float> values;
            std::vector<TokenLogprob> top;
            for (const std::int32_t token : logprobs.wanted(first, count)) {
                const std::int64_t position = first + static_cast<std::int64_t>(values.size());
                values.push_back(logprob(position, token));
                for (int k = 0; k < top_count; ++k) top.push_back({k, logprob(position, k)});
            }
            logprobs.add(first, values, top);
            first += count;
            // Preempted: some of it is computed again.
            if (random.chance(0.1)) first = random.between(0, static_cast<int>(first));
        }
        ASSERT_TRUE(logprobs.complete());
        ASSERT_EQ(logprobs.logprobs().size(), prompt.size() - 1);
        ASSERT_EQ(logprobs.tops().size(),
                  (prompt.size() - 1) * static_cast<std::size_t>(top_count));
        for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
            const auto position = static_cast<std::int64_t>(i);
            ASSERT_EQ(logprobs.logprobs()[i], logprob(position, prompt[i + 1]));
            for (int k = 0; k < top_count; ++k)
                ASSERT_EQ(logprobs.tops()[i * static_cast<std::size_t>(top_count) +
                                          static_cast<std::size_t>(k)],
                          (TokenLogprob{k, logprob(position, k)}));
        }
    }
}

TEST(PromptLogprobs, RefuseAGap) {
    const std::array<std::int32_t, 4> prompt = {1, 2, 3, 4};
    PromptLogprobs logprobs(prompt, 0);
    const std::array<float, 1> one = {-1.0f};
    EXPECT_THROW(logprobs.add(1, one, {}), std::logic_error);
    EXPECT_THROW(logprobs.wanted(2, 3), std::logic_error);
    EXPECT_TRUE(logprobs.wanted(3, 1).empty());
}

}  // namespace
}  // namespace espalier::accept
