// SPDX-License-Identifier: Apache-2.0
// The logical order of a token's keys: the slots it sees, ascending. Tiles and splits are cut by
// this order, never by slot, so a tree token folds the same keys in the same places as the causal
// row over its compacted path. Every mask becomes two facts: how many leading logical keys are
// consecutive slots from first_slot on, and the slots after those. A token's list is its keys, and
// their order the logical one.
#pragma once

#include <cstdint>

#include "mla/contract.hpp"

namespace espalier::mla::cpu {

// State of the search for a dense row's keys: slot `slot` comes after `logical` visible ones.
struct SlotCursor {
    std::int64_t logical = 0;
    std::int64_t slot = 0;
};

struct RowView {
    const RaggedRows* rows = nullptr;
    const KeyLists* lists = nullptr;  // null: no token of the row has one
    std::int32_t index = 0;
    std::int64_t first_token = 0;
    std::int64_t tokens = 0;      // q_len
    std::int64_t first_slot = 0;  // of this rank: slots below it do not exist
    std::int64_t keys = 0;        // kv_len without those
    const std::int32_t* pages = nullptr;
    MaskKind mask = MaskKind::causal;

    // Logical keys [0, straight) are the slots from first_slot on, for every token of the row.
    std::int64_t straight() const;
    // full and causal without lists: every visible key is straight.
    bool all_straight() const {
        return lists == nullptr && (mask == MaskKind::full || mask == MaskKind::causal);
    }
    // full and causal rows: how many keys token i's mask leaves.
    std::int64_t prefix(std::int64_t i) const;
    // Tree rows: keys before the tail.
    std::int64_t history() const;
    // Upper bound of the keys that a token of the row sees.
    std::int64_t most_keys() const;
    // The slots of token i's logical keys [first, first + count), as many as there are; rows that
    // are not all straight. The cursor belongs to token i and saves a list or a dense row from
    // being searched again from its beginning.
    std::int64_t slots(std::int64_t i, std::int64_t first, std::int64_t count, std::int32_t* slots,
                       SlotCursor& cursor) const;

  private:
    std::int64_t tree_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                            std::int32_t* slots) const;
    std::int64_t list_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                            std::int32_t* slots, SlotCursor& cursor) const;
    std::int64_t prefix_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                              std::int32_t* slots) const;
    std::int64_t dense_slots(std::int64_t i, std::int64_t first, std::int64_t count,
                             std::int32_t* slots, SlotCursor& cursor) const;
    std::int64_t kv_len() const { return rows->kv_len[index]; }
    // Local slots from first_slot on whose global number lies below `limit`.
    std::int64_t keys_below(std::int64_t limit) const;
    std::int64_t global_kv_len() const {
        return rows->dcp_world > 1 ? rows->global_kv_len[index] : kv_len();
    }
    std::int64_t tail() const { return rows->tail_len == nullptr ? tokens : rows->tail_len[index]; }
};

RowView view_row(const RaggedRows& rows, std::int32_t index);
RowView view_row(const RaggedRows& rows, std::int32_t index, const KeyLists& lists);

}  // namespace espalier::mla::cpu
