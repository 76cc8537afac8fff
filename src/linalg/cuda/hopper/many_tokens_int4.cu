// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/hopper/many_tokens_launch.cuh"

namespace espalier::linalg::cuda {

void many_tokens_int4(Stream stream, const Problem& p, const LaunchGrant& grant,
                      const ManyPlan& plan, const DeviceFacts& facts) {
    launch_many<WeightCode::int4>(stream, p, grant, plan, facts);
}

}  // namespace espalier::linalg::cuda
