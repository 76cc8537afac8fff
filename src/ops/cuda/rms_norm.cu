// SPDX-License-Identifier: Apache-2.0
// A block for a row: thread i adds the squares of columns i, i + 256, …, then the threads in a
// fixed tree. So a row's bits depend on nothing but the row.
#include <cmath>

#include "ops/cuda/block.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/launch.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rms_norm_kernel(Matrix x, const float* weight, float epsilon, Matrix out,
                                Matrix exact) {
    begin_kernel();
    __shared__ float sums[kThreads / 32];
    const std::int64_t t = blockIdx.x;
    const float* row = row_of(x, t);
    float sum = 0.0f;
    for (std::int64_t d = threadIdx.x; d < x.cols; d += kThreads) sum += row[d] * row[d];
    sum = block_sum<kThreads>(sum, sums);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(x.cols) + epsilon);
    for (std::int64_t d = threadIdx.x; d < x.cols; d += kThreads) {
        const float value = (row[d] * factor) * weight[d];
        store(out, t, d, value);
        if (exact.data != nullptr) store(exact, t, d, value);
    }
}

}  // namespace

void rms_norm(Stream stream, const Matrix& x, const float* weight, float epsilon, const Matrix& out,
              const Matrix& exact) {
    if (x.rows == 0) return;
    launch("rms_norm", rms_norm_kernel, static_cast<unsigned>(x.rows), kThreads, stream, x, weight,
           epsilon, out, exact);
}

}  // namespace espalier::ops::cuda
