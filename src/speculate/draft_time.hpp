// SPDX-License-Identifier: Apache-2.0
// How long a drafter takes to draft: a cost per level (a pass of its model) and a cost per node.
// Learnt from its own calls alone. Pure: durations come in as data.
#pragma once

#include <cstdint>

namespace espalier::speculate {

class DraftTime {
  public:
    bool known() const { return calls_ > 0; }
    // A call that drafts `nodes` over all its requests, `levels` deep. 0 while nothing is known.
    double seconds(std::int32_t levels, std::int64_t nodes) const {
        return static_cast<double>(levels) * per_level_ + static_cast<double>(nodes) * per_node_;
    }
    // Level and node share the correction as they share the time; one wild call moves the estimate
    // by a tenth at most once there are ten.
    void observe(std::int32_t levels, std::int64_t nodes, double seconds);

  private:
    double per_level_ = 0;
    double per_node_ = 0;
    std::int64_t calls_ = 0;
};

}  // namespace espalier::speculate
