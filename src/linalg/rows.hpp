// SPDX-License-Identifier: Apache-2.0
// WeightLayout::rows: weights as a checkpoint has them, [count][n][k] without gaps, and scales
// [count][n][groups of k], with zero points [count][n][groups of k][2]. For any device: rows are
// made on the host and uploaded.
#pragma once

#include "base/device.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

Expected<Weight> pack_rows(Device& device, WeightStack stack);

}  // namespace espalier::linalg
