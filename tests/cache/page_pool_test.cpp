// SPDX-License-Identifier: Apache-2.0
// Handles, reservations, eviction order and the checks that find leaks.
#include "cache/page_pool.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <type_traits>

#include "base/check.hpp"
#include "support/allocation_counter.hpp"

namespace espalier::cache {
namespace {

// What only types can promise: handles are not copied, a published page never becomes writable, an
// owned one is never shared.
static_assert(!std::is_copy_constructible_v<OwnedPage> && !std::is_copy_assignable_v<OwnedPage>);
static_assert(!std::is_copy_constructible_v<SharedPage> && !std::is_copy_assignable_v<SharedPage>);
static_assert(std::is_nothrow_move_constructible_v<OwnedPage>);
static_assert(std::is_nothrow_move_assignable_v<SharedPage>);
static_assert(!std::is_constructible_v<OwnedPage, SharedPage>);
static_assert(!std::is_constructible_v<SharedPage, OwnedPage>);
static_assert(!std::is_constructible_v<PageHandle, OwnedPage>);

using Tokens = std::vector<std::int32_t>;

// `pages` pages of one token id each, and one token more so that all of them can be matched.
Tokens text(std::initializer_list<std::int32_t> pages) {
    Tokens tokens;
    for (const std::int32_t id : pages) tokens.insert(tokens.end(), kPageTokens, id);
    tokens.push_back(99);
    return tokens;
}

// Publishes every page of the text and keeps them held.
std::vector<SharedPage> published(PagePool& pool, const Tokens& tokens, SequenceKey key = {}) {
    std::vector<SharedPage> shared;
    std::vector<OwnedPage> owned;
    const auto written = static_cast<std::int64_t>(tokens.size()) - 1;
    pool.lookup(key, tokens, shared);
    EXPECT_TRUE(pool.reserve(pages_for(written) - static_cast<std::int64_t>(shared.size()), owned));
    pool.publish(key, tokens, written, shared, owned);
    return shared;
}

// Takes that many pages for a moment, which evicts what stands in the way.
void press(PagePool& pool, std::int64_t pages) {
    std::vector<OwnedPage> owned;
    ASSERT_TRUE(pool.reserve(pages, owned));
}

TEST(PagePool, ReservesAllOrNothing) {
    PagePool pool(6);
    std::vector<OwnedPage> pages;
    EXPECT_TRUE(pool.reserve(0, pages));
    EXPECT_TRUE(pool.reserve(3, pages));
    EXPECT_FALSE(pool.reserve(3, pages));
    EXPECT_EQ(pages.size(), 3u);
    EXPECT_EQ(pool.counts(), (PageCounts{5, 2, 3, 0}));
    EXPECT_TRUE(pool.reserve(2, pages));
    for (const OwnedPage& page : pages) EXPECT_NE(page.id(), kNullPage);
    pages.erase(pages.begin() + 1);
    EXPECT_EQ(pool.counts(), (PageCounts{5, 1, 4, 0}));
    pages.clear();
    EXPECT_EQ(pool.counts(), (PageCounts{5, 5, 0, 0}));
}

TEST(PagePool, AFailedReservationEvictsNothing) {
    PagePool pool(4);
    const Tokens tokens = text({1, 2});
    published(pool, tokens);  // cached at once
    std::vector<OwnedPage> pages;
    EXPECT_FALSE(pool.reserve(4, pages));
    EXPECT_EQ(pool.find_prefix({}, tokens), 2);
    EXPECT_EQ(pool.counts(), (PageCounts{3, 1, 0, 2}));
}

TEST(PagePool, MovesNeverLeakNorFreeTwice) {
    PagePool pool(4);
    std::vector<OwnedPage> pages;
    ASSERT_TRUE(pool.reserve(2, pages));
    OwnedPage first = std::move(pages[0]);
    const PageId second = pages[1].id();
    first = std::move(pages[1]);  // gives the page it had back
    EXPECT_EQ(first.id(), second);
    EXPECT_EQ(pool.counts().owned, 1);
    OwnedPage& itself = first;
    first = std::move(itself);
    EXPECT_EQ(first.id(), second);
    EXPECT_EQ(pages[0].id(), kNullPage);
    pages.clear();
    EXPECT_EQ(pool.counts().owned, 1);
    first = OwnedPage();
    EXPECT_EQ(pool.counts(), (PageCounts{3, 3, 0, 0}));
}

TEST(PagePool, SharedHandlesCountOneByOne) {
    PagePool pool(4);
    std::vector<SharedPage> pages = published(pool, text({1}));
    std::optional<SharedPage> other = pages[0].share();
    EXPECT_EQ(other->id(), pages[0].id());
    pages.clear();
    EXPECT_EQ(pool.counts(), (PageCounts{3, 2, 1, 0}));
    other.reset();
    EXPECT_EQ(pool.counts(), (PageCounts{3, 2, 0, 1}));
    EXPECT_THROW(SharedPage().share(), CheckFailure);
}

TEST(PagePool, TheLeastRecentlyUsedLeafGoesFirst) {
    PagePool pool(6);
    const Tokens a = text({1, 2, 3});
    const Tokens b = text({4, 5});
    std::vector<SharedPage> hold_a = published(pool, a);
    std::vector<SharedPage> hold_b = published(pool, b);
    hold_a.clear();
    hold_b.clear();
    pool.lookup({}, a, hold_a);  // a was used last
    hold_a.clear();
    const std::pair<std::int64_t, std::int64_t> left[] = {{3, 1}, {3, 0}, {2, 0}, {1, 0}, {0, 0}};
    for (std::int64_t pages = 1; pages <= 5; ++pages) {
        press(pool, pages);
        const auto& [of_a, of_b] = left[pages - 1];
        EXPECT_EQ(pool.find_prefix({}, a), of_a) << pages;
        EXPECT_EQ(pool.find_prefix({}, b), of_b) << pages;
    }
}

TEST(PagePool, AParentOutlivesBothBranches) {
    PagePool pool(4);
    const Tokens left = text({1, 2});
    const Tokens right = text({1, 3});
    std::vector<SharedPage> hold_left = published(pool, left);
    std::vector<SharedPage> hold_right = published(pool, right);
    EXPECT_EQ(hold_left[0].id(), hold_right[0].id());
    hold_left.clear();
    hold_right.clear();
    const std::pair<std::int64_t, std::int64_t> expected[] = {{1, 2}, {1, 1}, {0, 0}};
    for (std::int64_t pages = 1; pages <= 3; ++pages) {
        press(pool, pages);
        EXPECT_EQ(pool.find_prefix({}, left), expected[pages - 1].first);
        EXPECT_EQ(pool.find_prefix({}, right), expected[pages - 1].second);
    }
}

// Handles may be dropped in any order: the last page of a chain keeps all before it.
TEST(PagePool, APageInUseHoldsItsWholePrefix) {
    PagePool pool(5);
    const Tokens tokens = text({1, 2, 3});
    std::vector<SharedPage> pages = published(pool, tokens);
    SharedPage last = std::move(pages[2]);
    pages.clear();
    EXPECT_EQ(pool.counts(), (PageCounts{4, 1, 3, 0}));
    std::vector<OwnedPage> owned;
    EXPECT_FALSE(pool.reserve(2, owned));
    EXPECT_EQ(pool.find_prefix({}, tokens), 3);
    last = SharedPage();
    EXPECT_EQ(pool.counts(), (PageCounts{4, 1, 0, 3}));
}

TEST(PagePool, LeaksAreFoundAndLeakedHandlesStaySafe) {
    std::vector<OwnedPage> owned;
    std::vector<SharedPage> shared;
    EXPECT_THROW(
        {
            PagePool pool(8);
            shared = published(pool, text({1, 2}));
            ASSERT_TRUE(pool.reserve(2, owned));
        },
        CheckFailure);
    shared.push_back(shared[0].share());
    owned.clear();
    shared.clear();
}

TEST(PagePool, ALeakDoesNotReplaceTheExceptionThatCausedIt) {
    std::vector<OwnedPage> owned;
    EXPECT_THROW(
        {
            PagePool pool(8);
            ASSERT_TRUE(pool.reserve(2, owned));
            throw std::out_of_range("the real trouble");
        },
        std::out_of_range);
}

TEST(PagePool, RefusesPagesOfAnotherPool) {
    PagePool pool(4);
    PagePool other(4);
    const Tokens tokens = text({1});
    std::vector<OwnedPage> owned;
    std::vector<SharedPage> shared;
    ASSERT_TRUE(other.reserve(1, owned));
    EXPECT_THROW(pool.publish({}, tokens, 64, shared, owned), CheckFailure);
    std::vector<SharedPage> foreign = published(other, tokens);
    EXPECT_THROW(pool.lookup({}, tokens, foreign), CheckFailure);
    EXPECT_EQ(pool.find_prefix({}, tokens), 0);
}

TEST(PagePool, RefusesWhatDoesNotFitTogether) {
    PagePool pool(4);
    const Tokens tokens = text({1, 2});
    std::vector<SharedPage> shared = published(pool, tokens);
    std::vector<OwnedPage> owned;
    EXPECT_THROW(pool.lookup({}, text({1, 3}), shared), CheckFailure);
    EXPECT_THROW(pool.lookup({}, text({1}), shared), CheckFailure);
    EXPECT_THROW(pool.publish({}, tokens, 129, shared, owned), CheckFailure);  // pages for 128
    EXPECT_THROW(pool.find_prefix({0, 100}, tokens), CheckFailure);  // a form inside a page
    EXPECT_THROW(PagePool(1), CheckFailure);
    EXPECT_THROW(PagePool(std::int64_t{1} << 31), CheckFailure);
}

TEST(PagePool, ASteadyStateAllocatesNothing) {
    PagePool pool(32);
    const Tokens tokens = text({1, 2, 3, 4});
    std::vector<SharedPage> shared;
    std::vector<OwnedPage> owned;
    shared.reserve(8);
    owned.reserve(32);
    const std::int64_t before = allocations_so_far();
    for (int round = 0; round < 100; ++round) {
        const std::int64_t found = pool.lookup({}, tokens, shared);
        EXPECT_EQ(found, round == 0 ? 0 : 4 - round % 2);
        ASSERT_TRUE(pool.reserve(4 - found, owned));
        EXPECT_EQ(pool.publish({}, tokens, 256, shared, owned), 4 - found);
        shared.clear();
        ASSERT_TRUE(pool.reserve(round % 2 == 0 ? 28 : 27, owned));  // 28 evict one
        owned.clear();
    }
    EXPECT_EQ(allocations_so_far() - before, 0);
}

}  // namespace
}  // namespace espalier::cache
