// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/arranged.cuh"

namespace espalier::linalg::cuda {

// What a block can have.
constexpr std::size_t kMostSharedBytes = 227 * 1024;

// Blocks' rounds of tiles, times what a tile costs: bringing its rows of weights and x. Experts
// read their weights for every tile, so that a tile has as many tokens as it can.
static int tile_tokens_of(const Problem& p) {
    using C = ArrangedConfig;
    if (p.indptr != nullptr) return C::kTokens;
    std::int64_t best = 0;
    int tokens = 0;
    for (int n = C::kTokens; n >= 64; n -= 32) {
        const std::int64_t tiles = divide_up(p.rows, n) * divide_up(p.n, C::kOutputs);
        const std::int64_t cost = divide_up(tiles, multiprocessors()) * (C::kOutputs + n);
        if (tokens == 0 || cost < best) {
            best = cost;
            tokens = n;
        }
    }
    return tokens;
}

static std::size_t shared_bytes_of(const Problem& p) {
    const std::int64_t listed = p.indptr != nullptr ? most_token_tiles(p, tile_tokens_of(p)) : 0;
    return ArrangedMemory::bytes(static_cast<std::size_t>(listed));
}

// From measurements on an H200. Two launches cost about 8 µs more than one, and dense products have
// full tiles anyway; experts gain from tiles as small as their last tokens are few (v2 gate_up:
// 1,024 tokens, 96 each).
bool arranges(const Problem& p, const Scratch& scratch) {
    if (p.code != WeightCode::bf16 || !p.vector_x || p.second.n > 0) return false;
    if (p.indptr == nullptr && p.groups > 1) return false;
    if (scratch.bytes < arranged_bytes(p.rows, p.k, p.groups)) return false;
    if (shared_bytes_of(p) > kMostSharedBytes) return false;  // the list of experts' tiles
    return p.indptr == nullptr ? p.rows >= 1536 : p.rows >= 96 * p.groups;
}

// The tiles of x that one kernel arranges and others multiply.
struct Arrangement {
    std::byte* data;
    int* next;  // of each product that reads it
    int tile_tokens;
    int token_tiles;
    int stages;
};

static Arrangement arrangement_of(const Problem& p, const Scratch& scratch) {
    const int tokens = tile_tokens_of(p);
    return {scratch.data + kArrangedHeader, reinterpret_cast<int*>(scratch.data), tokens,
            static_cast<int>(most_token_tiles(p, tokens)), 2 * static_cast<int>(chunks_of(p.k))};
}

static void arrange(cudaStream_t stream, const Problem& p, const Arrangement& x) {
    ArrangeParams params;
    params.problem = p;
    params.arranged = x.data;
    params.next = x.next;
    params.tile_tokens = x.tile_tokens;
    params.stages = x.stages;
    params.parts = static_cast<int>(divide_up(x.stages, kArrangeStages));
    launch(stream, arrange_kernel,
           {.blocks = std::int64_t{x.token_tiles} * params.parts, .threads = kArrangeThreads},
           params);
}

// turn: of the products that read x, which this is.
static void multiply(cudaStream_t stream, const Problem& p, const Arrangement& x, int turn,
                     const ArrangedY& y = {}) {
    using C = ArrangedConfig;
    ArrangedParams params;
    params.problem = p;
    params.segments = segments_of(p.n, p.k);
    params.arranged = x.data;
    params.next = x.next + turn;
    params.row_blocks = static_cast<int>(divide_up(p.n, C::kOutputs));
    params.tile_tokens = x.tile_tokens;
    params.token_tiles = x.token_tiles;
    params.stages = x.stages;
    params.y = y;
    const std::int64_t items = std::int64_t{x.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    launch(stream, arranged_kernel,
           {.blocks = std::min<std::int64_t>(items, multiprocessors()),
            .threads = C::kThreads,
            .shared_bytes = shared_bytes_of(p)},
           params);
}

void arranged_tokens(cudaStream_t stream, const Problem& p, const Scratch& scratch) {
    const Arrangement x = arrangement_of(p, scratch);
    arrange(stream, p, x);
    multiply(stream, p, x, 0);
}

void arranged_both(cudaStream_t stream, const Problem& p, const Problem& other,
                   const Scratch& scratch) {
    const Arrangement x = arrangement_of(p, scratch);
    arrange(stream, p, x);
    multiply(stream, p, x, 0);
    multiply(stream, other, x, 1);
}

bool arranges_pair(const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between) {
    return gated.gated && down.k % kChunkInputs == 0 && gated.rows == down.rows &&
           arranges(gated, scratch) && arranges(down, between);
}

void arranged_pair(cudaStream_t stream, const Problem& gated, const Scratch& scratch,
                   const Problem& down, const Scratch& between) {
    const Arrangement x = arrangement_of(gated, scratch), y = arrangement_of(down, between);
    arrange(stream, gated, x);
    multiply(stream, gated, x, 0, {y.data, y.next, y.tile_tokens, y.stages});
    multiply(stream, down, y, 0);
}

}  // namespace espalier::linalg::cuda
