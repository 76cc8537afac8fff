// SPDX-License-Identifier: Apache-2.0
// What the block tables in device memory hold, kept on the host, so that a step uploads only what
// has changed: a new page each 64 tokens of a request, all pages of one that was admitted, found in
// the prefix index, preempted, or switched to another's copy when it published. 256 requests of
// 2,560 pages would be 2.6 MB per step otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace espalier::batch {

class BlockTables {
  public:
    // Entries [first, last) of the tables as one array.
    struct Range {
        std::int64_t first = 0, last = 0;
    };

    BlockTables(std::int32_t rows, std::int64_t stride);

    // Row `row` begins with these pages from now on; what lies behind them is never read.
    void set(std::int32_t row, std::span<const std::int32_t> pages);
    // Ranges to upload: ascending, disjoint. Each copy costs about as much as 64 KiB do, so
    // ranges that lie nearer are one, with what is unchanged between them.
    std::span<const Range> changes();
    // The device has everything now.
    void forget_changes() { changes_.clear(); }

    std::int32_t rows() const { return rows_; }
    std::int64_t stride() const { return stride_; }
    const std::int32_t* entries() const { return entries_.data(); }  // [rows, stride]

  private:
    std::int32_t rows_;
    std::int64_t stride_;
    std::vector<std::int32_t> entries_;
    std::vector<Range> changes_;
};

}  // namespace espalier::batch
