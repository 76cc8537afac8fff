// SPDX-License-Identifier: Apache-2.0
// One ragged batch, no modes. A row is some request's next q_len tokens over kv_len cached
// positions with a mask: plain decode, a draft tree, a prompt chunk differ only in data. Capacities
// are host numbers and stay fixed while a captured step is replayed; everything else is data. On
// the CPU capacities equal the true counts.
//
// Tokens of absorbed rows come first, then those of decompressed rows; each part is padded at its
// end. Pad tokens belong to no row: token 0, position 0, slot -1, row_of -1. Pad rows have q_len 0.
#pragma once

#include <cstdint>
#include <span>

#include "cache/page.hpp"
#include "mla/contract.hpp"

namespace espalier::batch {

using cache::decompressed_below;
using cache::Form;

struct BatchView {
    std::int64_t cap_tokens = 0;             // T
    std::int64_t cap_gather = 0;             // G
    const std::int32_t* tokens = nullptr;    // [T]
    const std::int32_t* position = nullptr;  // [T]
    const std::int64_t* slot = nullptr;      // [T]; -1: not written
    const std::int32_t* row_of = nullptr;    // [T]; -1: pad
    std::int64_t cap_absorbed = 0;  // tokens [0, cap_absorbed) are absorbed, the rest decompressed
    mla::RaggedRows absorbed;       // token indices are the batch's own
    mla::RaggedRows decompressed;
    const std::int32_t* gather = nullptr;  // [G] tokens whose logits are wanted; -1: pad
};

// One row, as a scheduler or a test describes it.
struct RowSpec {
    std::span<const std::int32_t> tokens;       // q_len of them
    std::span<const std::int32_t> block_table;  // pages of the whole sequence, window included
    std::int32_t first_slot = 0;  // index in the sequence's slots of the row's first token
    Form form = Form::absorbed;
    mla::MaskKind mask = mla::MaskKind::causal;
    // Tree rows: depth of each token below the row's first (position = first_position + depth) and
    // ancestor words.
    std::span<const std::int32_t> depth;
    std::span<const std::uint64_t> words;
    std::int32_t tail_len = 0;             // 0: q_len
    std::int32_t first_position = -1;      // -1: first_slot
    std::span<const std::int32_t> gather;  // which of its tokens want logits, ascending
};

// Pads a batch to these capacities where they are larger than the true counts (tests, graphs).
struct Padding {
    std::int64_t absorbed_tokens = 0;
    std::int64_t decompressed_tokens = 0;
    std::int32_t rows = 0;  // of each form
    std::int64_t gather = 0;
};

}  // namespace espalier::batch
