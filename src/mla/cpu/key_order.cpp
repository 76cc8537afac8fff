// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/key_order.hpp"

#include <algorithm>

namespace espalier::mla::cpu {

RowView view_row(const RaggedRows& rows, std::int32_t index) {
    RowView row;
    row.rows = &rows;
    row.index = index;
    row.first_token = rows.q_indptr[index];
    row.tokens = rows.q_indptr[index + 1] - rows.q_indptr[index];
    row.first_slot = first_local_slot(rows);
    row.keys = std::max<std::int64_t>(rows.kv_len[index] - row.first_slot, 0);
    // A row without tokens may name any table, and is never read.
    const std::int64_t table = table_of(rows, index);
    row.pages = table < 0 ? nullptr : rows.block_table + table * rows.block_stride;
    row.mask = rows.mask[index];
    return row;
}

// A row of which no token has a list is as it would be without them.
RowView view_row(const RaggedRows& rows, std::int32_t index, const KeyLists& lists) {
    RowView row = view_row(rows, index);
    if (lists.count == nullptr) return row;
    const std::int32_t* count = lists.count + row.first_token;
    if (std::any_of(count, count + row.tokens, [](std::int32_t keys) { return keys >= 0; }))
        row.lists = &lists;
    return row;
}

std::int64_t RowView::keys_below(std::int64_t limit) const {
    const std::int64_t world = rows->dcp_world;
    const std::int64_t reach = std::max<std::int64_t>(limit - rows->dcp_rank, 0);
    return std::clamp<std::int64_t>((reach + world - 1) / world - first_slot, 0, keys);
}

std::int64_t RowView::history() const { return keys_below(global_kv_len() - tail()); }

std::int64_t RowView::most_keys() const {
    if (lists == nullptr) return keys;
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
        const std::int64_t listed = lists->count[first_token + i];
        most = std::max(most, listed < 0 ? keys : listed);
    }
    return most;
}

std::int64_t RowView::straight() const {
    if (lists != nullptr) return 0;
    switch (mask) {
        case MaskKind::full:
        case MaskKind::causal:
            return keys;
        case MaskKind::tree:
            return history();
        case MaskKind::dense:
            return 0;
    }
    return 0;
}

std::int64_t RowView::prefix(std::int64_t i) const {
    return mask == MaskKind::full ? keys : keys_below(global_kv_len() - (tokens - 1) + i);
}

std::int64_t RowView::slots(std::int64_t i, std::int64_t first, std::int64_t count,
                            std::int32_t* slots, SlotCursor& cursor) const {
    if (lists != nullptr && lists->count[first_token + i] >= 0)
        return list_slots(i, first, count, slots, cursor);
    switch (mask) {
        case MaskKind::full:
        case MaskKind::causal:
            return prefix_slots(i, first, count, slots);
        case MaskKind::tree:
            return tree_slots(i, first, count, slots);
        case MaskKind::dense:
            break;
    }
    return dense_slots(i, first, count, slots, cursor);
}

std::int64_t RowView::prefix_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                                   std::int32_t* slots) const {
    const std::int64_t end = std::min(prefix(i), first + count);
    for (std::int64_t key = first; key < end; ++key)
        slots[key - first] = static_cast<std::int32_t>(first_slot + key);
    return std::max<std::int64_t>(end - first, 0);
}

std::int64_t RowView::list_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                                 std::int32_t* slots, SlotCursor& cursor) const {
    const std::int64_t token = first_token + i;
    const std::int32_t* list = lists->slots + token * lists->stride;
    if (cursor.logical > first) cursor = {};
    std::int64_t found = 0;
    for (; cursor.slot < lists->count[token] && found < count; ++cursor.slot) {
        const std::int32_t slot = list[cursor.slot];
        if (slot < first_slot || slot >= kv_len()) continue;
        if (cursor.logical++ >= first) slots[found++] = slot;
    }
    return found;
}

std::int64_t RowView::tree_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                                 std::int32_t* slots) const {
    const std::int64_t history = this->history();
    std::int64_t found = 0;
    for (std::int64_t key = first; key < std::min(history, first + count); ++key)
        slots[found++] = static_cast<std::int32_t>(first_slot + key);
    const std::uint64_t word = rows->words[first_token + i];
    const std::int64_t tail_begin = global_kv_len() - tail();
    std::int64_t logical = history;
    for (std::int64_t slot = first_slot + history; slot < kv_len() && found < count; ++slot) {
        const std::int64_t bit = slot * rows->dcp_world + rows->dcp_rank - tail_begin;
        if (bit >= tail()) break;
        if (((word >> bit) & 1) == 0) continue;
        if (logical++ >= first) slots[found++] = static_cast<std::int32_t>(slot);
    }
    return found;
}

std::int64_t RowView::dense_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                                  std::int32_t* slots, SlotCursor& cursor) const {
    // Keys whose mask byte lies in [0, custom_mask_len). The offset may be anything up to ±2^63: it
    // is compared with small numbers before it takes part in a sum.
    const std::int64_t before = i * kv_len();
    const std::int64_t offset = rows->custom_mask_offset[index];
    if (offset <= -before - kv_len() || offset >= rows->custom_mask_len - before) return 0;
    const std::int64_t begin = std::max<std::int64_t>(first_slot, -(before + offset));
    const std::int64_t end = std::min(kv_len(), rows->custom_mask_len - before - offset);
    if (cursor.logical > first) cursor = {};
    cursor.slot = std::max(cursor.slot, begin);
    const std::uint8_t* mask_row = rows->custom_mask + (offset + before);
    constexpr std::int64_t kAtOnce = 64;
    while (cursor.slot + kAtOnce <= end) {
        const std::uint8_t* at = mask_row + cursor.slot;
        const std::int64_t seen = kAtOnce - std::count(at, at + kAtOnce, std::uint8_t{0});
        if (cursor.logical + seen > first) break;
        cursor.logical += seen;
        cursor.slot += kAtOnce;
    }
    std::int64_t found = 0;
    for (; cursor.slot < end && found < count; ++cursor.slot) {
        if (mask_row[cursor.slot] == 0) continue;
        if (cursor.logical++ >= first) slots[found++] = static_cast<std::int32_t>(cursor.slot);
    }
    return found;
}

}  // namespace espalier::mla::cpu
