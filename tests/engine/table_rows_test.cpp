// SPDX-License-Identifier: Apache-2.0
#include "engine/table_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace espalier::engine {
namespace {

std::vector<std::int32_t> step(TableRows& rows, const std::vector<std::int32_t>& slots) {
    rows.begin_step();
    for (const std::int32_t slot : slots) rows.takes_part(RequestSlot(slot));
    std::vector<std::int32_t> taken;
    for (const std::int32_t slot : slots) taken.push_back(rows.row_of(RequestSlot(slot)).value());
    return taken;
}

TEST(TableRows, StayWithTheirRequests) {
    TableRows rows(10, 3);
    EXPECT_EQ(step(rows, {7, 2}), (std::vector{0, 1}));
    EXPECT_EQ(step(rows, {2}), (std::vector{1}));
    EXPECT_EQ(step(rows, {9, 2}), (std::vector{2, 1}));  // 7 stands still and keeps its row
    EXPECT_EQ(step(rows, {7, 2, 9}), (std::vector{0, 1, 2}));
    EXPECT_EQ(step(rows, {4, 2, 7}), (std::vector{2, 1, 0}));  // 9 makes way
    EXPECT_EQ(step(rows, {9, 4, 7}), (std::vector{1, 2, 0}));
}

TEST(TableRows, AreNeverSharedInAStep) {
    constexpr std::int32_t kSlots = 40, kRows = 7;
    TableRows rows(kSlots, kRows);
    std::mt19937 random(3);
    std::vector<std::int32_t> slots(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    for (int i = 0; i < 2000; ++i) {
        std::shuffle(slots.begin(), slots.end(), random);
        const std::vector<std::int32_t> chosen(
            slots.begin(), slots.begin() + static_cast<std::int64_t>(random() % (kRows + 1)));
        const std::vector<std::int32_t> taken = step(rows, chosen);
        EXPECT_EQ(std::set<std::int32_t>(taken.begin(), taken.end()).size(), chosen.size());
        for (const std::int32_t row : taken) EXPECT_TRUE(row >= 0 && row < kRows);
    }
}

}  // namespace
}  // namespace espalier::engine
