// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens_launch.cuh"

namespace espalier::linalg::cuda {

void few_tokens_int4(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                     const DeviceFacts& facts) {
    launch_few<WeightCode::int4>(stream, p, grant, plan, facts);
}

}  // namespace espalier::linalg::cuda
