// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_view.hpp"

#include <algorithm>

namespace espalier::batch {
namespace {

constexpr std::size_t kAlignment = 64;

template <typename T>
const T* array_at(const std::byte* base, std::size_t offset) {
    return reinterpret_cast<const T*>(base + offset);
}

mla::RaggedRows view_rows(const BatchLayout::Rows& layout, const std::byte* base) {
    mla::RaggedRows rows;
    rows.q_indptr = array_at<std::int32_t>(base, layout.q_indptr);
    rows.kv_len = array_at<std::int32_t>(base, layout.kv_len);
    rows.tail_len = array_at<std::int32_t>(base, layout.tail_len);
    rows.table_row = array_at<std::int32_t>(base, layout.table_row);
    rows.mask = array_at<mla::MaskKind>(base, layout.mask);
    return rows;
}

}  // namespace

BatchLayout::BatchLayout(const StepCapacity& capacity) {
    const auto take = [this](std::int64_t count, std::size_t element) {
        const std::size_t offset = bytes;
        const std::size_t end = offset + static_cast<std::size_t>(count) * element;
        bytes = (end + kAlignment - 1) / kAlignment * kAlignment;
        return offset;
    };
    const auto take_rows = [&take](std::int64_t rows) {
        Rows layout;
        layout.q_indptr = take(rows + 1, sizeof(std::int32_t));
        layout.kv_len = take(rows, sizeof(std::int32_t));
        layout.tail_len = take(rows, sizeof(std::int32_t));
        layout.table_row = take(rows, sizeof(std::int32_t));
        layout.mask = take(rows, sizeof(mla::MaskKind));
        return layout;
    };
    tokens = take(capacity.tokens(), sizeof(std::int32_t));
    position = take(capacity.tokens(), sizeof(std::int32_t));
    row_of = take(capacity.tokens(), sizeof(std::int32_t));
    slot = take(capacity.tokens(), sizeof(std::int64_t));
    words = take(capacity.absorbed_tokens, sizeof(std::uint64_t));
    gather = take(capacity.gather, sizeof(std::int32_t));
    absorbed = take_rows(capacity.absorbed_rows);
    decompressed = take_rows(capacity.decompressed_rows);
}

BatchView view_batch(const StepCapacity& capacity, const std::byte* base,
                     const std::int32_t* block_tables) {
    const BatchLayout layout(capacity);
    BatchView view;
    view.cap_tokens = capacity.tokens();
    view.cap_gather = capacity.gather;
    view.cap_absorbed = capacity.absorbed_tokens;
    view.tokens = array_at<std::int32_t>(base, layout.tokens);
    view.position = array_at<std::int32_t>(base, layout.position);
    view.slot = array_at<std::int64_t>(base, layout.slot);
    view.row_of = array_at<std::int32_t>(base, layout.row_of);
    view.gather = array_at<std::int32_t>(base, layout.gather);
    view.absorbed = view_rows(layout.absorbed, base);
    view.absorbed.rows = capacity.absorbed_rows;
    view.absorbed.token_end = capacity.absorbed_tokens;
    view.absorbed.words = array_at<std::uint64_t>(base, layout.words);
    view.absorbed.total_splits = capacity.total_splits;
    view.decompressed = view_rows(layout.decompressed, base);
    view.decompressed.rows = capacity.decompressed_rows;
    view.decompressed.token_end = capacity.tokens();
    for (mla::RaggedRows* rows : {&view.absorbed, &view.decompressed}) {
        rows->block_table = block_tables;
        rows->block_stride = capacity.block_stride;
        rows->table_rows = capacity.table_rows;
        rows->max_kv_len = capacity.max_kv_len;
    }
    const auto longest = [&capacity](std::int64_t tokens) {
        return static_cast<std::int32_t>(std::min<std::int64_t>(capacity.max_q_len, tokens));
    };
    view.absorbed.max_q_len = longest(capacity.absorbed_tokens);
    view.decompressed.max_q_len = longest(capacity.decompressed_tokens);
    return view;
}

}  // namespace espalier::batch
