// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens_launch.cuh"

namespace espalier::linalg::cuda {

void few_tokens_int8(cudaStream_t stream, const Problem& p, const FewPlan& plan) {
    launch_few<WeightCode::int8>(stream, p, plan);
}

}  // namespace espalier::linalg::cuda
