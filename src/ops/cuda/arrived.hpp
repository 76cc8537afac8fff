// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/op_context.hpp"

namespace espalier::ops::cuda {

// A word of a device's memory, 0 between kernels, in which the blocks of one kernel count their
// arrivals. Kernels of one stream use it one after another; those of another would count, too.
class Arrived {
  public:
    Arrived(Stream stream, std::uint32_t* word) : stream_(stream), word_(word) {}

    std::uint32_t* of(const OpContext& context) const {
        CHECK(context.stream == stream_, "a backend's operation on another stream than its own");
        return word_;
    }

  private:
    Stream stream_;
    std::uint32_t* word_;
};

}  // namespace espalier::ops::cuda
