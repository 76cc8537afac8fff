// SPDX-License-Identifier: Apache-2.0
// Which kernel serves a product of fragments: the one for few tokens or the one for many, and in
// which tiles. Pure: a function of the problem and of the device's facts.
#pragma once

#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

// Tiles of 32, 64 or 128 tokens or, on Hopper, of 256 that two blocks share.
struct ManyPlan {
    int tokens = 0;  // of a tile; 0: the kernel for few tokens
    int split = 1;   // blocks of a cluster that share a tile's segments, of 32 or 64 tokens

    bool operator==(const ManyPlan&) const = default;
};

// The kernel for many, if it is faster than the one for few.
ManyPlan many_plan(const Problem& p, const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
