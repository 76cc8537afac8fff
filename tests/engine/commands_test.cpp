// SPDX-License-Identifier: Apache-2.0
// Commands between ranks: what is written is read back as itself, and anything else is refused or
// lies within what a device may be told, whatever bytes were changed, left out or added.
#include "engine/commands.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "batch/batch_builder.hpp"

namespace espalier::engine {
namespace {

using Bytes = std::vector<std::byte>;

constexpr batch::StepCapacity kLargest{.absorbed_tokens = 96,
                                       .decompressed_tokens = 96,
                                       .absorbed_rows = 6,
                                       .decompressed_rows = 6,
                                       .gather = 64,
                                       .max_q_len = 80,
                                       .max_kv_len = 512,
                                       .table_rows = 6,
                                       .block_stride = 8};
constexpr batch::BatchBounds kBounds{.vocabulary = 1000, .page_count = 40};

// A random batch of up to six requests: chunks in both forms, chains and trees.
class RandomBatch {
  public:
    explicit RandomBatch(unsigned seed) : noise_(seed), builder_(kLargest) {}

    batch::HostBatch next() {
        builder_.clear();
        tokens_.clear();
        const int rows = 1 + below(6);
        for (int row = 0; row < rows; ++row) add(row);
        auto batch = builder_.finish(builder_.need());
        EXPECT_TRUE(batch) << batch.error().message;
        return *batch;
    }
    int below(int end) { return static_cast<int>(noise_() % static_cast<unsigned>(end)); }

  private:
    void add(int request) {
        std::vector<std::int32_t>& pages = pages_[request];
        if (pages.empty() || below(4) == 0) {
            pages.resize(8);
            for (std::int32_t& page : pages) page = 1 + below(39);
        } else {
            pages[static_cast<std::size_t>(below(8))] = 1 + below(39);
        }
        const int count = 1 + below(12);
        std::vector<std::int32_t>& tokens = tokens_.emplace_back();
        for (int i = 0; i < count; ++i) tokens.push_back(below(1000));
        words_[request].clear();
        depth_[request].clear();
        batch::RowSpec row;
        row.tokens = tokens;
        row.block_table = pages;
        row.table_row = request;
        row.first_slot = below(400);
        row.gather = below(count + 1);
        const int kind = below(3);
        if (kind == 1) row.form = batch::Form::decompressed;
        if (kind == 2) {
            row.mask = mla::MaskKind::tree;
            for (int i = 0; i < count; ++i) {
                const int parent = i == 0 ? -1 : below(i);
                const auto above =
                    parent < 0 ? 0 : words_[request][static_cast<std::size_t>(parent)];
                words_[request].push_back(above | std::uint64_t{1} << i);
                depth_[request].push_back(
                    parent < 0 ? 0 : depth_[request][static_cast<std::size_t>(parent)] + 1);
            }
            row.words = words_[request];
            row.depth = depth_[request];
        }
        const auto added = builder_.add(row);
        EXPECT_TRUE(added) << added.error().message;
    }

    std::mt19937 noise_;
    batch::BatchBuilder builder_;
    std::vector<std::vector<std::int32_t>> tokens_ = [] {
        std::vector<std::vector<std::int32_t>> rows;
        rows.reserve(6);
        return rows;
    }();
    std::vector<std::int32_t> pages_[6], depth_[6];
    std::vector<std::uint64_t> words_[6];
};

void expect_same(const batch::HostBatch& got, const batch::HostBatch& want) {
    EXPECT_EQ(got.capacity, want.capacity);
    EXPECT_TRUE(std::ranges::equal(got.bytes, want.bytes));
    ASSERT_EQ(got.tables.size(), want.tables.size());
    for (std::size_t i = 0; i < got.tables.size(); ++i) {
        EXPECT_EQ(got.tables[i].row, want.tables[i].row);
        EXPECT_TRUE(std::ranges::equal(got.tables[i].pages, want.tables[i].pages));
    }
}

TEST(Commands, BatchesArriveAsTheyWereAndTablesByTheirChanges) {
    RandomBatch random(1);
    SharedBatches here(kLargest), there(kLargest);
    std::size_t saved = 0;
    for (std::uint64_t serial = 1; serial <= 300; ++serial) {
        const batch::HostBatch batch = random.next();
        Bytes buffer;
        FlatWriter writer(buffer);
        begin_command(writer, Command::step, serial);
        here.write(writer, batch);
        FlatReader reader(buffer);
        const auto command = read_command(reader, serial);
        ASSERT_TRUE(command) << command.error().message;
        EXPECT_EQ(*command, Command::step);
        const auto read = there.read(reader, kBounds);
        ASSERT_TRUE(read) << read.error().message;
        ASSERT_TRUE(reader.finish("step"));
        expect_same(*read, batch);
        // The same batch again says no page.
        const std::size_t changed = buffer.size();
        FlatWriter second(buffer);
        begin_command(second, Command::step, serial);
        here.write(second, batch);
        EXPECT_LE(buffer.size(), changed);
        saved += changed - buffer.size();
        FlatReader again(buffer);
        ASSERT_TRUE(read_command(again, serial));
        ASSERT_TRUE(there.read(again, kBounds));
    }
    EXPECT_GT(saved, 300u * sizeof(std::int32_t));
}

TEST(Commands, OnlyTheNextOneIsTaken) {
    Bytes buffer;
    FlatWriter writer(buffer);
    begin_command(writer, Command::beat, 7);
    FlatReader reader(buffer);
    const auto read = read_command(reader, 8);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().message, "command 7 where 8 comes next");
}

TEST(Commands, NumbersOutsideTheirBoundsAreNamed) {
    RandomBatch random(2);
    const batch::HostBatch batch = random.next();
    const auto refusal = [&](auto&& change) {
        Bytes bytes(batch.bytes.begin(), batch.bytes.end());
        const batch::BatchLayout layout(batch.capacity);
        change(bytes, layout);
        batch::HostBatch changed = batch;
        changed.bytes = bytes;
        const auto checked = check_batch(changed, kBounds);
        return checked ? std::string() : checked.error().message;
    };
    const auto put = [](Bytes& bytes, std::size_t at, auto value) {
        std::memcpy(bytes.data() + at, &value, sizeof(value));
    };
    EXPECT_EQ(refusal([](Bytes&, const batch::BatchLayout&) {}), "");
    EXPECT_EQ(refusal([&](Bytes& bytes, const batch::BatchLayout& layout) {
                  put(bytes, layout.tokens, std::int32_t{1000});
              }),
              "a batch with token 1000, not within 0…999");
    EXPECT_EQ(refusal([&](Bytes& bytes, const batch::BatchLayout& layout) {
                  put(bytes, layout.slot, std::int64_t{40 * 64});
              }),
              "a batch with slot 2560, not within -1…2559");
    EXPECT_EQ(refusal([](Bytes& bytes, const batch::BatchLayout&) { bytes.pop_back(); }),
              "a batch of " + std::to_string(batch.bytes.size() - 1) + " bytes, not " +
                  std::to_string(batch.bytes.size()));
}

// Any change is refused, or harmless: what was read passes the check that a device relies on.
TEST(Commands, HostileBytesAreRefusedOrHarmless) {
    RandomBatch random(3);
    std::int64_t refused = 0, taken = 0;
    for (int round = 0; round < 2000; ++round) {
        const batch::HostBatch batch = random.next();
        Bytes buffer;
        FlatWriter writer(buffer);
        SharedBatches here(kLargest), there(kLargest);
        here.write(writer, batch);
        const int changes = 1 + random.below(3);
        for (int i = 0; i < changes; ++i) {
            const auto at = static_cast<std::size_t>(random.below(static_cast<int>(buffer.size())));
            switch (random.below(4)) {
                case 0:
                    buffer[at] = static_cast<std::byte>(random.below(256));
                    break;
                case 1:
                    buffer[at] = std::byte{0xFF};
                    break;
                case 2:
                    buffer.resize(at + 1);
                    break;
                default:
                    buffer.insert(buffer.begin() + static_cast<std::ptrdiff_t>(at), std::byte{1});
            }
        }
        FlatReader reader(buffer);
        const auto read = there.read(reader, kBounds);
        if (!read || !reader.finish("step")) {
            ++refused;
            continue;
        }
        ++taken;
        EXPECT_TRUE(check_batch(*read, kBounds));
        for (const batch::BlockTableRow& table : read->tables)
            for (const std::int32_t page : table.pages)
                EXPECT_TRUE(page >= 0 && page < kBounds.page_count);
    }
    EXPECT_GT(refused, 500);
    EXPECT_GT(taken, 20);
}

TEST(Commands, MovesStayInThePool) {
    const auto read = [](std::vector<std::int64_t> source, std::vector<std::int64_t> destination) {
        Bytes buffer;
        FlatWriter writer(buffer);
        write_moves(writer, source, destination);
        FlatReader reader(buffer);
        SlotMoves moves;
        const auto done = read_moves(reader, 40, moves);
        EXPECT_TRUE(!done || moves.source == source);
        return done ? std::string() : done.error().message;
    };
    EXPECT_EQ(read({64, 70}, {65, 66}), "");
    EXPECT_EQ(read({64, 2560}, {65, 66}), "slot 2560 to move: there are 2560");
    EXPECT_EQ(read({64}, {65, 66}), "1 slots to move to 2");
    EXPECT_EQ(read({-1}, {65}), "slot -1 to move: there are 2560");
}

}  // namespace
}  // namespace espalier::engine
