// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/hopper/many_tokens_launch.cuh"

namespace espalier::linalg::cuda {

template void launch_many<GpuFamily::hopper, WeightCode::e4m3>(Stream, const Problem&,
                                                               const LaunchGrant&, const ManyPlan&,
                                                               const DeviceFacts&);

}  // namespace espalier::linalg::cuda
