// SPDX-License-Identifier: Apache-2.0
// Where the engine's time comes from: given at creation, so that tests choose it.
#pragma once

#include <functional>

#include "schedule/request.hpp"

namespace espalier::engine {

using Clock = std::function<schedule::Time()>;  // nanoseconds, never going back

// std::chrono::steady_clock.
Clock steady_clock();

}  // namespace espalier::engine
