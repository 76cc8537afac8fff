// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_plan.hpp"

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

// Share of the time in which every block has work.
double balance(std::int64_t items, std::int64_t blocks) {
    return static_cast<double>(items) / static_cast<double>(divide_up(items, blocks) * blocks);
}

// Tiles of outputs per warp where there is work for all multiprocessors (figures: v2-lite, v3,
// H200).
int row_tiles_of(const Problem& p, const FewKernel& kernel, std::int64_t items, int processors) {
    const bool codes = p.code != WeightCode::bf16;
    // x is read half as often; sums of 8 tiles of tokens need all registers, and of experts' codes
    // so do 4.
    if (kernel.token_tiles > 1)
        return kernel.token_tiles == 2 ||
                       (kernel.token_tiles == 4 && (!codes || p.indptr == nullptr))
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
int ring_bytes(const Problem& p, const FewPlan& plan, const DeviceFacts& facts, int warps) {
    constexpr int kBlockBytes = 2048;  // barriers, the system's own
    const auto& [input, token_tiles, row_tiles, segment] = plan.kernel;
    const int registers =
        few_registers(p.code != WeightCode::bf16, token_tiles, row_tiles, segment);
    const int blocks = std::clamp(facts.processor_registers / (registers * warps * 32), 1, 3);
    const int sums = warps * 8 * token_tiles * few_sum_stride(row_tiles) * 4;
    const std::int64_t listed =
        p.indptr == nullptr
            ? 0
            : std::int64_t{kTokenTileBytes} * most_token_tiles(p, std::int64_t{8} * token_tiles);
    return static_cast<int>(static_cast<std::int64_t>(facts.processor_shared_bytes) / blocks -
                            kBlockBytes - sums - listed);
}

// Units of a warp's ring in that many bytes.
int units_in(const Problem& p, const FewPlan& plan, int bytes) {
    constexpr int kBarrierBytes = 8;
    const int row_tiles = plan.kernel.row_tiles;
    const int unit = few_unit(p.code, row_tiles) * 2 * p.half_bytes * row_tiles;
    return std::max(1, bytes / (unit + kBarrierBytes));
}
int ring_of(const Problem& p, const FewPlan& plan, const DeviceFacts& facts, int warps) {
    return units_in(p, plan, ring_bytes(p, plan, facts, warps) / warps);
}

// Chunks that all segments of a product have; 0: the last has fewer.
int equal_chunks(const Segments& segments, std::int64_t k) {
    return segments.count * segments.chunks == chunks_of(k) ? segments.chunks : 0;
}

// The kernel that keeps x of segments of that length in registers, where one is compiled.
FewKernel keeping_x(WeightCode code, FewKernel kernel, int chunks) {
    FewKernel keeps = kernel;
    keeps.segment = chunks;
    return few_kernels(code).has(keeps) ? keeps : kernel;
}

// In tiles of at most that many times 16 outputs.
FewPlan leading_within(const Problem& p, const DeviceFacts& facts, int most_rows) {
    const Segments segments = segments_of(p.n, p.k);
    FewPlan plan;
    plan.row_warps = row_warps_of(segments);
    const bool codes = p.code != WeightCode::bf16;
    const int row_tiles = facts_of(p.code).bits == 4 ? 4 : codes || segments.chunks == 1 ? 2 : 1;
    plan.kernel = {.input = FewInput::leading, .row_tiles = std::min(row_tiles, most_rows)};
    if (segments.chunks == segments_of(p.lead.n, p.lead.k).chunks)
        plan.kernel = keeping_x(p.code, plan.kernel, equal_chunks(segments, p.k));
    plan.ring = ring_of(p, plan, facts, segments.count * plan.row_warps);
    return plan;
}

// On a device with less shared memory bf16 takes narrower tiles (v2 down: 11 warps with two row
// tiles each are 101 KB). Where nothing fits the plan is of no use, and the launch not made.
FewPlan leading_plan(const Problem& p, const DeviceFacts& facts) {
    const FewPlan plan = leading_within(p, facts, 4);
    if (fits(p, plan, facts)) return plan;
    const FewPlan narrow = leading_within(p, facts, 1);
    return few_kernels(p.code).has(narrow.kernel) ? narrow : plan;
}

// In tiles of at most that many times 8 tokens and 16 outputs.
FewPlan plan_within(const Problem& p, const DeviceFacts& facts, int most_tokens, int most_rows) {
    const Segments segments = segments_of(p.n, p.k);
    FewPlan plan;
    plan.row_warps = row_warps_of(segments);
    const int warps = segments.count * plan.row_warps;
    const std::int64_t tokens = p.vector_x ? usual_tokens(p) : 1;
    FewKernel kernel{.input = p.vector_x ? FewInput::vector : FewInput::single};
    kernel.token_tiles = std::min(most_tokens, tokens <= 8                  ? 1
                                               : tokens <= 16               ? 2
                                               : tokens <= 32 || warps > 12 ? 4
                                                                            : 8);
    const std::int64_t items = divide_up(tiles_of(p.n) + tiles_of(p.second.n), plan.row_warps) *
                               most_token_tiles(p, std::int64_t{8} * kernel.token_tiles);
    // A product that leaves multiprocessors idle is bound by its latency: fewer, larger blocks end
    // sooner, and with most of the shared memory theirs the next product's blocks do not crowd in
    // (v2 o, one token: 2.7 µs instead of 3.5).
    const bool small = items <= facts.multiprocessors;
    if (small)
        kernel.row_tiles =
            kernel.token_tiles == 1 || (kernel.token_tiles == 2 && p.groups == 1) ? 2 : 1;
    else
        kernel.row_tiles = row_tiles_of(p, kernel, items, facts.multiprocessors);
    // Registers: 16 warps have 128 each, and four tiles of sums want as many.
    if (!p.vector_x || (kernel.token_tiles * kernel.row_tiles > 4 && warps > 12))
        kernel.row_tiles = 1;
    kernel.row_tiles = std::min(kernel.row_tiles, most_rows);
    plan.kernel = keeping_x(p.code, kernel, equal_chunks(segments, p.k));
    // Limit of a small product: most of what a block can have, 160 KB of 227.
    const int most = static_cast<int>(facts.block_shared_bytes / 227 * 160);
    plan.ring =
        small ? units_in(p, plan, std::min(24576, most / warps)) : ring_of(p, plan, facts, warps);
    return plan;
}

}  // namespace

std::size_t shared_bytes(const Problem& p, const FewPlan& plan) {
    const int listed =
        p.indptr == nullptr
            ? 0
            : static_cast<int>(most_token_tiles(p, std::int64_t{8} * plan.kernel.token_tiles));
    return few_shared_bytes(p.code, plan.kernel, segments_of(p.n, p.k).count * plan.row_warps,
                            plan.ring, 2 * p.half_bytes, listed);
}

bool fits(const Problem& p, const FewPlan& plan, const DeviceFacts& facts) {
    return shared_bytes(p, plan) <= facts.block_shared_bytes;
}

FewPlan few_plan(const Problem& p, const DeviceFacts& facts) {
    if (p.lead.weights != nullptr) return leading_plan(p, facts);
    // 227 KB hold every plan; on a device with less, smaller tiles leave rings room.
    for (int tokens = 8; tokens > 0; tokens /= 2)
        for (const int rows : {4, 1})
            if (const FewPlan plan = plan_within(p, facts, tokens, rows); fits(p, plan, facts))
                return plan;
    return plan_within(p, facts, 1, 1);
}

}  // namespace espalier::linalg::cuda
