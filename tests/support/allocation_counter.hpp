// SPDX-License-Identifier: Apache-2.0
// How often a test program called operator new. The program must build allocation_counter.cpp.
#pragma once

#include <cstdint>

namespace espalier {

std::int64_t allocations_so_far();

}  // namespace espalier
