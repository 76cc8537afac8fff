// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/hopper/arranged_launch.cuh"

namespace espalier::linalg::cuda {

void multiply_arranged_e2m1(Stream stream, const ArrangedParams& params, const LaunchShape& shape) {
    multiply_arranged<WeightCode::e2m1>(stream, params, shape);
}

}  // namespace espalier::linalg::cuda
