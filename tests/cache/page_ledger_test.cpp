// SPDX-License-Identifier: Apache-2.0
// The books refuse what handles cannot even express: double release, holding a free page, the null
// page, publishing what others hold.
#include "cache/page_ledger.hpp"

#include <gtest/gtest.h>

#include "base/check.hpp"

namespace espalier::cache {
namespace {

constexpr std::array<std::int32_t, kPageTokens> kZeros{};

PageKey zeros_after(PageId parent) { return PageKey{parent, 0, Form::absorbed, kZeros}; }

TEST(PageLedger, HandsOutEveryPageButTheNullPage) {
    PageLedger ledger(5, 0, &hash_page);
    EXPECT_FALSE(ledger.make_room(5));
    ASSERT_TRUE(ledger.make_room(4));
    std::array<bool, 5> taken{};
    for (int i = 0; i < 4; ++i) taken.at(static_cast<std::size_t>(ledger.take())) = true;
    EXPECT_EQ(taken, (std::array{false, true, true, true, true}));
    EXPECT_THROW(ledger.take(), CheckFailure);
    EXPECT_EQ(ledger.counts(), (PageCounts{4, 0, 4, 0}));
    ledger.audit();
}

TEST(PageLedger, RefusesDoubleOwnership) {
    PageLedger ledger(3, 0, &hash_page);
    const PageId page = ledger.take();
    ledger.release(page);
    EXPECT_THROW(ledger.release(page), CheckFailure);
    EXPECT_THROW(ledger.hold(page), CheckFailure);
    for (const PageId wrong : {kNullPage, PageId{3}, PageId{-1}}) {
        EXPECT_THROW(ledger.release(wrong), CheckFailure) << wrong;
        EXPECT_THROW(ledger.hold(wrong), CheckFailure) << wrong;
        EXPECT_THROW(ledger.publish(wrong, zeros_after(kNullPage)), CheckFailure) << wrong;
    }
    ledger.audit();
}

TEST(PageLedger, OnlyTheOneOwnerPublishesAndOnlyOnce) {
    PageLedger ledger(4, 0, &hash_page);
    const PageId shared = ledger.take();
    ledger.hold(shared);
    EXPECT_THROW(ledger.publish(shared, zeros_after(kNullPage)), CheckFailure);
    ledger.release(shared);
    EXPECT_EQ(ledger.publish(shared, zeros_after(kNullPage)), shared);
    EXPECT_THROW(ledger.publish(shared, zeros_after(kNullPage)), CheckFailure);
    const PageId child = ledger.take();
    EXPECT_THROW(ledger.publish(child, zeros_after(3)), CheckFailure);  // 3 is not in the index
    ledger.audit();
}

// A release too many is caught where it happens when the page has no other owner; where it has
// one, the audit finds that references and handles differ.
TEST(PageLedger, TheAuditCountsReferencesAgainstHandles) {
    PageLedger ledger(4, 0, &hash_page);
    const PageId parent = ledger.take();
    const PageId child = ledger.take();
    ledger.publish(parent, zeros_after(kNullPage));
    ledger.publish(child, zeros_after(parent));
    ledger.audit();
    ledger.release(parent);
    ledger.release(parent);  // the child's own reference: one too many
    EXPECT_THROW(ledger.audit(), CheckFailure);
}

}  // namespace
}  // namespace espalier::cache
