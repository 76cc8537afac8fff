// SPDX-License-Identifier: Apache-2.0
// How long a drafter takes to draft: a cost per level (a pass of its model) and a cost per token
// that these passes compute: the roots, and all nodes but those of the last level, which are only
// chosen. Learnt from its own calls alone. Pure: durations come in as data.
#pragma once

#include <cstdint>

namespace espalier::speculate {

class DraftTime {
  public:
    bool known() const { return calls_ > 0; }
    // A call whose passes compute `tokens` over all its requests in `levels` passes. 0 while
    // nothing is known.
    double seconds(std::int32_t levels, std::int64_t tokens) const {
        return static_cast<double>(levels) * per_level_ + static_cast<double>(tokens) * per_token_;
    }
    double per_level() const { return per_level_; }
    double per_token() const { return per_token_; }
    // Level and token share the correction as they share the time; one wild call moves the estimate
    // by a tenth at most once there are ten.
    void observe(std::int32_t levels, std::int64_t tokens, double seconds);

  private:
    double per_level_ = 0;
    double per_token_ = 0;
    std::int64_t calls_ = 0;
};

}  // namespace espalier::speculate
