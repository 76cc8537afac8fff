// SPDX-License-Identifier: Apache-2.0
// How the kernel for few tokens is launched. Plans change the time of a product, never its bits:
// what the sums depend on is Segments alone.
#pragma once

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

struct FewPlan {
    int token_tiles = 1;  // of 8 tokens: 1, 2, 4 or 8
    int row_tiles = 1;    // of 16 outputs per warp: 1 or 2
    int row_warps = 1;    // warps side by side over outputs: 1, 2 or 4
    int ring = 1;         // chunks of each row tile in flight per warp
};

// Warps side by side over outputs, where segments are too few to fill a block.
constexpr int row_warps_of(const Segments& segments) {
    return segments.count == 1 ? 4 : segments.count <= 3 ? 2 : 1;
}
FewPlan few_plan(const Problem& p);
void few_tokens_as(cudaStream_t stream, const Problem& p, const FewPlan& plan);

// One file per format: they take long to compile.
void few_tokens_bf16(cudaStream_t stream, const Problem& p, const FewPlan& plan);
void few_tokens_e4m3(cudaStream_t stream, const Problem& p, const FewPlan& plan);

}  // namespace espalier::linalg::cuda
