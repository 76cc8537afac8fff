// SPDX-License-Identifier: Apache-2.0
// The host's copy of the block tables against the device's: after every step's uploads the device
// has the pages of every row, and no more was uploaded than had to be.
#include "batch/block_tables.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace espalier::batch {
namespace {

constexpr std::int32_t kRows = 12;

// Uploads what has changed; returns how many entries that were.
std::int64_t upload(BlockTables& tables, std::vector<std::int32_t>& device) {
    std::int64_t uploaded = 0, end = -1;
    for (const BlockTables::Range& range : tables.changes()) {
        EXPECT_GT(range.first, end);
        EXPECT_GT(range.last, range.first);
        end = range.last;
        std::copy(tables.entries() + range.first, tables.entries() + range.last,
                  device.begin() + range.first);
        uploaded += range.last - range.first;
    }
    tables.forget_changes();
    return uploaded;
}

TEST(BlockTables, UploadNothingThatIsThere) {
    BlockTables tables(kRows, 100);
    std::vector<std::int32_t> device(kRows * 100, 0);
    const std::vector<std::int32_t> pages = {5, 6, 7, 8};
    tables.set(3, std::span(pages).first(2));
    EXPECT_EQ(upload(tables, device), 2);
    tables.set(3, std::span(pages).first(2));
    EXPECT_EQ(upload(tables, device), 0);
    tables.set(3, pages);  // two more tokens' pages
    tables.set(3, pages);  // both rows of a chunk
    EXPECT_EQ(upload(tables, device), 2);
    tables.set(3, std::span(pages).first(1));  // what lies behind is not read
    EXPECT_EQ(upload(tables, device), 0);
    const std::vector<std::int32_t> switched = {5, 9, 7, 8};  // its second page was there already
    tables.set(3, switched);
    EXPECT_EQ(upload(tables, device), 1);
    EXPECT_EQ(std::vector(device.begin() + 300, device.begin() + 304), switched);
}

TEST(BlockTables, JoinWhatIsNear) {
    const std::vector<std::int32_t> page = {1};
    BlockTables narrow(kRows, 100);
    for (std::int32_t row = kRows; row-- > 0;) narrow.set(row, page);
    ASSERT_EQ(narrow.changes().size(), 1u);  // 400 bytes apart
    EXPECT_EQ(narrow.changes()[0].first, 0);
    EXPECT_EQ(narrow.changes()[0].last, 1101);
    BlockTables wide(kRows, 20'000);
    for (std::int32_t row = kRows; row-- > 0;) wide.set(row, page);
    EXPECT_EQ(wide.changes().size(), std::size_t{kRows});  // 80 kB apart
}

// Requests come and go in the same rows; they find shared pages, grow, lose drafts' pages, are
// preempted and switch to other copies. Uploads may fail and are made up for by the next.
TEST(BlockTables, GiveTheDeviceWhatRowsNeedInAnyOrder) {
    for (const std::int64_t stride : {3, 40, 9000}) {
        std::mt19937 random(static_cast<unsigned>(stride));
        const auto below = [&](std::int64_t limit) {
            return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(limit));
        };
        BlockTables tables(kRows, stride);
        std::vector<std::int32_t> device(static_cast<std::size_t>(kRows * stride), 0);
        std::vector<std::vector<std::int32_t>> pages(kRows);
        for (int step = 0; step < 2000; ++step) {
            std::vector<std::int32_t> in_batch;
            for (std::int32_t row = 0; row < kRows; ++row) {
                auto& own = pages[static_cast<std::size_t>(row)];
                const std::int64_t kind = below(20);
                if (kind == 0) own.clear();  // another request, or the same after a preemption
                if (kind <= 1)
                    own.resize(static_cast<std::size_t>(below(stride + 1)),
                               static_cast<std::int32_t>(1 + below(1000)));
                if (kind == 2 && !own.empty()) own.pop_back();
                if (kind == 3 && !own.empty())
                    own[static_cast<std::size_t>(below(std::ssize(own)))] =
                        static_cast<std::int32_t>(1 + below(1000));
                if (kind <= 8 && std::ssize(own) < stride)
                    own.push_back(static_cast<std::int32_t>(1 + below(1000)));
                if (below(3) > 0) in_batch.push_back(row);
            }
            std::shuffle(in_batch.begin(), in_batch.end(), random);
            for (const std::int32_t row : in_batch)
                tables.set(row, pages[static_cast<std::size_t>(row)]);
            if (below(10) == 0) {
                tables.changes();  // and the upload failed
                continue;
            }
            upload(tables, device);
            for (const std::int32_t row : in_batch) {
                const auto& own = pages[static_cast<std::size_t>(row)];
                ASSERT_TRUE(std::equal(own.begin(), own.end(), device.begin() + row * stride))
                    << "row " << row << " of step " << step;
            }
        }
    }
}

}  // namespace
}  // namespace espalier::batch
