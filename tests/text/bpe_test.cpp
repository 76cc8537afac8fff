// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "text/added_tokens.hpp"

namespace espalier::text {
namespace {

struct Random {
    std::array<TokenId, 256> bytes;
    std::vector<Merge> merges;
};

// Merges over the letters a–d, in a random order of ranks: many make a pair appear that ranks below
// the one that made it.
Random random_merges(std::mt19937& random) {
    Random result;
    for (int i = 0; i < 256; ++i) result.bytes[static_cast<std::size_t>(i)] = i;
    std::vector<TokenId> tokens{'a', 'b', 'c', 'd'};
    std::map<std::pair<TokenId, TokenId>, bool> seen;
    for (TokenId next = 256; next < 320; ++next) {
        const std::pair pair{tokens[random() % tokens.size()], tokens[random() % tokens.size()]};
        if (seen[pair]) continue;
        seen[pair] = true;
        result.merges.push_back({pair.first, pair.second, next, 0});
        tokens.push_back(next);
    }
    std::vector<std::uint32_t> ranks(result.merges.size());
    for (std::uint32_t i = 0; i < ranks.size(); ++i) ranks[i] = i;
    std::shuffle(ranks.begin(), ranks.end(), random);
    for (std::size_t i = 0; i < ranks.size(); ++i) result.merges[i].rank = ranks[i];
    return result;
}

// The definition, word for word.
std::vector<TokenId> plain_encode(const Random& model, std::string_view word) {
    std::vector<TokenId> ids;
    for (const char c : word) ids.push_back(static_cast<unsigned char>(c));
    for (;;) {
        const Merge* best = nullptr;
        std::size_t best_at = 0;
        for (std::size_t at = 0; at + 1 < ids.size(); ++at)
            for (const Merge& merge : model.merges)
                if (merge.left == ids[at] && merge.right == ids[at + 1] &&
                    (best == nullptr || merge.rank < best->rank)) {
                    best = &merge;
                    best_at = at;
                }
        if (best == nullptr) return ids;
        ids[best_at] = best->merged;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
    }
}

TEST(Bpe, ShortAndLongWordsEqualTheDefinition) {
    std::mt19937 random(1);
    for (int round = 0; round < 60; ++round) {
        const Random model = random_merges(random);
        Bpe bpe(model.bytes, model.merges.size());
        for (const Merge& merge : model.merges) ASSERT_TRUE(bpe.add(merge));
        EXPECT_FALSE(bpe.add(model.merges[0]));
        for (const std::size_t length : {0, 1, 2, 3, 7, 20, 63, 64, 65, 66, 130}) {
            std::string word;
            while (word.size() < length) word += "abcd"[random() % (1 + random() % 4)];
            std::vector<TokenId> ids;
            bpe.encode(word, ids);
            ASSERT_EQ(ids, plain_encode(model, word)) << word;
        }
    }
}

TEST(AddedTokenTrie, LeftmostThenLongest) {
    AddedTokenTrie trie;
    EXPECT_FALSE(trie.find("abc", 0));
    trie.add("<a>", 1);
    trie.add("<a>b", 2);
    trie.add("a>bc", 3);
    trie.add("c", 4);
    const auto match = trie.find("x<a>bc", 0);
    ASSERT_TRUE(match);
    EXPECT_EQ(match->id, 2);
    EXPECT_EQ(match->begin, 1u);
    EXPECT_EQ(match->end, 5u);
    EXPECT_EQ(trie.find("x<a>bc", 5)->id, 4);
    EXPECT_EQ(trie.find("<<a>", 0)->begin, 1u);
    EXPECT_FALSE(trie.find("<a", 0));
}

}  // namespace
}  // namespace espalier::text
