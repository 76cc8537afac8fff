// SPDX-License-Identifier: Apache-2.0
// Launches products over arranged x, as arranged_plan.hpp allows them.
#pragma once

#include "linalg/cuda/hopper/arranged_plan.hpp"

namespace espalier::linalg::cuda {

void arranged_tokens(Stream stream, const Problem& p, const Scratch& scratch,
                     const DeviceFacts& facts);
void arranged_pair(Stream stream, const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between, const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
