// SPDX-License-Identifier: Apache-2.0
// The kernels for many tokens, a file for each family and format: they take long to compile.
#pragma once

#include "linalg/cuda/many_plan.hpp"

namespace espalier::linalg::cuda {

template <GpuFamily kFamily, WeightCode kCode>
void launch_many(Stream stream, const Problem& p, const LaunchGrant& grant, const ManyPlan& plan,
                 const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
