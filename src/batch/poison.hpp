// SPDX-License-Identifier: Apache-2.0
// For tests: what a step may not read of its batch becomes 0xFF, so that a read of it shows.
#pragma once

#include <cstddef>
#include <span>

#include "batch/step_capacity.hpp"

namespace espalier::batch {

// bytes: a batch as BatchLayout(capacity) has it. Gaps between its arrays and the words of pads.
void poison_pads(const StepCapacity& capacity, std::span<std::byte> bytes);

}  // namespace espalier::batch
