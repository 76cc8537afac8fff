// SPDX-License-Identifier: Apache-2.0
// Which texts a drafter has seen whole, after it was not shown some.
#include "draft/followed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/random.hpp"

namespace espalier::draft {
namespace {

constexpr std::int64_t kPages = 12;

void add(Followed& followed, std::int32_t request, std::int64_t first, std::int64_t count,
         const std::vector<std::int32_t>& pages) {
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    followed.add({.request = RequestSlot(request),
                  .first_position = first,
                  .tokens = tokens,
                  .taps = tokens,
                  .block_table = pages});
}

TEST(Followed, ATextIsWholeFromItsBeginning) {
    Followed followed(kPages);
    followed.begin(RequestSlot(3));
    EXPECT_FALSE(followed.whole(RequestSlot(3), 0));  // nothing was seen
    add(followed, 3, 0, 70, {1, 2});
    EXPECT_TRUE(followed.whole(RequestSlot(3), 70));
    EXPECT_FALSE(followed.whole(RequestSlot(3), 71));
    add(followed, 3, 70, 1, {1, 2});
    EXPECT_TRUE(followed.whole(RequestSlot(3), 71));
    followed.begin(RequestSlot(3));  // another request in its slot
    EXPECT_FALSE(followed.whole(RequestSlot(3), 71));
}

TEST(Followed, WhatWasMissedLeavesAHole) {
    Followed followed(kPages);
    followed.begin(RequestSlot(0));
    add(followed, 0, 0, 100, {1, 2});
    followed.forget();
    EXPECT_FALSE(followed.whole(RequestSlot(0), 100));
    add(followed, 0, 103, 80, {1, 2, 3});
    EXPECT_FALSE(followed.whole(RequestSlot(0), 183));
    add(followed, 0, 183, 1, {1, 2, 3});
    EXPECT_FALSE(followed.whole(RequestSlot(0), 184));
    followed.begin(RequestSlot(1));
    add(followed, 1, 0, 10, {4});
    EXPECT_TRUE(followed.whole(RequestSlot(1), 10));
}

TEST(Followed, PagesCountAsTheyWereSeen) {
    Followed followed(kPages);
    followed.begin(RequestSlot(0));
    add(followed, 0, 0, 64, {1});
    followed.forget();
    followed.begin(RequestSlot(1));
    add(followed, 1, 64, 10, {1, 2});  // behind a page of before
    EXPECT_FALSE(followed.whole(RequestSlot(1), 74));
    followed.begin(RequestSlot(2));
    add(followed, 2, 0, 130, {3, 4, 5});
    followed.begin(RequestSlot(3));
    add(followed, 3, 128, 10, {3, 4, 6});  // behind two that were seen
    EXPECT_TRUE(followed.whole(RequestSlot(3), 138));
    followed.begin(RequestSlot(4));
    add(followed, 4, 64, 70, {1, 7, 8});  // its page 7 is full, but its first state was missed
    followed.begin(RequestSlot(5));
    add(followed, 5, 128, 1, {3, 7, 9});
    EXPECT_FALSE(followed.whole(RequestSlot(5), 129));
}

TEST(Followed, ATextThatComesAgainElsewhereIsLookedAtAnew) {
    Followed followed(kPages);
    followed.begin(RequestSlot(0));
    add(followed, 0, 0, 128, {1, 2});
    followed.begin(RequestSlot(1));
    add(followed, 1, 0, 64, {3});
    followed.begin(RequestSlot(0));       // preempted
    add(followed, 0, 128, 1, {3, 5, 6});  // page 5 was never seen
    EXPECT_FALSE(followed.whole(RequestSlot(0), 129));
}

// Random texts over random pages, each slot watched by itself: whole means that all were seen.
TEST(Followed, WholeMeansThatEverySlotWasSeen) {
    Random random(5);
    constexpr std::int32_t kTexts = 4;
    Followed followed(kPages);
    std::array<std::array<bool, cache::kPageTokens>, kPages> seen = {};
    struct Text {
        std::vector<std::int32_t> pages;
        std::int64_t length = 0;
        bool state = false;  // of its last token is known
    };
    std::array<Text, kTexts> texts;
    std::int64_t whole = 0, holes = 0;
    bool shown = true;
    for (int step = 0; step < 20000; ++step) {
        if (random.chance(0.02)) {
            shown = !shown;
            if (!shown) {
                followed.forget();
                seen = {};
                for (Text& one : texts) one.state = false;
            }
        }
        const std::int32_t slot = random.between(0, kTexts - 1);
        Text& text = texts[static_cast<std::size_t>(slot)];
        if (text.pages.empty() || random.chance(0.02) || text.length > 180) {
            // Pages of its own; the first may be one that another text has filled.
            text = {};
            followed.begin(RequestSlot(slot));
            for (std::int32_t page = 0; page < 3; ++page) text.pages.push_back(slot * 3 + page);
            if (random.chance(0.5)) {
                const Text& other = texts[static_cast<std::size_t>((slot + 1) % kTexts)];
                if (other.length >= 64) {
                    text.pages[0] = other.pages[0];
                    text.length = 64;
                }
            }
        }
        const auto at = [&](std::int64_t position) -> bool& {
            const auto page = static_cast<std::size_t>(
                text.pages[static_cast<std::size_t>(position / cache::kPageTokens)]);
            return seen[page][static_cast<std::size_t>(position % cache::kPageTokens)];
        };
        const auto all_before = [&](std::int64_t end) {
            for (std::int64_t i = 0; i < end; ++i)
                if (!at(i)) return false;
            return true;
        };
        const std::int64_t count = random.between(1, 9);
        const bool known = text.state || all_before(text.length);
        if (shown) add(followed, slot, text.length, count, text.pages);
        for (std::int64_t i = 0; i < count; ++i) at(text.length + i) = shown && (known || i > 0);
        text.length += count;
        text.state = shown;
        if (!shown) continue;
        const bool all = all_before(text.length);
        if (followed.whole(RequestSlot(slot), text.length)) {
            ASSERT_TRUE(all) << step;
            ++whole;
        }
        holes += all ? 0 : 1;
    }
    EXPECT_GT(whole, 1000);
    EXPECT_GT(holes, 1000);
}

}  // namespace
}  // namespace espalier::draft
