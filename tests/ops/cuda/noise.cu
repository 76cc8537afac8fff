// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/noise.hpp"
#include "ops/draw.hpp"

namespace espalier::ops {
namespace {

__global__ void noise_kernel(std::uint32_t first, std::uint32_t step, std::int64_t count,
                             double* out) {
    const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) out[i] = gumbel_of(first + static_cast<std::uint32_t>(i) * step);
}

}  // namespace

void noise_on_gpu(Stream stream, std::uint32_t first, std::uint32_t step, std::int64_t count,
                  double* out) {
    noise_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0,
                   static_cast<cudaStream_t>(stream)>>>(first, step, count, out);
}

}  // namespace espalier::ops
