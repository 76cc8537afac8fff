// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "linalg/cuda/hopper/arrange.cuh"
#include "linalg/cuda/hopper/arranged_params.hpp"

namespace espalier::linalg::cuda {

// Blocks' rounds of tiles, times what a tile costs: bringing its rows of weights and x. Experts
// read their weights for every tile, so that a tile has as many tokens as it can.
static int tile_tokens_of(const Problem& p) {
    const int most = most_arranged_tokens(p.code);
    if (p.indptr != nullptr) return most;
    std::int64_t best = 0;
    int tokens = 0;
    for (int n = most; n >= 64; n -= 16) {
        const std::int64_t tiles = divide_up(p.rows, n) * (divide_up(p.n, kArrangedOutputs) +
                                                           divide_up(p.second.n, kArrangedOutputs));
        // Codes have half as many bytes as bf16, and less.
        const int weights = p.code == WeightCode::bf16 ? 128 : 48;
        const std::int64_t cost = divide_up(tiles, multiprocessors()) * (weights + n);
        if (tokens == 0 || cost < best) {
            best = cost;
            tokens = n;
        }
    }
    return tokens;
}

// Whether four columns of a query can be stored at once wherever they go, and 16 are all of one
// kind.
static bool stores_fours(const QueryStore& to) {
    const auto fours = [](const void* pointer, std::int64_t stride) {
        return reinterpret_cast<std::uintptr_t>(pointer) % 8 == 0 && stride % 4 == 0;
    };
    return to.width % kTileOutputs == 0 && to.rope_step % 4 == 0 && fours(to.act, to.act_stride) &&
           fours(to.rope, to.rope_stride) && fours(to.cos_sin, to.cos_sin_stride);
}

// Of the list of experts' tiles.
static std::size_t listed_bytes_of(const Problem& p) {
    if (p.indptr == nullptr) return 0;
    return static_cast<std::size_t>(most_token_tiles(p, tile_tokens_of(p))) * sizeof(TokenTile);
}

// Stages that shared memory has beside it.
static int slots_of(const Problem& p) {
    const std::size_t listed = listed_bytes_of(p);
    if (listed > kMostSharedBytes - kArrangedMemoryBytes) return 0;
    return arranged_slots(p.code, tile_tokens_of(p), p.half_bytes, listed);
}
static std::size_t shared_bytes_of(const Problem& p) {
    const int stage = arranged_stage_bytes(p.code, tile_tokens_of(p), p.half_bytes);
    return kArrangedMemoryBytes +
           static_cast<std::size_t>(slots_of(p)) * static_cast<std::size_t>(stage) +
           listed_bytes_of(p);
}

// From measurements on an H200. Two launches cost about 8 µs more than one, and dense products have
// full tiles anyway; experts gain from tiles as small as their last tokens are few (v2 gate_up:
// 1,024 tokens, 96 each). Over codes the kernel without arranged x is slower (v3 gate_up, 8 tokens
// each: 2,339 µs, 2,176 arranged, of INT4 2,268 and 2,242; q_a with kv_a of 256 tokens 51 and 45,
// of 128 36 and 44; INT4 o of 512 387 and 294). INT8's smaller tiles leave less to gain.
static bool has_enough_rows(const Problem& p) {
    const bool experts = p.indptr != nullptr;
    if (p.code == WeightCode::bf16) return p.rows >= (experts ? 96 * p.groups : 1536);
    if (p.code == WeightCode::int8) return experts && p.rows >= 16 * p.groups;
    return p.rows >= (experts ? 8 * p.groups : 256);
}

bool arranges(const Problem& p, const Scratch& scratch) {
    if (!in_fragments(p.code) || !p.vector_x) return false;
    if (p.indptr == nullptr && p.groups > 1) return false;
    if (p.query.cos_sin != nullptr && !stores_fours(p.query)) return false;
    if (scratch.bytes < arranged_bytes(p.rows, p.k)) return false;
    if (slots_of(p) < 3 || shared_bytes_of(p) > kMostSharedBytes) return false;
    return has_enough_rows(p);
}

// The tiles of x that one kernel arranges and others multiply.
struct Arrangement {
    std::byte* data;
    int* next;
    int tile_tokens;
    int token_tiles;
    int stages;
};

static Arrangement arrangement_of(const Problem& p, const Scratch& scratch) {
    const int tokens = tile_tokens_of(p);
    return {scratch.data + kArrangedHeader, reinterpret_cast<int*>(scratch.data), tokens,
            static_cast<int>(most_token_tiles(p, tokens)), 2 * static_cast<int>(chunks_of(p.k))};
}

// Stages of a block: as many as leave every multiprocessor six blocks, since a block begins with
// three loads that wait for each other.
static int part_of(const Arrangement& x) {
    const std::int64_t most = std::int64_t{x.token_tiles} * x.stages / (6 * multiprocessors());
    return static_cast<int>(std::clamp<std::int64_t>(most, 2, 8));
}

static void arrange(cudaStream_t stream, const Problem& p, const Arrangement& x) {
    ArrangeParams params;
    params.problem = p;
    params.arranged = x.data;
    params.next = x.next;
    params.tile_tokens = x.tile_tokens;
    params.stages = x.stages;
    params.part = part_of(x);
    launch("arranging x", arrange_kernel,
           {.grid = grid_of(std::int64_t{x.token_tiles} * divide_up(x.stages, params.part)),
            .threads = kArrangeThreads,
            .limit = SharedLimit::whole},
           stream, params);
}

static void multiply(cudaStream_t stream, const Problem& p, const Arrangement& x,
                     const ArrangedY& y = {}) {
    ArrangedParams params;
    params.problem = p;
    params.segments = segments_of(p.n, p.k);
    params.arranged = x.data;
    params.next = x.next;
    params.first_blocks = static_cast<int>(divide_up(p.n, kArrangedOutputs));
    params.row_blocks =
        params.first_blocks + static_cast<int>(divide_up(p.second.n, kArrangedOutputs));
    params.tile_tokens = x.tile_tokens;
    params.token_tiles = x.token_tiles;
    params.stages = x.stages;
    params.slots = slots_of(p);
    params.stage_bytes = arranged_stage_bytes(p.code, x.tile_tokens, p.half_bytes);
    params.y = y;
    const std::int64_t items = std::int64_t{x.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    const LaunchShape shape{.grid = grid_of(std::min<std::int64_t>(items, multiprocessors())),
                            .threads = kArrangedThreads,
                            .shared_bytes = shared_bytes_of(p),
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

void arranged_tokens(cudaStream_t stream, const Problem& p, const Scratch& scratch) {
    const Arrangement x = arrangement_of(p, scratch);
    arrange(stream, p, x);
    multiply(stream, p, x);
}

bool arranges_pair(const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between) {
    // Experts' tiles are the same in both.
    if (gated.indptr != nullptr && tile_tokens_of(gated) != tile_tokens_of(down)) return false;
    return gated.gated && down.k % kChunkInputs == 0 && gated.rows == down.rows &&
           arranges(gated, scratch) && arranges(down, between);
}

void arranged_pair(cudaStream_t stream, const Problem& gated, const Scratch& scratch,
                   const Problem& down, const Scratch& between) {
    const Arrangement x = arrangement_of(gated, scratch), y = arrangement_of(down, between);
    arrange(stream, gated, x);
    multiply(stream, gated, x, {y.data, y.next, y.tile_tokens, y.stages});
    multiply(stream, down, y);
}

}  // namespace espalier::linalg::cuda
