// SPDX-License-Identifier: Apache-2.0
// Which row of the block tables a request has: its own from its first step on, until all rows are
// taken and another needs one while this one takes no part. There are as many rows as requests in a
// step: 256, where the queue may hold a million.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier::engine {

class TableRows {
  public:
    TableRows(std::int32_t request_slots, std::int32_t rows)
        : row_of_(static_cast<std::size_t>(request_slots), kNone),
          owner_(static_cast<std::size_t>(rows), kNone),
          last_step_(static_cast<std::size_t>(rows), 0) {}

    // In each step: begin, name every request that takes part, then ask for their rows.
    void begin_step() { ++step_; }
    void takes_part(std::int32_t slot) {
        const std::int32_t row = row_of_[static_cast<std::size_t>(slot)];
        if (row != kNone) last_step_[static_cast<std::size_t>(row)] = step_;
    }
    std::int32_t row_of(std::int32_t slot) {
        std::int32_t& row = row_of_[static_cast<std::size_t>(slot)];
        if (row == kNone) row = take_row(slot);
        return row;
    }

  private:
    static constexpr std::int32_t kNone = -1;

    // The next one in turn that is not of this step; there is one, since no step has more requests
    // than rows.
    std::int32_t take_row(std::int32_t slot) {
        while (last_step_[next_] == step_) next_ = (next_ + 1) % owner_.size();
        if (owner_[next_] != kNone) row_of_[static_cast<std::size_t>(owner_[next_])] = kNone;
        owner_[next_] = slot;
        last_step_[next_] = step_;
        return static_cast<std::int32_t>(next_);
    }

    std::vector<std::int32_t> row_of_;  // by request slot
    std::vector<std::int32_t> owner_;   // by row: a request slot
    std::vector<std::int64_t> last_step_;
    std::int64_t step_ = 0;
    std::size_t next_ = 0;
};

}  // namespace espalier::engine
