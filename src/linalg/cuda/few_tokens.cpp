// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens.hpp"

#include <algorithm>

namespace espalier::linalg::cuda {
namespace {

// Tokens that most groups have at most. Experts: twice the average, so that few of them need a
// second tile, which reads the weights once more.
std::int64_t usual_tokens(const Problem& p) {
    if (p.indptr == nullptr) return p.rows;
    return std::min<std::int64_t>(p.x_rows, 2 * divide_up(p.rows, p.groups));
}

}  // namespace

FewPlan few_plan(const Problem& p) {
    const Segments segments = segments_of(p.n, p.k);
    FewPlan plan;
    plan.row_warps = segments.count == 1 ? 4 : segments.count <= 3 ? 2 : 1;
    const int warps = segments.count * plan.row_warps;
    const std::int64_t tokens = p.vector_x ? usual_tokens(p) : 1;
    plan.token_tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 || warps > 12 ? 4 : 8;
    const std::int64_t items =
        divide_up(tiles_of(p.n), plan.row_warps) * most_token_tiles(p, 8 * plan.token_tiles);
    const int processors = multiprocessors();
    // Where there is work for many blocks, fewer ones with twice the outputs read x half as often.
    if (items > 4 * processors && plan.token_tiles <= 4 && p.vector_x) plan.row_tiles = 2;
    // Registers: 16 warps have 128 each, and four tiles of sums want as many.
    if (plan.token_tiles * plan.row_tiles > 4 && warps > 12) plan.row_tiles = 1;
    const int chunk_bytes = p.code == WeightCode::e4m3 ? 2048 : 4096;
    plan.ring = std::max(1, 8192 / (chunk_bytes * plan.row_tiles));  // 8 KB in flight per warp
    plan.blocks = plan.row_tiles == 1 ? items : 2 * processors;
    return plan;
}

void few_tokens_as(cudaStream_t stream, const Problem& p, const FewPlan& plan) {
    if (p.code == WeightCode::e4m3) return few_tokens_e4m3(stream, p, plan);
    few_tokens_bf16(stream, p, plan);
}

void few_tokens(cudaStream_t stream, const Problem& p) { few_tokens_as(stream, p, few_plan(p)); }

}  // namespace espalier::linalg::cuda
