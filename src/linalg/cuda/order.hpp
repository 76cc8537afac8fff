// SPDX-License-Identifier: Apache-2.0
// What the launches of products touch, and when: as the kernels do. Weights apart, which no launch
// writes. No CUDA in it, so that every build tests it.
#pragma once

#include "linalg/cuda/problem.hpp"
#include "linalg/cuda/queue.hpp"

namespace espalier::linalg::cuda {

Ranges outputs_of(const Problem& p);

LaunchNeeds few_needs(const Problem& p, const Wishes& wishes);
LaunchNeeds many_needs(const Problem& p, const Wishes& wishes);
LaunchNeeds plain_needs(const Problem& p, const Wishes& wishes);

// Scratch memory that x takes, arranged.
std::int64_t arranged_room(const Problem& p);
// x to `arranged`, then the product of that.
LaunchNeeds arranging(const Product& p, const MemoryRange& arranged);
LaunchNeeds multiplying(const Problem& p, const MemoryRange& arranged, const Ranges& outputs);

}  // namespace espalier::linalg::cuda
