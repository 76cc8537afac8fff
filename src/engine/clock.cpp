// SPDX-License-Identifier: Apache-2.0
#include "engine/clock.hpp"

#include <chrono>

namespace espalier::engine {

Clock steady_clock() {
    return [] {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    };
}

}  // namespace espalier::engine
