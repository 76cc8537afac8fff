// SPDX-License-Identifier: Apache-2.0
// Lays rows into one piece of host memory, which one upload brings to the device. Reused from step
// to step; all memory is taken at creation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "batch/batch_view.hpp"

namespace espalier::batch {

// One row, as a scheduler or a test describes it.
struct RowSpec {
    std::span<const std::int32_t> tokens;       // q_len of them
    std::span<const std::int32_t> block_table;  // pages of the whole sequence, window included
    std::int32_t table_row = 0;   // where these lie in the block tables: the request's own row
    std::int32_t first_slot = 0;  // of the sequence, where the row's first token goes
    Form form = Form::absorbed;
    mla::MaskKind mask = mla::MaskKind::causal;
    // Tree rows: the last tail_len slots, at most 64, hold the tree; 0: it is the row's own tokens.
    // A longer tail begins with nodes that are in the cache already: that is how a draft model
    // computes one level after another. depth: of each token below the tail's first slot, which is
    // the root's (position = that slot + depth). words: over the tail.
    std::int32_t tail_len = 0;
    std::span<const std::int32_t> depth;
    std::span<const std::uint64_t> words;
    std::int32_t gather = 0;  // how many of its last tokens want logits
    // Slots behind the row that batches laid on the device will fill: their pages go to the block
    // tables with the row's.
    std::int32_t later_slots = 0;
};

// Content that a row of the block tables must have when the step runs.
struct BlockTableRow {
    std::int32_t row = 0;
    std::span<const std::int32_t> pages;
};

// A batch on the host. Borrows from its builder and, for the block tables, from the rows it was
// made of.
struct HostBatch {
    StepCapacity capacity;
    StepCapacity most;                      // of its builder
    std::span<const std::byte> bytes;       // as in BatchLayout(capacity)
    std::span<const BlockTableRow> tables;  // of every row

    // An error names a token outside the vocabulary: a device would read past its embeddings.
    Expected<void> check_tokens(std::int64_t vocabulary) const;
};

class BatchBuilder {
  public:
    explicit BatchBuilder(const StepCapacity& most);

    void clear();
    // The row's arrays must outlive finish(). An error names what does not fit: pages too few,
    // words missing, more tokens than the largest batch has …
    Expected<void> add(const RowSpec& row);
    // Capacity that the rows so far need; splits as in the largest batch.
    const StepCapacity& need() const { return need_; }
    // Capacities equal to the counts.
    HostBatch finish() { return lay_out(need_); }
    // Padded to these capacities; an error when the rows need more.
    Expected<HostBatch> finish(const StepCapacity& capacity);
    // Index in the batch of the first token of row i (in order of add); known after finish().
    std::int64_t first_token(std::size_t row) const;

  private:
    struct Row {
        RowSpec spec;
        std::int64_t first_token = 0;  // among those of its form
        std::int32_t q_len() const { return static_cast<std::int32_t>(spec.tokens.size()); }
        std::int32_t kv_len() const { return spec.first_slot + q_len(); }
        std::int32_t tail_len() const;
    };
    struct Arrays;

    StepCapacity need_with(const RowSpec& row) const;
    Expected<void> claim_table(const RowSpec& row);
    HostBatch lay_out(const StepCapacity& capacity);
    void lay_tokens(const Arrays& arrays, std::size_t row) const;
    void lay_rows(const Arrays& arrays, Form form) const;

    StepCapacity most_;
    StepCapacity need_;
    std::vector<Row> rows_;
    std::vector<BlockTableRow> tables_;      // of each row
    std::vector<std::int32_t> table_owner_;  // [table_rows]: the first row that claims it, or -1
    std::vector<std::byte> memory_;
    std::int64_t cap_absorbed_ = 0;  // of the last finish
};

}  // namespace espalier::batch
