// SPDX-License-Identifier: Apache-2.0
// One ragged batch, no modes. A row is some request's next q_len tokens over kv_len cached
// positions with a mask: plain decode, a draft tree, a prompt chunk differ only in data.
//
// Tokens of absorbed rows come first, then those of decompressed rows; each part is padded at its
// end. Pad tokens belong to no row: token 0, position 0, slot -1, row_of -1. Pad rows have q_len 0
// and kv_len 0; they stand behind the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "batch/step_capacity.hpp"
#include "cache/page.hpp"
#include "mla/contract.hpp"

namespace espalier::batch {

using cache::decompressed_below;
using cache::Form;

// Pointers into device memory; every number is a capacity.
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

// Offsets of a batch's arrays in its one piece of memory: a function of the capacity alone.
// Offsets are in bytes, each a multiple of 64.
struct BatchLayout {
    struct Rows {
        std::size_t q_indptr = 0, kv_len = 0, tail_len = 0, table_row = 0;  // int32
        std::size_t mask = 0;                                               // mla::MaskKind
    };
    std::size_t tokens = 0, position = 0, row_of = 0, gather = 0;  // int32
    std::size_t slot = 0;                                          // int64
    std::size_t words = 0;                                         // uint64, absorbed tokens only
    Rows absorbed, decompressed;
    std::size_t bytes = 0;

    explicit BatchLayout(const StepCapacity& capacity);
};

// The view of a batch that lies at `base`, with block tables [table_rows, block_stride].
BatchView view_batch(const StepCapacity& capacity, const std::byte* base,
                     const std::int32_t* block_tables);

}  // namespace espalier::batch
