// SPDX-License-Identifier: Apache-2.0
#include "batch/device_batch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/cpu_device.hpp"

namespace espalier::batch {
namespace {

constexpr StepCapacity kCapacity{.absorbed_tokens = 40,
                                 .decompressed_tokens = 30,
                                 .absorbed_rows = 5,
                                 .decompressed_rows = 3,
                                 .gather = 20,
                                 .max_q_len = 32,
                                 .max_kv_len = 200,
                                 .table_rows = 9,
                                 .block_stride = 4,
                                 .total_splits = 77};
constexpr std::array<std::int32_t, 4> kPages = {7, 3, 9, 4};
constexpr std::array<std::int32_t, 30> kTokens = {1, 2, 3, 4, 5};

RowSpec row_of(std::size_t tokens, std::int32_t first_slot, std::int32_t table_row) {
    RowSpec row;
    row.tokens = std::span(kTokens).first(tokens);
    row.block_table = kPages;
    row.table_row = table_row;
    row.first_slot = first_slot;
    return row;
}

// Every pointer and every number that an operation sees.
std::vector<std::intptr_t> image_of(const BatchView& view) {
    std::vector<std::intptr_t> image;
    const auto add = [&](const auto*... pointers) {
        (image.push_back(reinterpret_cast<std::intptr_t>(pointers)), ...);
    };
    const auto count = [&](auto... numbers) { (image.push_back(numbers), ...); };
    count(view.cap_tokens, view.cap_gather, view.cap_absorbed);
    add(view.tokens, view.position, view.slot, view.row_of, view.gather);
    for (const mla::RaggedRows* rows : {&view.absorbed, &view.decompressed}) {
        count(rows->rows, rows->token_end, rows->block_stride, rows->table_rows, rows->max_q_len,
              rows->max_kv_len, rows->total_splits, rows->custom_mask_len);
        add(rows->q_indptr, rows->kv_len, rows->block_table, rows->table_row, rows->mask,
            rows->tail_len, rows->words);
    }
    return image;
}

TEST(DeviceBatch, BatchesOfOneCapacityDifferInDataAlone) {
    CpuDevice device(1);
    DeviceBatch on_device(device);
    BatchBuilder builder(kCapacity);
    std::vector<std::vector<std::intptr_t>> images;
    for (int batch = 0; batch < 4; ++batch) {
        builder.clear();
        if (batch >= 1) {
            ASSERT_TRUE(builder.add(row_of(1, 5, 8)));
        }
        if (batch >= 2) {
            ASSERT_TRUE(builder.add(row_of(30, 170, 2)));
        }
        if (batch >= 3) {
            RowSpec chunk = row_of(17, 0, 1);
            chunk.form = Form::decompressed;
            ASSERT_TRUE(builder.add(chunk));
        }
        const auto host = builder.finish(kCapacity);
        ASSERT_TRUE(host) << host.error().message;
        EXPECT_EQ(host->capacity, kCapacity);
        EXPECT_EQ(host->bytes.size(), BatchLayout(kCapacity).bytes);
        const auto view = on_device.upload(device.stream(), *host);
        ASSERT_TRUE(view);
        images.push_back(image_of(*view));
        EXPECT_EQ(images.back(), images.front()) << batch;
        EXPECT_EQ(view->cap_tokens, 70);
        EXPECT_EQ(view->absorbed.rows, 5);
        EXPECT_EQ(view->absorbed.max_q_len, 32);
        EXPECT_EQ(view->decompressed.max_q_len, 30);
        EXPECT_EQ(view->absorbed.max_kv_len, 200);
        EXPECT_EQ(view->absorbed.total_splits, 77);
    }
}

TEST(DeviceBatch, FindsPagesByRequest) {
    CpuDevice device(1);
    DeviceBatch on_device(device);
    BatchBuilder builder(kCapacity);
    ASSERT_TRUE(builder.add(row_of(1, 130, 6)));
    const BatchView view = on_device.upload(device.stream(), builder.finish()).value();
    EXPECT_EQ(view.absorbed.rows, 1);
    const std::int32_t* table =
        view.absorbed.block_table + mla::table_of(view.absorbed, 0) * view.absorbed.block_stride;
    EXPECT_EQ(mla::table_of(view.absorbed, 0), 6);
    EXPECT_EQ(std::vector(table, table + 3), (std::vector{7, 3, 9}));
}

// Two builders of different sizes take turns, as a calibration and the engine do.
TEST(DeviceBatch, MakesRoomForALargerBuilderAndKeepsIt) {
    CpuDevice device(1);
    DeviceBatch on_device(device);
    StepCapacity small = kCapacity;
    small.absorbed_tokens = 4;
    small.table_rows = 2;
    small.block_stride = 1;
    BatchBuilder calibration(small);
    BatchBuilder engine(kCapacity);
    for (int turn = 0; turn < 3; ++turn) {
        calibration.clear();
        RowSpec one = row_of(1, 0, 1);
        one.block_table = std::span(kPages).subspan(2, 1);
        ASSERT_TRUE(calibration.add(one));
        const BatchView first = on_device.upload(device.stream(), calibration.finish()).value();
        EXPECT_EQ(first.absorbed.block_table[first.absorbed.block_stride], 9);
        engine.clear();
        ASSERT_TRUE(engine.add(row_of(2, 100, 1)));
        const BatchView second = on_device.upload(device.stream(), engine.finish()).value();
        EXPECT_EQ(second.absorbed.block_stride, 4);
        EXPECT_EQ(second.absorbed.block_table[4], 7);
        EXPECT_EQ(second.absorbed.block_table[5], 3);
    }
}

}  // namespace
}  // namespace espalier::batch
