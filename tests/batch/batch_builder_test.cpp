// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_builder.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

namespace espalier::batch {
namespace {

constexpr std::array<std::int32_t, 3> kPages = {7, 3, 9};  // shuffled on purpose

RowSpec row_of(std::span<const std::int32_t> tokens, std::int32_t first_slot) {
    RowSpec row;
    row.tokens = tokens;
    row.block_table = kPages;
    row.first_slot = first_slot;
    return row;
}

TEST(BatchBuilder, LaysAbsorbedRowsBeforeDecompressedOnes) {
    BatchBuilder builder;
    const std::array<std::int32_t, 2> prompt = {11, 12};
    const std::array<std::int32_t, 1> decode = {13};
    const std::array<std::int32_t, 1> last = {1};
    const std::array<std::int32_t, 1> only = {0};
    RowSpec first = row_of(prompt, 63);
    first.form = Form::decompressed;
    first.gather = last;
    RowSpec second = row_of(decode, 130);
    second.gather = only;
    ASSERT_TRUE(builder.add(first));
    ASSERT_TRUE(builder.add(second));
    const BatchView view = builder.finish();
    ASSERT_EQ(view.cap_tokens, 3);
    EXPECT_EQ(view.cap_absorbed, 1);
    EXPECT_EQ(std::vector(view.tokens, view.tokens + 3), (std::vector{13, 11, 12}));
    EXPECT_EQ(std::vector(view.position, view.position + 3), (std::vector{130, 63, 64}));
    EXPECT_EQ(std::vector(view.slot, view.slot + 3),
              (std::vector<std::int64_t>{9 * 64 + 2, 7 * 64 + 63, 3 * 64}));
    EXPECT_EQ(std::vector(view.row_of, view.row_of + 3), (std::vector{1, 0, 0}));
    EXPECT_EQ(view.absorbed.rows, 1);
    EXPECT_EQ(view.absorbed.kv_len[0], 131);
    EXPECT_EQ(view.decompressed.q_indptr[0], 1);
    EXPECT_EQ(view.decompressed.q_indptr[1], 3);
    EXPECT_EQ(view.decompressed.kv_len[0], 65);
    // Gathered tokens keep the order of add, wherever their rows were laid.
    ASSERT_EQ(view.cap_gather, 2);
    EXPECT_EQ(view.gather[builder.first_gather(0)], 2);
    EXPECT_EQ(view.gather[builder.first_gather(1)], 0);
    EXPECT_EQ(builder.first_token(0), 1);
    EXPECT_EQ(builder.first_token(1), 0);
}

TEST(BatchBuilder, PositionsGoByDepthAndSlotsByIndex) {
    BatchBuilder builder;
    const std::array<std::int32_t, 4> tokens = {1, 2, 3, 4};
    const std::array<std::int32_t, 4> depth = {0, 1, 1, 2};
    const std::array<std::uint64_t, 4> words = {1, 3, 5, 13};
    RowSpec row = row_of(tokens, 62);
    row.mask = mla::MaskKind::tree;
    row.depth = depth;
    row.words = words;
    ASSERT_TRUE(builder.add(row));
    const BatchView view = builder.finish();
    EXPECT_EQ(std::vector(view.position, view.position + 4), (std::vector{62, 63, 63, 64}));
    EXPECT_EQ(std::vector(view.slot, view.slot + 4),
              (std::vector<std::int64_t>{7 * 64 + 62, 7 * 64 + 63, 3 * 64, 3 * 64 + 1}));
    EXPECT_EQ(std::vector(view.absorbed.words, view.absorbed.words + 4),
              std::vector(words.begin(), words.end()));
    EXPECT_EQ(view.absorbed.tail_len[0], 4);
}

TEST(BatchBuilder, PadsBelongToNobody) {
    BatchBuilder builder;
    const std::array<std::int32_t, 2> tokens = {5, 6};
    RowSpec row = row_of(tokens, 0);
    ASSERT_TRUE(builder.add(row));
    row.form = Form::decompressed;
    ASSERT_TRUE(builder.add(row));
    const BatchView view =
        builder.finish({.absorbed_tokens = 4, .decompressed_tokens = 3, .rows = 3, .gather = 2});
    EXPECT_EQ(view.cap_tokens, 7);
    EXPECT_EQ(std::vector(view.slot, view.slot + 7),
              (std::vector<std::int64_t>{448, 449, -1, -1, 448, 449, -1}));
    EXPECT_EQ(std::vector(view.row_of, view.row_of + 7), (std::vector{0, 0, -1, -1, 1, 1, -1}));
    EXPECT_EQ(std::vector(view.absorbed.q_indptr, view.absorbed.q_indptr + 4),
              (std::vector{0, 2, 2, 2}));
    EXPECT_EQ(view.absorbed.token_end, 4);
    EXPECT_EQ(std::vector(view.decompressed.q_indptr, view.decompressed.q_indptr + 4),
              (std::vector{4, 6, 6, 6}));
    EXPECT_EQ(view.decompressed.token_end, 7);
    EXPECT_EQ(view.decompressed.kv_len[2], 0);
    EXPECT_EQ(std::vector(view.gather, view.gather + 2), (std::vector{-1, -1}));
}

TEST(BatchBuilder, RefusesWhatDoesNotFit) {
    BatchBuilder builder;
    const std::vector<std::int32_t> many(65, 1);
    const std::vector<std::int32_t> depth(65, 0);
    const std::vector<std::uint64_t> words(65, 1);
    const auto message = [&](const RowSpec& row) {
        const auto result = builder.add(row);
        return result ? std::string("accepted") : result.error().message;
    };
    EXPECT_EQ(message(row_of({}, 0)), "a row without tokens");
    EXPECT_EQ(message(row_of(many, 150)), "a row of 215 slots needs 4 pages but has 3");
    RowSpec tree = row_of(many, 0);
    tree.mask = mla::MaskKind::tree;
    EXPECT_EQ(message(tree), "a tree row of 65 tokens has 0 words and 0 depths");
    tree.words = words;
    tree.depth = depth;
    EXPECT_EQ(message(tree),
              "a tree row of 65 tokens has a tail of 65: it must hold them and at most 64");
    tree.form = Form::decompressed;
    EXPECT_EQ(message(tree), "decompressed rows are causal only");
    RowSpec null_page = row_of(std::span(many).first(1), 0);
    const std::array<std::int32_t, 1> null_table = {0};
    null_page.block_table = null_table;
    EXPECT_EQ(message(null_page), "page 0 of a row is 0: the null page is never owned");
    RowSpec bad_gather = row_of(std::span(many).first(2), 0);
    const std::array<std::int32_t, 1> two = {2};
    bad_gather.gather = two;
    EXPECT_EQ(message(bad_gather), "gather index 2 of a row of 2 tokens: indices ascend below it");
}

TEST(FormByPlace, FollowsThePromptLength) {
    EXPECT_EQ(decompressed_below(0), 0);
    EXPECT_EQ(decompressed_below(1), 0);
    EXPECT_EQ(decompressed_below(256), 0);
    EXPECT_EQ(decompressed_below(257), 256);
    EXPECT_EQ(decompressed_below(2048), 1792);
}

}  // namespace
}  // namespace espalier::batch
