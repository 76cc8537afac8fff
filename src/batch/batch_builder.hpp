// SPDX-License-Identifier: Apache-2.0
// Lays rows out as the flat arrays of a BatchView. Reused from step to step: no allocation once it
// has seen its largest batch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "batch/batch_view.hpp"

namespace espalier::batch {

class BatchBuilder {
  public:
    // Takes the memory of the largest batch at once: tokens, rows of each form, gathered tokens,
    // pages of a row.
    void reserve(std::int64_t tokens, std::int64_t rows, std::int64_t gather, std::int64_t pages);
    void clear();
    // Copies the row. An error names what does not fit: pages too few, words missing, a tail above
    // 64 …
    Expected<void> add(const RowSpec& row);
    // The view borrows from the builder until the next clear().
    BatchView finish(const Padding& padding = {});
    // Where the logits of row i (in order of add) begin among the gathered ones.
    std::int64_t first_gather(std::size_t row) const { return first_gather_.at(row); }
    // Where the tokens of row i begin in the batch; known after finish().
    std::int64_t first_token(std::size_t row) const { return index_of(first_token_.at(row)); }

  private:
    // Rows of one form, in order of add.
    struct Part {
        std::vector<std::int32_t> q_indptr, kv_len, tail_len, block_table, block_begin;
        std::vector<mla::MaskKind> mask;
        std::vector<std::int32_t> tokens, position, row_of;
        std::vector<std::int64_t> slot;
        std::vector<std::uint64_t> words;
        // filled by finish()
        std::vector<std::int32_t> padded_indptr, padded_table;

        void reserve(std::size_t most_tokens, std::size_t rows, std::size_t pages);
        void clear();
    };
    struct Place {
        Form form;
        std::int64_t token;  // index inside its part
    };
    std::int64_t index_of(const Place& place) const {
        return place.token + (place.form == Form::absorbed ? 0 : cap_absorbed_);
    }

    void append_tokens(const RowSpec& row, Part& part);
    mla::RaggedRows finish_rows(Part& part, std::int64_t token_begin, std::int64_t token_end,
                                std::int32_t rows);
    void append_padded(const Part& part, std::int64_t token_capacity);

    Part absorbed_;
    Part decompressed_;
    std::vector<Place> wanted_;
    std::vector<Place> first_token_;  // of each row
    std::vector<std::int64_t> first_gather_;
    std::int64_t cap_absorbed_ = 0;
    std::vector<std::int32_t> tokens_, position_, row_of_, gather_;
    std::vector<std::int64_t> slot_;
    std::vector<std::uint64_t> words_;
};

}  // namespace espalier::batch
