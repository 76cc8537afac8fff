// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_builder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace espalier::batch {
namespace {

constexpr std::array<std::int32_t, 3> kPages = {7, 3, 9};  // shuffled on purpose

constexpr StepCapacity kMost{.absorbed_tokens = 80,
                             .decompressed_tokens = 80,
                             .absorbed_rows = 3,
                             .decompressed_rows = 3,
                             .gather = 20,
                             .max_q_len = 70,
                             .max_kv_len = 250,
                             .table_rows = 4,
                             .block_stride = 4};

RowSpec row_of(std::span<const std::int32_t> tokens, std::int32_t first_slot) {
    RowSpec row;
    row.tokens = tokens;
    row.block_table = kPages;
    row.first_slot = first_slot;
    return row;
}

BatchView view_of(const HostBatch& batch) {
    return view_batch(batch.capacity, batch.bytes.data(), nullptr);
}

TEST(BatchBuilder, LaysAbsorbedRowsBeforeDecompressedOnes) {
    BatchBuilder builder(kMost);
    const std::array<std::int32_t, 2> prompt = {11, 12};
    const std::array<std::int32_t, 1> decode = {13};
    RowSpec first = row_of(prompt, 63);
    first.form = Form::decompressed;
    first.gather = 1;
    RowSpec second = row_of(decode, 130);
    second.table_row = 2;
    second.gather = 1;
    ASSERT_TRUE(builder.add(first));
    ASSERT_TRUE(builder.add(second));
    const HostBatch batch = builder.finish();
    const BatchView view = view_of(batch);
    ASSERT_EQ(view.cap_tokens, 3);
    EXPECT_EQ(view.cap_absorbed, 1);
    EXPECT_EQ(std::vector(view.tokens, view.tokens + 3), (std::vector{13, 11, 12}));
    EXPECT_EQ(std::vector(view.position, view.position + 3), (std::vector{130, 63, 64}));
    EXPECT_EQ(std::vector(view.slot, view.slot + 3),
              (std::vector<std::int64_t>{9 * 64 + 2, 7 * 64 + 63, 3 * 64}));
    EXPECT_EQ(std::vector(view.row_of, view.row_of + 3), (std::vector{1, 0, 0}));
    EXPECT_EQ(view.absorbed.rows, 1);
    EXPECT_EQ(view.absorbed.kv_len[0], 131);
    EXPECT_EQ(view.absorbed.table_row[0], 2);
    EXPECT_EQ(view.decompressed.q_indptr[0], 1);
    EXPECT_EQ(view.decompressed.q_indptr[1], 3);
    EXPECT_EQ(view.decompressed.kv_len[0], 65);
    // Gathered tokens keep the order of add, wherever their rows were laid.
    ASSERT_EQ(view.cap_gather, 2);
    EXPECT_EQ(view.gather[0], 2);
    EXPECT_EQ(view.gather[1], 0);
    EXPECT_EQ(builder.first_token(0), 1);
    EXPECT_EQ(builder.first_token(1), 0);
    ASSERT_EQ(batch.tables.size(), 2u);
    EXPECT_EQ(batch.tables[1].row, 2);
    EXPECT_EQ(batch.tables[1].pages.size(), 3u);
}

TEST(BatchBuilder, PositionsGoByDepthAndSlotsByIndex) {
    BatchBuilder builder(kMost);
    const std::array<std::int32_t, 4> tokens = {1, 2, 3, 4};
    const std::array<std::int32_t, 4> depth = {0, 1, 1, 2};
    const std::array<std::uint64_t, 4> words = {1, 3, 5, 13};
    RowSpec row = row_of(tokens, 62);
    row.mask = mla::MaskKind::tree;
    row.depth = depth;
    row.words = words;
    row.gather = 3;
    ASSERT_TRUE(builder.add(row));
    const HostBatch batch = builder.finish();
    const BatchView view = view_of(batch);
    EXPECT_EQ(std::vector(view.position, view.position + 4), (std::vector{62, 63, 63, 64}));
    EXPECT_EQ(std::vector(view.slot, view.slot + 4),
              (std::vector<std::int64_t>{7 * 64 + 62, 7 * 64 + 63, 3 * 64, 3 * 64 + 1}));
    EXPECT_EQ(std::vector(view.absorbed.words, view.absorbed.words + 4),
              std::vector(words.begin(), words.end()));
    EXPECT_EQ(view.absorbed.tail_len[0], 4);
    EXPECT_EQ(std::vector(view.gather, view.gather + 3), (std::vector{1, 2, 3}));
}

// Two nodes at depth 2, below a root and three nodes that the cache has already.
TEST(BatchBuilder, ALevelOfATreeLiesBehindTheLevelsBefore) {
    BatchBuilder builder(kMost);
    const std::array<std::int32_t, 2> tokens = {5, 6};
    const std::array<std::int32_t, 2> depth = {2, 2};
    const std::array<std::uint64_t, 2> words = {0b010011, 0b101001};
    RowSpec row = row_of(tokens, 64);
    row.mask = mla::MaskKind::tree;
    row.tail_len = 6;
    row.depth = depth;
    row.words = words;
    ASSERT_TRUE(builder.add(row));
    const HostBatch batch = builder.finish();
    const BatchView view = view_of(batch);
    EXPECT_EQ(std::vector(view.position, view.position + 2), (std::vector{62, 62}));
    EXPECT_EQ(std::vector(view.slot, view.slot + 2),
              (std::vector<std::int64_t>{3 * 64, 3 * 64 + 1}));
    EXPECT_EQ(view.absorbed.kv_len[0], 66);
    EXPECT_EQ(view.absorbed.tail_len[0], 6);
}

TEST(BatchBuilder, PadsBelongToNobody) {
    BatchBuilder builder(kMost);
    const std::array<std::int32_t, 2> tokens = {5, 6};
    RowSpec row = row_of(tokens, 0);
    ASSERT_TRUE(builder.add(row));
    row.form = Form::decompressed;
    ASSERT_TRUE(builder.add(row));
    const StepCapacity padded{.absorbed_tokens = 4,
                              .decompressed_tokens = 3,
                              .absorbed_rows = 3,
                              .decompressed_rows = 2,
                              .gather = 2,
                              .max_q_len = 3,
                              .max_kv_len = 100,
                              .table_rows = 4,
                              .block_stride = 2};
    const auto batch = builder.finish(padded);
    ASSERT_TRUE(batch) << batch.error().message;
    EXPECT_EQ(batch->capacity, padded);
    const BatchView view = view_of(*batch);
    EXPECT_EQ(view.cap_tokens, 7);
    EXPECT_EQ(std::vector(view.slot, view.slot + 7),
              (std::vector<std::int64_t>{448, 449, -1, -1, 448, 449, -1}));
    EXPECT_EQ(std::vector(view.row_of, view.row_of + 7), (std::vector{0, 0, -1, -1, 1, 1, -1}));
    EXPECT_EQ(std::vector(view.absorbed.q_indptr, view.absorbed.q_indptr + 4),
              (std::vector{0, 2, 2, 2}));
    EXPECT_EQ(view.absorbed.token_end, 4);
    EXPECT_EQ(view.absorbed.max_kv_len, 100);
    EXPECT_EQ(std::vector(view.decompressed.q_indptr, view.decompressed.q_indptr + 3),
              (std::vector{4, 6, 6}));
    EXPECT_EQ(view.decompressed.token_end, 7);
    EXPECT_EQ(view.decompressed.kv_len[1], 0);
    EXPECT_EQ(std::vector(view.gather, view.gather + 2), (std::vector{-1, -1}));
    EXPECT_EQ(builder.first_token(1), 4);
}

TEST(BatchBuilder, RefusesWhatDoesNotFit) {
    BatchBuilder builder(kMost);
    const std::vector<std::int32_t> many(81, 1);
    const std::vector<std::int32_t> depth(65, 0);
    const std::vector<std::uint64_t> words(65, 1);
    const auto message = [&](const RowSpec& row) {
        const auto result = builder.add(row);
        return result ? std::string("accepted") : result.error().message;
    };
    EXPECT_EQ(message(row_of({}, 0)), "a row without tokens");
    EXPECT_EQ(message(row_of(std::span(many).first(65), 150)),
              "a row of 215 slots needs 4 pages but has 3");
    RowSpec tree = row_of(std::span(many).first(65), 0);
    tree.mask = mla::MaskKind::tree;
    EXPECT_EQ(message(tree), "a tree row of 65 tokens has 0 words and 0 depths");
    tree.words = words;
    tree.depth = depth;
    EXPECT_EQ(message(tree), "a tree row of 65 tokens: at most 64 are possible");
    tree.form = Form::decompressed;
    EXPECT_EQ(message(tree), "decompressed rows are causal only");
    RowSpec level = row_of(std::span(many).first(3), 2);
    level.tail_len = 4;
    EXPECT_EQ(message(level), "a tail of 4 slots in a row without words");
    level.mask = mla::MaskKind::tree;
    level.words = std::span(words).first(3);
    level.depth = std::span(depth).first(3);
    for (const std::int32_t tail : {2, 65, 6}) {
        level.tail_len = tail;
        EXPECT_EQ(message(level),
                  fmt::format("a tail of {} slots: between the row's 3 tokens and 64 are possible, "
                              "and no more than the 2 slots before it",
                              tail));
    }
    RowSpec null_page = row_of(std::span(many).first(1), 0);
    const std::array<std::int32_t, 1> null_table = {0};
    null_page.block_table = null_table;
    EXPECT_EQ(message(null_page), "page 0 of a row is 0: the null page is never owned");
    RowSpec row = row_of(std::span(many).first(2), 0);
    row.gather = 3;
    EXPECT_EQ(message(row), "3 of a row's 2 tokens want logits");
    EXPECT_EQ(message(row_of(std::span(many).first(71), 0)),
              "a batch of 71 tokens in a row: its capacity is 70");
    row.gather = 0;
    row.table_row = 4;
    EXPECT_EQ(message(row), "a batch of 5 block tables: its capacity is 4");
    row.table_row = 1;
    EXPECT_EQ(message(row), "accepted");
    const std::array<std::int32_t, 1> other_page = {8};
    RowSpec other = row;
    other.block_table = other_page;
    EXPECT_EQ(message(other), "rows 0 and 1 have block table 1 with other pages");
    EXPECT_EQ(message(row_of(std::span(many).first(70), 0)), "accepted");
    EXPECT_EQ(message(row_of(std::span(many).first(9), 0)),
              "a batch of 81 absorbed tokens: its capacity is 80");
    StepCapacity short_of_rows = kMost;
    short_of_rows.absorbed_rows = 1;
    const auto batch = builder.finish(short_of_rows);
    ASSERT_FALSE(batch);
    EXPECT_EQ(batch.error().message, "a batch of 2 absorbed rows: its capacity is 1");
}

// A device cannot look at ids: the host does.
// Attention keeps partial results of absorbed rows alone.
TEST(BatchBuilder, CountsTheSplitsOfAbsorbedRows) {
    StepCapacity most = kMost;
    most.total_splits = 4;
    BatchBuilder builder(most);
    const std::array<std::int32_t, 2> tokens = {1, 2};
    RowSpec prompt = row_of(tokens, 0);
    prompt.form = Form::decompressed;
    ASSERT_TRUE(builder.add(prompt));
    EXPECT_EQ(builder.need().total_splits, 0);
    RowSpec verified = row_of(tokens, 63);  // 65 slots are one split for each token
    verified.table_row = 1;
    ASSERT_TRUE(builder.add(verified));
    EXPECT_EQ(builder.need().total_splits, 2);
    verified.table_row = 2;
    ASSERT_TRUE(builder.add(verified));
    verified.table_row = 3;
    const Expected<void> added = builder.add(verified);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().message, "a batch of 6 splits: its capacity is 4");
    BatchBuilder unbounded(kMost);
    ASSERT_TRUE(unbounded.add(verified));
    EXPECT_EQ(unbounded.need().total_splits, 0);
}

TEST(BatchBuilder, FindsTokensOutsideTheVocabulary) {
    BatchBuilder builder(kMost);
    const std::array<std::int32_t, 2> tokens = {5, 6};
    ASSERT_TRUE(builder.add(row_of(tokens, 0)));
    const HostBatch batch = builder.finish();
    EXPECT_TRUE(batch.check_tokens(7));
    ASSERT_FALSE(batch.check_tokens(6));
    EXPECT_EQ(batch.check_tokens(6).error().message, "token id 6 is outside the vocabulary of 6");
}

TEST(FormByPlace, FollowsThePromptLength) {
    EXPECT_EQ(decompressed_below(0), 0);
    EXPECT_EQ(decompressed_below(1), 0);
    EXPECT_EQ(decompressed_below(256), 0);
    EXPECT_EQ(decompressed_below(257), 256);
    EXPECT_EQ(decompressed_below(2048), 1984);
}

}  // namespace
}  // namespace espalier::batch
