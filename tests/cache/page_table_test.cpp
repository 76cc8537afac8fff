// SPDX-License-Identifier: Apache-2.0
// A sequence's pages: what becomes findable and when, what may be written, and that speculation
// changes neither.
#include "cache/page_table.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <type_traits>

#include "base/check.hpp"
#include "base/random.hpp"

namespace espalier::cache {
namespace {

static_assert(!std::is_copy_constructible_v<PageTable>);

using Tokens = std::vector<std::int32_t>;

Tokens counting(std::int64_t count) {
    Tokens tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

std::int64_t findable(const PagePool& pool, const SequenceKey& key, Tokens tokens) {
    tokens.push_back(-1);  // so that a page which ends with the tokens counts
    return pool.find_prefix(key, tokens);
}

// The tokens written and published, as one request does from arrival to end.
void serve(PagePool& pool, const SequenceKey& key, const Tokens& tokens) {
    PageTable table(pool, key);
    table.match(tokens);
    ASSERT_TRUE(table.grow(std::ssize(tokens)));
    table.publish(tokens, written_length(std::ssize(tokens)));
}

TEST(PageRules, Lengths) {
    EXPECT_EQ(decompressed_below(0), 0);
    EXPECT_EQ(decompressed_below(256), 0);
    EXPECT_EQ(decompressed_below(257), 256);
    EXPECT_EQ(decompressed_below(320), 256);
    EXPECT_EQ(decompressed_below(321), 320);
    EXPECT_EQ(decompressed_below(512), 448);
    for (std::int64_t tokens = 257; tokens < 6000; ++tokens) {
        // Up to 4,096 tokens what can be found has one form.
        EXPECT_EQ(decompressed_below(tokens), tokens <= 4096 ? matchable_pages(tokens) * kPageTokens
                                                             : (tokens - 1) / 256 * 256);
        EXPECT_EQ(decompressed_below(tokens, 256), (tokens - 1) / 256 * 256);
        EXPECT_EQ(decompressed_below(tokens, 0), 0);
    }
    EXPECT_EQ(matchable_pages(0), 0);
    EXPECT_EQ(matchable_pages(64), 0);
    EXPECT_EQ(matchable_pages(65), 1);
    EXPECT_EQ(matchable_pages(128), 1);
    EXPECT_EQ(written_length(0), 0);
    EXPECT_EQ(publishable_pages(written_length(64)), 0);
    EXPECT_EQ(publishable_pages(written_length(65)), 1);
    const SequenceKey key{0, decompressed_below(300)};
    EXPECT_EQ(key.form_of_page(3), Form::decompressed);
    EXPECT_EQ(key.form_of_page(4), Form::absorbed);
}

TEST(PageTable, APageIsFindableOnceItsLastSlotIsWrittenAndNotBefore) {
    PagePool pool(8);
    PageTable table(pool, {});
    const Tokens tokens = counting(300);
    ASSERT_TRUE(table.grow(300));
    for (std::int64_t committed = 1; committed <= 300; ++committed) {
        const std::int64_t written = committed - 1;
        table.publish(std::span(tokens).first(static_cast<std::size_t>(committed)), written);
        ASSERT_EQ(table.published_pages(), written / 64) << committed;
        ASSERT_EQ(findable(pool, {}, tokens), written / 64) << committed;
    }
}

TEST(PageTable, ALookupLeavesOneTokenToCompute) {
    PagePool pool(16);
    const Tokens tokens = counting(400);
    serve(pool, {}, tokens);
    for (std::int64_t length = 0; length <= 400; ++length) {
        PageTable table(pool, {});
        const std::int64_t expected = length == 0 ? 0 : (length - 1) / 64 * 64;
        ASSERT_EQ(table.match(std::span(tokens).first(static_cast<std::size_t>(length))), expected);
    }
}

TEST(PageTable, OtherSaltsAndOtherFormsDoNotMeet) {
    PagePool pool(64);
    const Tokens tokens = counting(600);
    serve(pool, {7, 256}, tokens);
    EXPECT_EQ(findable(pool, {7, 256}, tokens), 9);
    EXPECT_EQ(findable(pool, {8, 256}, tokens), 0);
    EXPECT_EQ(findable(pool, {7, 0}, tokens), 0);    // absorbed from the start
    EXPECT_EQ(findable(pool, {7, 512}, tokens), 4);  // a longer prompt shares what is alike
    serve(pool, {7, 512}, tokens);
    EXPECT_EQ(findable(pool, {7, 512}, tokens), 9);
    EXPECT_EQ(findable(pool, {7, 256}, tokens), 9);
    EXPECT_EQ(pool.counts().cached, 9 + 5);
}

TEST(PageTable, EqualPagesBecomeOne) {
    PagePool pool(16);
    const Tokens tokens = counting(200);
    PageTable first(pool, {});
    PageTable second(pool, {});
    ASSERT_TRUE(first.grow(200));
    ASSERT_TRUE(second.grow(200));  // both prefill the same prompt in one batch
    EXPECT_EQ(pool.counts(), (PageCounts{15, 7, 8, 0}));
    first.publish(tokens, 192);
    const std::int32_t own_tail = second.block_table()[3];
    second.publish(tokens, 192);
    EXPECT_EQ(pool.counts(), (PageCounts{15, 10, 5, 0}));
    for (std::size_t page = 0; page < 3; ++page)
        EXPECT_EQ(first.block_table()[page], second.block_table()[page]);
    EXPECT_EQ(second.block_table()[3], own_tail);
    EXPECT_NE(first.block_table()[3], own_tail);
    first.clear();
    EXPECT_EQ(findable(pool, {}, tokens), 3);
    EXPECT_EQ(pool.counts(), (PageCounts{15, 11, 4, 0}));
}

TEST(PageTable, ALateMatchReplacesOwnedPages) {
    PagePool pool(16);
    const Tokens tokens = counting(200);
    PageTable late(pool, {});
    EXPECT_EQ(late.match(tokens), 0);
    ASSERT_TRUE(late.grow(100));
    serve(pool, {}, tokens);
    EXPECT_EQ(late.match(tokens), 192);
    EXPECT_EQ(late.pages(), 3);
    EXPECT_EQ(late.published_pages(), 3);
    EXPECT_EQ(pool.counts(), (PageCounts{15, 12, 3, 0}));
}

TEST(PageTable, PublishesOnlyWhatIsWritten) {
    PagePool pool(8);
    PageTable table(pool, {});
    const Tokens tokens = counting(100);
    ASSERT_TRUE(table.grow(100));
    table.publish(tokens, 99);
    EXPECT_EQ(table.published_pages(), 1);
    EXPECT_THROW(table.publish(tokens, 101), CheckFailure);  // more slots written than tokens
    EXPECT_THROW(table.publish(counting(200), 129), CheckFailure);  // … than slots
}

TEST(PageTable, GrowsAllOrNothingAndTruncates) {
    PagePool pool(5);
    PageTable table(pool, {});
    EXPECT_TRUE(table.grow(0));
    EXPECT_TRUE(table.grow(65));
    EXPECT_EQ(table.slots(), 128);
    EXPECT_FALSE(table.grow(257));
    EXPECT_EQ(table.slots(), 128);
    EXPECT_TRUE(table.grow(256));
    table.truncate(129);
    EXPECT_EQ(table.pages(), 3);
    table.truncate(1000);
    EXPECT_EQ(table.pages(), 3);
    table.publish(counting(150), 140);
    table.truncate(64);
    EXPECT_EQ(table.published_pages(), 1);
    EXPECT_EQ(pool.counts(), (PageCounts{4, 2, 1, 1}));
    table.clear();
    EXPECT_TRUE(table.block_table().empty());
    EXPECT_EQ(pool.counts(), (PageCounts{4, 2, 0, 2}));
}

TEST(PageTable, OthersShareWhatIsReadOnly) {
    PagePool pool(8);
    PageTable table(pool, {});
    ASSERT_TRUE(table.grow(100));
    table.publish(counting(100), 99);
    PageTable other(pool, {});
    EXPECT_EQ(other.match(counting(100)), 64);
    EXPECT_EQ(other.pages(), 1);
    EXPECT_EQ(other.block_table()[0], table.block_table()[0]);
    table = PageTable(pool, {});
    EXPECT_EQ(pool.counts(), (PageCounts{7, 6, 1, 0}));
    PageTable moved = std::move(other);
    EXPECT_EQ(moved.pages(), 1);
}

// The same text, committed in runs of any length out of trees of any size: at each committed
// length the same pages are findable as in plain decoding, to the page.
TEST(PageTable, SpeculationDoesNotLowerTheHitRate) {
    const Tokens tokens = counting(700);
    const SequenceKey key{0, decompressed_below(100)};
    std::vector<std::int64_t> plain(tokens.size() + 1, 0);
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Random random(seed);
        PagePool pool(20);
        PageTable table(pool, key);
        ASSERT_TRUE(table.grow(written_length(100)));
        for (std::int64_t committed = 100; committed <= 700;) {
            table.publish(std::span(tokens).first(static_cast<std::size_t>(committed)),
                          written_length(committed));
            const std::int64_t found = findable(pool, key, tokens);
            std::int64_t& expected = plain[static_cast<std::size_t>(committed)];
            if (seed == 0) expected = found;
            ASSERT_EQ(found, expected) << committed;
            ASSERT_EQ(found, (committed - 1) / 64) << committed;
            const int nodes = seed == 0 ? 1 : random.between(1, 64);
            table.truncate(written_length(committed));
            ASSERT_TRUE(table.grow(written_length(committed) + nodes));
            committed += random.between(1, nodes);
        }
    }
}

// Pages of generated text are absorbed. Who accepts them finds them where its own form differs;
// what it computes behind them is listed behind these very pages, so others do not meet it by
// mistake.
TEST(PageTable, AcceptsAbsorbedPagesOnlyWhenAsked) {
    PagePool pool(32);
    const Tokens tokens = counting(640);
    serve(pool, {0, 128}, tokens);  // two decompressed pages, the others absorbed
    const SequenceKey exact{0, 512}, any{0, 512, true};
    EXPECT_EQ(findable(pool, exact, tokens), 2);
    EXPECT_EQ(findable(pool, any, tokens), 9);
    PageTable table(pool, any);
    EXPECT_EQ(table.match(std::span(tokens).first(400)), 6 * 64);
    ASSERT_TRUE(table.grow(576));
    table.publish(tokens, 576);  // pages 6 and 7 decompressed, behind absorbed ones
    EXPECT_EQ(findable(pool, exact, tokens), 2);
    EXPECT_EQ(findable(pool, {0, 128}, tokens), 9);
}

TEST(PageTable, RestartsInTheSameMemory) {
    PagePool pool(16);
    const Tokens tokens = counting(300);
    PageTable table(pool, {});
    table.reserve_memory(300);
    ASSERT_TRUE(table.grow(300));
    table.publish(tokens, 299);
    const auto* memory = table.block_table().data();
    table.restart({7, 256});
    EXPECT_EQ(table.pages(), 0);
    EXPECT_EQ(pool.handles(), 0);
    EXPECT_EQ(table.key().salt, 7u);
    EXPECT_EQ(table.match(tokens), 0);  // another salt
    ASSERT_TRUE(table.grow(300));
    EXPECT_EQ(table.block_table().data(), memory);
}

}  // namespace
}  // namespace espalier::cache
