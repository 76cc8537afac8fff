// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/many_plan.hpp"

#include <algorithm>
#include <span>

#include "linalg/cuda/few_plan.hpp"
#include "linalg/cuda/fragments.hpp"

namespace espalier::linalg::cuda {
namespace {

// Which kernel is faster follows from two estimates, both from measurements on an H200 (the figures
// below are microseconds). Experts are taken to have the average number of tokens each.

// Few tokens: reading the weights, times how much slower tokens make it; or, where groups are many
// and small, the blocks' rounds of work.
double few_microseconds(const Problem& p, const DeviceFacts& facts) {
    const std::int64_t groups = p.indptr == nullptr ? p.groups : std::min(p.groups, p.rows);
    const std::int64_t tokens = p.indptr == nullptr ? p.rows : divide_up(p.rows, p.groups);
    const std::int64_t token_tiles = divide_up(tokens, 64);
    const double read = static_cast<double>(groups * p.matrix_bytes * token_tiles) / 4.45e6;
    double slower = tokens <= 8 ? 1.05 : tokens <= 16 ? 1.25 : tokens <= 32 ? 1.8 : 4.5;
    // Codes: v3 q_a with kv_a, 64 tokens, 24 µs.
    if (p.indptr == nullptr && p.code != WeightCode::bf16 && tokens > 32) slower = 7.0;
    // Experts' numbers scatter: some have a second tile of tokens (v2 gate_up, 64 tokens).
    if (p.indptr != nullptr && tokens > 4 && tokens <= 16) slower = 1.2;
    const std::int64_t items =
        groups * token_tiles * divide_up(tiles_of(p.n), row_warps_of(segments_of(p.n, p.k)));
    const std::int64_t rounds = divide_up(items, 2 * facts.multiprocessors);
    const double round =
        (p.groups > 1 ? 1.3 : 1.0) + 0.12 * static_cast<double>(std::min<std::int64_t>(tokens, 64));
    return std::max(read * slower, static_cast<double>(rounds) * round);
}

// Many: rounds of tiles of 128 outputs by `tokens` tokens.
struct ManyTile {
    int tokens = 0;
    int blocks = 1;      // that share it
    double once = 0.0;   // of a tile
    double chunk = 0.0;  // of 128 inputs
};
constexpr ManyTile kManyTiles[] = {{32, 1, 0.8, 0.58}, {64, 1, 1.5, 0.88}, {128, 1, 2.5, 1.35}};
// Portable ones, of a multiprocessor that has four, two or one of them at once.
constexpr ManyTile kPortableTiles[] = {{32, 1, 1.0, 0.45}, {64, 1, 1.5, 0.9}, {128, 1, 2.5, 1.8}};
constexpr ManyTile kSharedTile = {256, 2, 2.5, 1.15};
constexpr std::int64_t kMostSplitRows = 64;  // with more, tiles are enough
constexpr double kMerge = 3.0;               // of a cluster's sums

double many_microseconds(const Problem& p, const ManyTile& tile, const DeviceFacts& facts) {
    const std::int64_t tiles =
        most_token_tiles(p, tile.tokens) * (divide_up(p.n, 128) + divide_up(p.second.n, 128));
    const std::int64_t rounds = divide_up(tiles, facts.multiprocessors / tile.blocks);
    const double work = static_cast<double>(rounds) *
                        (tile.once + tile.chunk * static_cast<double>(chunks_of(p.k)));
    const std::int64_t groups = p.indptr == nullptr ? p.groups : std::min(p.groups, p.rows);
    const double read = static_cast<double>(groups * p.matrix_bytes) / 4.45e6;
    return 1.0 + std::max(work, 1.07 * read);
}

std::span<const ManyTile> tiles_for(const Problem& p, const DeviceFacts& facts) {
    if (facts.family() != GpuFamily::portable) return kManyTiles;
    // Codes in blocks have three sums of an output: more than registers hold of 128 tokens.
    return std::span<const ManyTile>(kPortableTiles).first(in_blocks(p.code) ? 2 : 3);
}

// True if tiles of 256 tokens, which two blocks share, are faster than those of 128. Experts: where
// most have two of these (v2 gate_up, 2,048 tokens: 492 µs, not 529; 8,192: 1,709, not 1,667).
bool shares_tiles(const Problem& p, const DeviceFacts& facts) {
    if (facts.clusters[2] == 0) return false;
    if (p.indptr != nullptr) return p.rows > 144 * p.groups && p.rows <= 256 * p.groups;
    return many_microseconds(p, kSharedTile, facts) < many_microseconds(p, kManyTiles[2], facts);
}

// A cluster's blocks have a part of a tile's segments each.
double split_microseconds(const Problem& p, const ManyTile& tile, int split) {
    const Segments segments = segments_of(p.n, p.k);
    const std::int64_t own = divide_up(segments.count, split) * segments.chunks;
    const double work = tile.once + tile.chunk * static_cast<double>(own);
    const double read = static_cast<double>(p.groups * p.matrix_bytes) / 4.45e6;
    return 1.0 + kMerge + std::max(work, 1.07 * read);
}

// The best plan of that kind, if there is one that takes less than `best`.
void consider_split(const Problem& p, const ManyTile& tile, const DeviceFacts& facts, double& best,
                    ManyPlan& plan) {
    const std::int64_t tiles =
        most_token_tiles(p, tile.tokens) * (divide_up(p.n, 128) + divide_up(p.second.n, 128));
    const int segments = segments_of(p.n, p.k).count;
    for (int split = 2; split <= std::min(segments, kMostClusterBlocks); ++split) {
        const std::int64_t own = divide_up(segments, split);
        if (own > kMostSplitSegments || divide_up(segments, own) != split ||
            tiles > facts.clusters[static_cast<std::size_t>(split)])
            continue;
        if (const double time = split_microseconds(p, tile, split); time < best) {
            best = time;
            plan = {tile.tokens, split};
        }
    }
}

}  // namespace

ManyPlan many_plan(const Problem& p, const DeviceFacts& facts) {
    if (!p.vector_x) return {};
    // Heads' products of few tokens: what a tile of tensor cores takes to begin and end is not in
    // the estimates (v3 value of 8 tokens: 12 µs of a step's chain, not 5).
    if (p.indptr == nullptr && p.groups > 1 && p.rows <= 8) return {};
    double best = few_microseconds(p, facts);
    ManyPlan plan;
    for (const ManyTile& tile : tiles_for(p, facts)) {
        if (const double time = many_microseconds(p, tile, facts); time < best) {
            best = time;
            plan = {tile.tokens, 1};
        }
        if (tile.tokens < 128 && p.indptr == nullptr && p.rows <= kMostSplitRows)
            consider_split(p, tile, facts, best, plan);
    }
    if (plan.tokens == 128 && shares_tiles(p, facts)) plan.tokens = kSharedTile.tokens;
    return plan;
}

}  // namespace espalier::linalg::cuda
