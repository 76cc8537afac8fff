// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/device.hpp"

namespace espalier::linalg {

// Adds to *differing (of the device) how many floats as gates, of all 2³², give another bf16 number
// the quick way than the plain one; up is 1, or where mixed bits that change with the gate.
void count_other_gates(Stream stream, bool mixed, unsigned long long* differing);

}  // namespace espalier::linalg
