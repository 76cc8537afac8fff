// SPDX-License-Identifier: Apache-2.0
// The kernels for few tokens, a file for each family and format: they take long to compile.
#pragma once

#include "linalg/cuda/few_plan.hpp"

namespace espalier::linalg::cuda {

template <GpuFamily kFamily, WeightCode kCode>
void launch_few(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
