// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/arranged.cuh"

namespace espalier::linalg::cuda {

// What a block can have, 227 KB, but for what the kernel declares.
constexpr std::size_t kMostSharedBytes = 227 * 1024 - 64;

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
    return ArrangedConfig::shared_bytes(static_cast<std::size_t>(listed));
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

void arranged_tokens(cudaStream_t stream, const Problem& p, const Scratch& scratch) {
    using C = ArrangedConfig;
    const int stages = 2 * static_cast<int>(chunks_of(p.k));
    const int tile_tokens = tile_tokens_of(p);
    const auto token_tiles = static_cast<int>(most_token_tiles(p, tile_tokens));
    ArrangeParams arrange;
    arrange.problem = p;
    arrange.arranged = scratch.data + kArrangedHeader;
    arrange.next = reinterpret_cast<int*>(scratch.data);
    arrange.tile_tokens = tile_tokens;
    arrange.stages = stages;
    arrange.parts = static_cast<int>(divide_up(stages, kArrangeStages));
    launch(stream, arrange_kernel,
           {.blocks = std::int64_t{token_tiles} * arrange.parts, .threads = kArrangeThreads},
           arrange);
    ArrangedParams params;
    params.problem = p;
    params.segments = segments_of(p.n, p.k);
    params.arranged = arrange.arranged;
    params.next = arrange.next;
    params.row_blocks = static_cast<int>(divide_up(p.n, C::kOutputs));
    params.tile_tokens = tile_tokens;
    params.token_tiles = token_tiles;
    params.stages = stages;
    const std::int64_t items = std::int64_t{token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    launch(stream, arranged_kernel,
           {.blocks = std::min<std::int64_t>(items, multiprocessors()),
            .threads = C::kThreads,
            .shared_bytes = shared_bytes_of(p)},
           params);
}

}  // namespace espalier::linalg::cuda
