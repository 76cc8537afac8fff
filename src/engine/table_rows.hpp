// SPDX-License-Identifier: Apache-2.0
// Which row of the block tables a request has: its own from its first step on, until all rows are
// taken and another needs one while this one takes no part. There are as many rows as requests in a
// step: 256, where the queue may hold a million.
#pragma once

#include <cstdint>

#include "base/index.hpp"

namespace espalier::engine {

class TableRows {
  public:
    TableRows(std::int32_t request_slots, std::int32_t rows)
        : row_of_(static_cast<std::size_t>(request_slots)),
          owner_(static_cast<std::size_t>(rows)),
          last_step_(static_cast<std::size_t>(rows), 0) {}

    // In each step: begin, name every request that takes part, then ask for their rows.
    void begin_step() { ++step_; }
    void takes_part(RequestSlot slot) {
        const TableRow row = row_of_[slot];
        if (last_step_.has(row)) last_step_[row] = step_;
    }
    TableRow row_of(RequestSlot slot) {
        TableRow& row = row_of_[slot];
        if (row == TableRow()) row = take_row(slot);
        return row;
    }

  private:
    // The next one in turn that is not of this step; there is one, since no step has more requests
    // than rows.
    TableRow take_row(RequestSlot slot) {
        const auto rows = static_cast<std::int32_t>(owner_.values().size());
        while (last_step_[next_] == step_) next_ = TableRow((next_.value() + 1) % rows);
        if (row_of_.has(owner_[next_])) row_of_[owner_[next_]] = TableRow();
        owner_[next_] = slot;
        last_step_[next_] = step_;
        return next_;
    }

    IndexedVector<RequestSlot, TableRow> row_of_;
    IndexedVector<TableRow, RequestSlot> owner_;
    IndexedVector<TableRow, std::int64_t> last_step_;
    std::int64_t step_ = 0;
    TableRow next_{0};
};

}  // namespace espalier::engine
