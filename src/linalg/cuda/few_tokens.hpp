// SPDX-License-Identifier: Apache-2.0
// How the kernel for few tokens is launched. Plans change the time of a product, never its bits:
// what the sums depend on is Segments alone.
#pragma once

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

struct FewPlan {
    int token_tiles = 1;  // of 8 tokens: 1, 2, 4 or 8
    int row_tiles = 1;    // of 16 outputs per warp: 1, 2 or, of 4-bit codes, 4
    int row_warps = 1;    // warps side by side over outputs: 1, 2 or 4
    int segment = 0;      // chunks that every segment has, if a kernel is compiled for them
    int ring = 1;         // units of each row tile in flight per warp
};

// Whether x of a segment of so many chunks (0: not known) stays in registers.
constexpr bool few_keeps_x(bool codes, int token_tiles, int segment) {
    return segment > 0 && segment <= 2 && token_tiles <= 2 &&
           segment * token_tiles <= (codes ? 2 : 4);
}
// Chunks of each row tile that are asked for at once: waiting and asking cost instructions, of
// which 4-bit codes have few bytes each.
constexpr int few_unit(WeightCode code, int row_tiles) {
    return facts_of(code).bits == 4 && row_tiles < 4 ? 2 : 1;
}
// Registers of a thread. Uncapped the compiler takes so many that one block fits where three
// should.
constexpr int few_registers(bool codes, int token_tiles, int row_tiles, int segment) {
    const int sums = token_tiles * row_tiles;
    // Two blocks of 11 warps (v2 down), which would otherwise wait for each other's merges alone.
    if (token_tiles == 2 && segment == 1 && few_keeps_x(codes, token_tiles, segment)) return 88;
    if (sums >= 4 || token_tiles * segment >= 4) return sums >= 16 ? 255 : sums >= 8 ? 168 : 128;
    if (token_tiles == 2 || (codes && row_tiles == 2)) return 96;
    return 80;  // three blocks of eight warps
}
// From one token's sums to the next one's, floats: no bank conflicts.
constexpr int few_sum_stride(int row_tiles) { return 16 * row_tiles + 4; }

// Warps side by side over outputs, where segments are too few to fill a block.
constexpr int row_warps_of(const Segments& segments) {
    return segments.count == 1 ? 4 : segments.count <= 3 ? 2 : 1;
}
FewPlan few_plan(const Problem& p);
// For an expert product with one in front (Problem::lead).
FewPlan leading_plan(const Problem& p);
void few_tokens_as(cudaStream_t stream, const Problem& p, const FewPlan& plan);

// One file per format: they take long to compile.
void few_tokens_bf16(cudaStream_t stream, const Problem& p, const FewPlan& plan);
void few_tokens_e4m3(cudaStream_t stream, const Problem& p, const FewPlan& plan);
void few_tokens_int8(cudaStream_t stream, const Problem& p, const FewPlan& plan);
void few_tokens_int4(cudaStream_t stream, const Problem& p, const FewPlan& plan);
void few_tokens_e2m1(cudaStream_t stream, const Problem& p, const FewPlan& plan);

}  // namespace espalier::linalg::cuda
