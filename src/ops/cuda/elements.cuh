// SPDX-License-Identifier: Apache-2.0
// Numbers of a matrix on the device, and how elementwise work on [rows, cols] is spread: a thread
// for an element, a second one only where there are more rows than a grid has.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "base/matrix.hpp"
#include "base/numeric.hpp"

namespace espalier::ops::cuda {

inline constexpr int kElementThreads = 256;
inline constexpr std::int64_t kMostGridRows = 65535;

inline dim3 element_grid(std::int64_t rows, std::int64_t cols) {
    return dim3(static_cast<unsigned>((cols + kElementThreads - 1) / kElementThreads),
                static_cast<unsigned>(std::min(rows, kMostGridRows)));
}

// A whole kernel: body(row, col) for every element of this thread.
template <typename Body>
__device__ void for_elements(std::int64_t rows, std::int64_t cols, const Body& body) {
    begin_kernel();
    const std::int64_t col = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
    if (col >= cols) return;
    for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) body(row, col);
}

__device__ inline float* row_of(const Matrix& matrix, std::int64_t row) {
    return reinterpret_cast<float*>(matrix.data) + row * matrix.stride;
}

// Rounded once to the matrix's dtype: f32, f16 or bf16.
__device__ inline void store(const Matrix& matrix, std::int64_t row, std::int64_t col,
                             float value) {
    const std::int64_t at = row * matrix.stride + col;
    if (matrix.dtype == DType::f32)
        reinterpret_cast<float*>(matrix.data)[at] = value;
    else if (matrix.dtype == DType::bf16)
        reinterpret_cast<Bf16*>(matrix.data)[at] = to_bf16(value);
    else
        reinterpret_cast<Fp16*>(matrix.data)[at] = to_fp16(value);
}

// Columns (2·pair, 2·pair + 1) of `from`, rotated by the pair's (cos, sin), to columns `first` on.
__device__ inline void rotate_pair(const float* from, const float* cos_sin, std::int64_t pair,
                                   const Matrix& to, std::int64_t row, std::int64_t first) {
    const float a = from[2 * pair], b = from[2 * pair + 1];
    const float cosine = cos_sin[2 * pair], sine = cos_sin[2 * pair + 1];
    store(to, row, first + 2 * pair, a * cosine - b * sine);
    store(to, row, first + 2 * pair + 1, a * sine + b * cosine);
}

}  // namespace espalier::ops::cuda
