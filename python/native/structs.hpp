// SPDX-License-Identifier: Apache-2.0
// The structs of mla.h that outlive a call, each with the tensors it points into: a cache's pages,
// the rows of a step, and a plan. Made once and used by every layer, so that a call imports
// little more than its queries.
#pragma once

#include "array.hpp"

namespace espalier::python {

// "f32", "bf16", "fp16", "fp8_tensor" or "fp8_token"; the table is the one source of these words.
const char* format_name(std::int32_t format);
std::int32_t format_named(const char* name);

struct Pages {
    static Pages parse(PyObject* arguments, PyObject* keywords);

    Array data;
    espalier_mla_pages c;
};

struct Rows {
    static Rows parse(PyObject* arguments, PyObject* keywords);

    Device device() const { return q_indptr.device(); }
    // Refuses rows that pages of `page_tokens` could lead beyond the block table. Between its rows
    // a table may have a gap, which the library, for which rows lie close, takes for entries.
    void check_reach(std::int32_t page_tokens) const;
    void read_by(Footprint& footprint) const;
    // mla.h's struct, which points into the arrays.
    espalier_mla_rows c() const;
    espalier_mla_capacities capacities(std::int32_t heads, bool invariant) const;

    Array q_indptr;
    Array kv_len;
    Array block_table;
    Array mask;
    std::optional<Array> tail_len;
    std::optional<Array> words;
    std::optional<Array> custom_mask;
    std::optional<Array> custom_mask_offset;
    std::optional<Array> table_row;
    std::optional<Array> global_kv_len;
    espalier_mla_rows numbers;  // the integers; its pointers are null
};

// Block tables [table_count or any, width]: entries lie close, rows may lie further apart. Returns
// the entries from row to row.
std::int32_t block_stride_of(const Array& table);
void check_table_reach(const Array& table, std::int32_t max_kv_len, std::int32_t page_tokens);

// Memory for a plan, and the host integers for which a call has filled it.
struct Plan {
    static Plan parse(PyObject* arguments, PyObject* keywords);

    struct Key {
        std::int32_t rows, max_q_len, max_kv_len, block_stride, table_rows, dcp_world, dcp_rank,
            first_slot;
        std::int64_t token_end, total_splits, custom_mask_len;
        std::int32_t heads, format, page_tokens, multiprocessors;
        bool invariant, tail_len, words, custom_mask, table_row;
        bool operator==(const Key&) const = default;
    };

    Array memory;
    std::optional<Key> filled;
};

}  // namespace espalier::python
