// SPDX-License-Identifier: Apache-2.0
// Rows laid into shuffled pages with poison wherever nothing may be read: every array of a call, in
// host memory. The oracle reads it in place; run.hpp puts it on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "conformance/problem.hpp"

namespace espalier::conformance {

// The query dtype of a cache format that every device takes which takes the format.
DType usual_query(mla::KvFormat format);

std::vector<std::byte> narrowed(const std::vector<float>& values, DType dtype);
std::vector<float> widened(const std::vector<std::byte>& bytes, DType dtype);

// Least sizes of a call's arrays, so that batches of other lengths fit the same graph; rows past
// the true ones have no tokens, and stale garbage everywhere else.
struct Reserve {
    int rows = 0;
    int tokens = 0;  // token_end
    int block_entries = 0;
    int mask_bytes = 0;
    int pages = 0;
    int max_q_len = 0;
    int max_kv_len = 0;
    std::int64_t total_splits = 0;
};

// Rows have the columns of the widest keys, 512 + 64. A batch of narrower ones leaves the last
// latent columns out, of keys and of the queries of the absorbed entry.
struct Layout {
    KeyDims dims = {};
    int page_tokens = 64;
    std::uint64_t seed = 1;      // of the shuffled pages
    std::uint32_t poison = ~0u;  // fills every byte that no kernel may read
    int leading_tokens = 0;      // of another call, before q_indptr[0]
    int padding_tokens = 3;
    int spare_entries = 2;  // block-table entries past the last page
    bool by_slot = false;   // block tables in any order, others between them
    bool tight = false;     // total_splits says exactly what the rows need
    int dcp_world = 1;
    int dcp_rank = 0;
    int first_slot = 0;               // of the call; keys begin there, behind poison
    std::optional<DType> query = {};  // none: the usual one
    Reserve reserve = {};
};

// Plain arrays; the names are those of RaggedRows.
struct BatchImage {
    std::vector<std::byte> pages;
    std::vector<std::byte> query;
    std::vector<std::int32_t> q_indptr;
    std::vector<std::int32_t> kv_len;
    std::vector<std::int32_t> block_table;
    std::vector<std::int32_t> table_row;
    std::vector<mla::MaskKind> mask;
    std::vector<std::int32_t> tail_len;
    std::vector<std::uint64_t> words;
    std::vector<std::uint8_t> custom_mask;
    std::vector<std::int64_t> custom_mask_offset;
    std::vector<std::int32_t> global_kv_len;
};

class Batch {
  public:
    // columns: those of a query as the rows have them.
    Batch(mla::KvFormat format, int heads, const std::vector<Row>& rows, const Layout& layout,
          std::int64_t columns = mla::kKey);
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    // Views of host memory.
    const mla::RaggedRows& view() const { return view_; }
    const mla::KvPages& kv() const { return kv_; }
    const BatchImage& image() const { return image_; }
    const std::int32_t* table(std::size_t row) const {
        return image_.block_table.data() + image_.table_row[row] * view_.block_stride;
    }

    // Slot of the pool in which key c of the row lies.
    std::int64_t slot(std::size_t row, std::int64_t c) const;

    int heads() const { return heads_; }
    DType query_dtype() const { return query_dtype_; }
    float query_scale() const { return query_scale_; }
    std::int64_t first_token(std::size_t row) const { return image_.q_indptr[row]; }
    std::int64_t tokens() const { return view_.token_end; }
    const Layout& layout() const { return layout_; }
    mla::Capacities capacities(int workers, bool invariant) const;

  private:
    void lay_pages(const std::vector<Row>& rows);
    void lay_tables(std::size_t rows, Random& random);
    void lay_row_keys(const Row& row, std::int32_t* table, std::vector<std::int32_t>& free);
    void lay_mask(const Row& row);
    // Slots of the row, with those below first_slot.
    int slots(const Row& row) const { return row.keys + mla::first_local_slot(view_); }
    void lay_rows(const std::vector<Row>& rows);
    void lay_queries(const std::vector<Row>& rows);
    void add_query(const Row& row, std::vector<float>& query) const;
    void add_reserve();
    void point_view();

    Layout layout_;
    int heads_;
    std::int64_t columns_;  // of a query in memory
    DType query_dtype_;
    float query_scale_ = 1.0f;
    mla::KvPages kv_;
    mla::RaggedRows view_;
    BatchImage image_;
};

}  // namespace espalier::conformance
