// SPDX-License-Identifier: Apache-2.0
// A vocabulary says of every id what it adds to a text; markers and padding add nothing.
#include "grammar/vocabulary.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/paths.hpp"

namespace {

using espalier::TokenId;
using espalier::grammar::Vocabulary;

TEST(Vocabulary, MarkersStopTokensAndPaddingAddNoText) {
    const std::vector<TokenId> stop = {3, 3, 2};
    const std::vector<TokenId> added = {1};
    const auto made =
        Vocabulary::from_bytes({"a", "<tool>", "<eos>", "</s>", "b"}, 70, stop, added);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->size(), 70);
    EXPECT_EQ(made->mask_words(), 3u);
    EXPECT_EQ(made->bytes(0), "a");
    EXPECT_EQ(made->bytes(4), "b");
    for (const TokenId silent : {-1, 1, 2, 3, 5, 69, 70}) EXPECT_EQ(made->bytes(silent), "");
    EXPECT_TRUE(made->is_stop(2) && made->is_stop(3) && !made->is_stop(1));
    EXPECT_EQ(made->stop().size(), 2u);
}

TEST(Vocabulary, RefusesIdsOutsideIt) {
    const std::vector<TokenId> none;
    const std::vector<TokenId> far = {7};
    EXPECT_FALSE(Vocabulary::from_bytes({"a"}, 7, far));
    EXPECT_FALSE(Vocabulary::from_bytes({"a"}, 7, none));
    EXPECT_FALSE(Vocabulary::from_bytes({"a"}, 0, none));
}

TEST(Vocabulary, TakesATokenizersAddedTokensForMarkers) {
    const auto tokenizer = espalier::text::Tokenizer::load(
        std::filesystem::path(espalier::test::source_directory()) / "models/sapling");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const std::vector<TokenId> stop = {*tokenizer->eos()};
    const auto made = Vocabulary::make(*tokenizer, tokenizer->vocabulary() + 5, stop);
    ASSERT_TRUE(made) << made.error().message;
    int silent = 0;
    for (TokenId id = 0; id < tokenizer->vocabulary(); ++id) {
        const bool marker = tokenizer->is_added(id) || tokenizer->is_special(id);
        EXPECT_EQ(made->bytes(id), marker ? std::string_view() : tokenizer->token_bytes(id)) << id;
        silent += marker ? 1 : 0;
    }
    EXPECT_GT(silent, 0);
}

}  // namespace
