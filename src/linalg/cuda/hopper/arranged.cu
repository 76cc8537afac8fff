// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "linalg/cuda/hopper/arrange.cuh"
#include "linalg/cuda/hopper/arranged_params.hpp"

namespace espalier::linalg::cuda {

// The tiles of x that one kernel arranges and others multiply.
struct Arrangement {
    std::byte* data;
    int* next;
    ArrangedPlan plan;
    int token_tiles;
    int stages;
};

static Arrangement arrangement_of(const Problem& p, const Scratch& scratch,
                                  const DeviceFacts& facts) {
    const ArrangedPlan plan = arranged_plan(p, facts);
    return {scratch.data + kArrangedHeader, reinterpret_cast<int*>(scratch.data), plan,
            static_cast<int>(most_token_tiles(p, plan.tile_tokens)),
            2 * static_cast<int>(chunks_of(p.k))};
}

// Stages of a block: as many as leave every multiprocessor six blocks, since a block begins with
// three loads that wait for each other.
static int part_of(const Arrangement& x, const DeviceFacts& facts) {
    const std::int64_t most = std::int64_t{x.token_tiles} * x.stages / (6 * facts.multiprocessors);
    return static_cast<int>(std::clamp<std::int64_t>(most, 2, 8));
}

static void arrange(Stream stream, const Problem& p, const Arrangement& x,
                    const DeviceFacts& facts) {
    ArrangeParams params;
    params.problem = p;
    params.arranged = x.data;
    params.next = x.next;
    params.tile_tokens = x.plan.tile_tokens;
    params.stages = x.stages;
    params.part = part_of(x, facts);
    launch("arranging x", arrange_kernel,
           {.grid = grid_of(std::int64_t{x.token_tiles} * divide_up(x.stages, params.part)),
            .threads = kArrangeThreads,
            .limit = SharedLimit::whole},
           stream, params);
}

static void multiply(Stream stream, const Problem& p, const Arrangement& x,
                     const DeviceFacts& facts, const ArrangedY& y = {}) {
    ArrangedParams params;
    params.problem = p;
    params.segments = segments_of(p.n, p.k);
    params.arranged = x.data;
    params.next = x.next;
    params.first_blocks = static_cast<int>(divide_up(p.n, kArrangedOutputs));
    params.row_blocks =
        params.first_blocks + static_cast<int>(divide_up(p.second.n, kArrangedOutputs));
    params.tile_tokens = x.plan.tile_tokens;
    params.token_tiles = x.token_tiles;
    params.stages = x.stages;
    params.slots = x.plan.slots;
    params.stage_bytes = x.plan.stage_bytes;
    params.y = y;
    const std::int64_t items = std::int64_t{x.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    const LaunchShape shape{.grid = grid_of(std::min<std::int64_t>(items, facts.multiprocessors)),
                            .threads = kArrangedThreads,
                            .shared_bytes = x.plan.shared_bytes,
                            .limit = SharedLimit::whole};
    switch (p.code) {
        case WeightCode::bf16:
            return multiply_arranged_bf16(stream, params, shape);
        case WeightCode::e4m3:
            return multiply_arranged_e4m3(stream, params, shape);
        case WeightCode::int8:
            return multiply_arranged_int8(stream, params, shape);
        case WeightCode::int4:
            return multiply_arranged_int4(stream, params, shape);
        case WeightCode::e2m1:
            return multiply_arranged_e2m1(stream, params, shape);
        default:
            CHECK(false, "tensor cores multiply no {}", name_of(p.code));
    }
}

void arranged_tokens(Stream stream, const Problem& p, const Scratch& scratch,
                     const DeviceFacts& facts) {
    const Arrangement x = arrangement_of(p, scratch, facts);
    arrange(stream, p, x, facts);
    multiply(stream, p, x, facts);
}

void arranged_pair(Stream stream, const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between, const DeviceFacts& facts) {
    const Arrangement x = arrangement_of(gated, scratch, facts);
    const Arrangement y = arrangement_of(down, between, facts);
    arrange(stream, gated, x, facts);
    multiply(stream, gated, x, facts, {y.data, y.next, y.plan.tile_tokens, y.stages});
    multiply(stream, down, y, facts);
}

}  // namespace espalier::linalg::cuda
