// SPDX-License-Identifier: Apache-2.0
// What waits for its draft KV, and what must not be written any more.
#include "draft/backlog.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace espalier::draft {
namespace {

// A request's tokens [first, first + count) over pages of its own.
struct Tokens {
    Tokens(RequestSlot whose, std::int64_t begin, std::int64_t count,
           std::vector<std::int32_t> table)
        : request(whose),
          first(begin),
          tokens(static_cast<std::size_t>(count)),
          taps(tokens.size()),
          pages(std::move(table)) {
        std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(1000 + begin));
    }
    speculate::Extension extension() const {
        return {.request = request,
                .first_position = first,
                .tokens = tokens,
                .taps = taps,
                .block_table = pages};
    }

    RequestSlot request;
    std::int64_t first;
    std::vector<std::int32_t> tokens, taps, pages;
};

void add(Backlog& backlog, std::int32_t request, std::int64_t first, std::int64_t count,
         std::vector<std::int32_t> pages) {
    backlog.add(Tokens(RequestSlot(request), first, count, std::move(pages)).extension());
}

std::int64_t alive(const Backlog& backlog) {
    return std::count_if(backlog.entries().begin(), backlog.entries().end(),
                         [](const Backlog::Entry& entry) { return entry.slot >= 0; });
}

TEST(Backlog, AnEntryKnowsItsSlotAndTheStateBeforeIt) {
    Backlog backlog(100);
    add(backlog, 3, 0, 2, {7});
    add(backlog, 5, 64, 2, {8, 9});
    add(backlog, 3, 2, 1, {7});
    const auto entries = backlog.entries();
    ASSERT_EQ(entries.size(), 5u);
    EXPECT_EQ(entries[0].slot, 7 * 64);
    EXPECT_EQ(entries[0].before_row, -1);
    EXPECT_EQ(entries[0].before_page, cache::kNullPage);  // position 0: no state
    EXPECT_EQ(entries[1].before_row, 0);
    EXPECT_EQ(entries[2].slot, 9 * 64);
    EXPECT_EQ(entries[2].before_row, -1);
    EXPECT_EQ(entries[2].before_page, 8);  // behind a full page: its tail state
    EXPECT_EQ(entries[4].before_row, 1);
    EXPECT_EQ(entries[4].token, 1002);
    EXPECT_EQ(backlog.last_row(RequestSlot(3), 2), 4);
    EXPECT_EQ(backlog.last_row(RequestSlot(3), 1), -1);
    EXPECT_EQ(backlog.last_row(RequestSlot(99), 1), -1);
    EXPECT_FALSE(backlog.completes_page());
}

TEST(Backlog, StatesAreKeptAtTheEndOfPagesAndOfWhatWasWritten) {
    Backlog backlog(200);
    add(backlog, 0, 60, 70, {3, 4, 5});
    EXPECT_TRUE(backlog.completes_page());
    for (std::size_t row = 0; row < 70; ++row) {
        const std::int64_t position = backlog.entries()[row].position;
        EXPECT_EQ(backlog.keeps_state(row), position == 63 || position == 127 || position == 129);
    }
    backlog.clear();
    EXPECT_EQ(backlog.size(), 0);
    EXPECT_FALSE(backlog.completes_page());
    EXPECT_EQ(backlog.last_row(RequestSlot(0), 129), -1);
    add(backlog, 0, 130, 1, {3, 4, 5});
    EXPECT_EQ(backlog.entries()[0].before_page, 5);  // what was written last to the page
}

// A prompt's chunk has a decompressed and an absorbed part.
TEST(Backlog, TwoPartsOfAChunkAreOneRun) {
    Backlog backlog(200);
    add(backlog, 0, 250, 3, {1, 2, 3, 4});
    add(backlog, 0, 253, 3, {1, 2, 3, 4});
    add(backlog, 0, 256, 4, {1, 2, 3, 4, 5});
    EXPECT_EQ(alive(backlog), 10);
    EXPECT_EQ(backlog.entries()[6].before_row, 5);
}

TEST(Backlog, ADroppedRequestGoesOnElsewhere) {
    Backlog backlog(200);
    add(backlog, 0, 64, 10, {1, 2});
    add(backlog, 1, 0, 5, {6});
    backlog.drop(RequestSlot(0));       // preempted
    add(backlog, 1, 5, 70, {6, 2});     // on a page that it had
    add(backlog, 0, 64, 3, {1, 3});     // it found its first page
    EXPECT_EQ(alive(backlog), 75 + 3);  // nothing of the ten
    EXPECT_EQ(backlog.entries()[0].slot, -1);
    EXPECT_FALSE(backlog.keeps_state(9));
    EXPECT_EQ(backlog.entries()[85].before_row, -1);
    EXPECT_EQ(backlog.entries()[85].before_page, 1);
    EXPECT_EQ(backlog.last_row(RequestSlot(0), 66), 87);
}

TEST(Backlog, RefusesARequestThatJumpsWithoutAWord) {
    Backlog backlog(200);
    add(backlog, 0, 64, 10, {1, 2});
    EXPECT_THROW(add(backlog, 0, 64, 3, {1, 3}), CheckFailure);
    EXPECT_THROW(add(backlog, 0, 75, 1, {1, 2}), CheckFailure);
    add(backlog, 0, 74, 1, {1, 2});
}

TEST(Backlog, AnEndedRequestLeavesNothing) {
    Backlog backlog(200);
    add(backlog, 0, 64, 10, {1, 2});
    backlog.drop(RequestSlot(0));
    backlog.drop(RequestSlot(0));
    backlog.drop(RequestSlot(17));
    EXPECT_EQ(alive(backlog), 0);
    EXPECT_EQ(backlog.size(), 10);  // their rows of the log stay taken
}

}  // namespace
}  // namespace espalier::draft
