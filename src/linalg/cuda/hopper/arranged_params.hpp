// SPDX-License-Identifier: Apache-2.0
// Products over arranged x: what host and kernels share of one launch.
#pragma once

#include "base/cuda/launch.hpp"
#include "linalg/cuda/hopper/arranged.hpp"

namespace espalier::linalg::cuda {

// Arranged x of the product behind a gated one: the gated one writes it there itself.
struct ArrangedY {
    std::byte* data = nullptr;  // behind the header; null: y is a matrix
    int* next = nullptr;        // the header
    int tile_tokens = 0;
    int stages = 0;  // of 64 inputs
};

struct ArrangedParams {
    Problem problem;
    Segments segments;
    const std::byte* arranged = nullptr;
    int* next = nullptr;   // first tile that no block has begun
    int row_blocks = 0;    // of both products, where there is a second
    int first_blocks = 0;  // of the first
    int tile_tokens = 0;
    int token_tiles = 0;  // of experts: at most
    int stages = 0;       // of 64 inputs
    int slots = 0;        // stages that shared memory holds at once
    int stage_bytes = 0;
    ArrangedY y = {};  // gated products alone
};

// The kernel that was compiled for the code.
void multiply_arranged_bf16(Stream stream, const ArrangedParams& params, const LaunchShape& shape);
void multiply_arranged_e4m3(Stream stream, const ArrangedParams& params, const LaunchShape& shape);
void multiply_arranged_int8(Stream stream, const ArrangedParams& params, const LaunchShape& shape);
void multiply_arranged_int4(Stream stream, const ArrangedParams& params, const LaunchShape& shape);
void multiply_arranged_e2m1(Stream stream, const ArrangedParams& params, const LaunchShape& shape);

}  // namespace espalier::linalg::cuda
