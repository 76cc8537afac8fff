// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/many_tokens_launch.cuh"

namespace espalier::linalg::cuda {

void many_tokens_int8(cudaStream_t stream, const Problem& p, int tokens) {
    launch_many<WeightCode::int8>(stream, p, tokens);
}

}  // namespace espalier::linalg::cuda
