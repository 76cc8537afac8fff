// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens_launch.cuh"
#include "linalg/cuda/hopper/few_ring.cuh"

namespace espalier::linalg::cuda {

template void launch_few<GpuFamily::hopper, WeightCode::bf16>(Stream, const Problem&,
                                                              const LaunchGrant&, const FewPlan&,
                                                              const DeviceFacts&);

}  // namespace espalier::linalg::cuda
