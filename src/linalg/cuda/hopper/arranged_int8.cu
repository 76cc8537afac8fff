// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/hopper/arranged_launch.cuh"

namespace espalier::linalg::cuda {

void multiply_arranged_int8(Stream stream, const ArrangedParams& params, const LaunchShape& shape) {
    multiply_arranged<WeightCode::int8>(stream, params, shape);
}

}  // namespace espalier::linalg::cuda
