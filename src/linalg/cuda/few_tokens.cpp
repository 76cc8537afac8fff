// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens.hpp"

#include <algorithm>

namespace espalier::linalg::cuda {
namespace {

// Tokens that most groups have at most. Experts: four thirds of the average, so that few of them
// need a second tile, which reads the weights once more; past 16 a wider tile costs more than that.
std::int64_t usual_tokens(const Problem& p) {
    if (p.indptr == nullptr) return p.rows;
    const std::int64_t average = divide_up(p.rows, p.groups);
    const std::int64_t usual = std::max(average, std::min<std::int64_t>(average * 4 / 3, 16));
    return std::min<std::int64_t>(p.x_rows, usual);
}

// How much of the time every block has work.
double balance(std::int64_t items, std::int64_t blocks) {
    return static_cast<double>(items) / static_cast<double>(divide_up(items, blocks) * blocks);
}

// Tiles of outputs per warp where there is work for all multiprocessors (figures: v2-lite, v3,
// H200).
int row_tiles_of(const Problem& p, const FewPlan& plan, std::int64_t items, int processors) {
    const bool codes = p.code != WeightCode::bf16;
    // x is read half as often; sums of 8 tiles of tokens need all registers, and of experts' codes
    // so do 4.
    if (plan.token_tiles > 1)
        return plan.token_tiles == 2 || (plan.token_tiles == 4 && (!codes || p.indptr == nullptr))
                   ? 2
                   : 1;
    // 4-bit codes are bound by instructions: more outputs share what a warp does besides widening.
    if (facts_of(p.code).bits == 4 && items >= 8 * processors) return 4;
    // Short segments have their sums merged often: those of one chunk (v2 down, 32 tokens: 85 µs,
    // not 91), and codes, where a chunk is 2 KB or less (v3 gate_up, 32 tokens: 1.21 ms, not 1.72).
    if (p.indptr != nullptr) return codes || segments_of(p.n, p.k).chunks == 1 ? 2 : 1;
    // Rows of blocks without a remainder (v3 o: 30 µs, not 42).
    const double one = balance(items, 3 * processors);
    const double two = balance(divide_up(items, 2), 2 * processors);
    return two > (codes ? one - 0.03 : one) ? 2 : 1;
}

// Shared memory for the rings of a block, where the blocks that registers let a multiprocessor have
// share all of it. (v2 down, 128 tokens: one block, whose rings would otherwise hold a single
// chunk.)
int ring_bytes(const Problem& p, const FewPlan& plan, int warps) {
    constexpr int kProcessorBytes = 228 * 1024, kBlockBytes = 2048;  // barriers, the system's own
    const int registers =
        few_registers(p.code != WeightCode::bf16, plan.token_tiles, plan.row_tiles, plan.segment);
    const int blocks = std::clamp(65536 / (registers * warps * 32), 1, 3);
    const int sums = warps * 8 * plan.token_tiles * few_sum_stride(plan.row_tiles) * 4;
    const std::int64_t listed =
        p.indptr == nullptr ? 0 : 12 * most_token_tiles(p, 8 * plan.token_tiles);
    return static_cast<int>(kProcessorBytes / blocks - kBlockBytes - sums - listed);
}

// Units of a warp's ring in so many bytes.
int units_in(const Problem& p, const FewPlan& plan, int bytes) {
    constexpr int kBarrierBytes = 8;
    const int unit = few_unit(p.code, plan.row_tiles) * 2 * p.half_bytes * plan.row_tiles;
    return std::max(1, bytes / (unit + kBarrierBytes));
}
int ring_of(const Problem& p, const FewPlan& plan, int warps) {
    return units_in(p, plan, ring_bytes(p, plan, warps) / warps);
}

}  // namespace

FewPlan few_plan(const Problem& p) {
    const Segments segments = segments_of(p.n, p.k);
    FewPlan plan;
    plan.row_warps = row_warps_of(segments);
    const int warps = segments.count * plan.row_warps;
    const std::int64_t tokens = p.vector_x ? usual_tokens(p) : 1;
    plan.token_tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 || warps > 12 ? 4 : 8;
    const std::int64_t items = divide_up(tiles_of(p.n) + tiles_of(p.second.n), plan.row_warps) *
                               most_token_tiles(p, 8 * plan.token_tiles);
    const int processors = multiprocessors();
    // Segments of one length that is known: their x stays in registers.
    const bool equal = segments.count * segments.chunks == chunks_of(p.k);
    if (p.vector_x && equal &&
        few_keeps_x(p.code != WeightCode::bf16, plan.token_tiles, segments.chunks))
        plan.segment = segments.chunks;
    // A product that leaves multiprocessors idle is bound by its latency: fewer, larger blocks end
    // sooner, and with most of the shared memory theirs the next product's blocks do not crowd in
    // (v2 o, one token: 2.7 µs instead of 3.5).
    const bool small = items <= processors;
    if (small)
        plan.row_tiles = plan.token_tiles == 1 || (plan.token_tiles == 2 && p.groups == 1) ? 2 : 1;
    else
        plan.row_tiles = row_tiles_of(p, plan, items, processors);
    // Registers: 16 warps have 128 each, and four tiles of sums want as many.
    if (!p.vector_x || (plan.token_tiles * plan.row_tiles > 4 && warps > 12)) plan.row_tiles = 1;
    plan.ring =
        small ? units_in(p, plan, std::min(24576, 163840 / warps)) : ring_of(p, plan, warps);
    return plan;
}

FewPlan leading_plan(const Problem& p) {
    const Segments segments = segments_of(p.n, p.k);
    FewPlan plan;
    plan.row_warps = row_warps_of(segments);
    const bool codes = p.code != WeightCode::bf16;
    plan.row_tiles = facts_of(p.code).bits == 4 ? 4 : codes || segments.chunks == 1 ? 2 : 1;
    const bool equal = segments.chunks == segments_of(p.lead.n, p.lead.k).chunks &&
                       segments.count * segments.chunks == chunks_of(p.k);
    if (equal && segments.chunks == 2 && plan.row_tiles < 4 && (codes || plan.row_tiles == 1))
        plan.segment = 2;
    plan.ring = ring_of(p, plan, segments.count * plan.row_warps);
    return plan;
}

void few_tokens_as(cudaStream_t stream, const Problem& p, const FewPlan& plan) {
    switch (p.code) {
        case WeightCode::bf16:
            return few_tokens_bf16(stream, p, plan);
        case WeightCode::e4m3:
            return few_tokens_e4m3(stream, p, plan);
        case WeightCode::int8:
            return few_tokens_int8(stream, p, plan);
        case WeightCode::int4:
            return few_tokens_int4(stream, p, plan);
        case WeightCode::e2m1:
            return few_tokens_e2m1(stream, p, plan);
        default:
            CHECK(false, "tensor cores multiply no {}", name_of(p.code));
    }
}

void few_tokens(cudaStream_t stream, const Problem& p) {
    few_tokens_as(stream, p, p.lead.weights != nullptr ? leading_plan(p) : few_plan(p));
}

}  // namespace espalier::linalg::cuda
