// SPDX-License-Identifier: Apache-2.0
// Tiles of 128 outputs that the blocks of a cluster share, each with some of their segments of k:
// where tiles are too few for all multiprocessors. Every segment's sums stay in the shared memory
// of the block that has it; at the end each block adds up a part of them all, in ascending order.
#pragma once

#include "base/cuda/cluster.cuh"
#include "linalg/cuda/hopper/many_tiles.cuh"
#include "linalg/cuda/many_store.cuh"

namespace espalier::linalg::cuda {

// Address of a lane's four sums of eight tokens, of the block's segment `place`: the last one's lie
// where stages did.
template <class C>
__device__ __forceinline__ std::uint32_t split_sums(const ManyShared<C>& shared, int own, int place,
                                                    int row_tile, int token_tile) {
    const std::uint32_t base =
        place == own - 1 ? shared.stages
                         : shared.totals + static_cast<std::uint32_t>(place * C::kSumBytes);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return base + static_cast<std::uint32_t>(
                      ((token_tile * (C::kOutputs / 16) + row_tile) * 32 + lane) * 16);
}

// The whole warp: a tile of the cluster's outputs for eight tokens, all segments added up.
template <class C>
__device__ __forceinline__ void add_segments(const ManyParams& params, const ManyShared<C>& shared,
                                             int row_tile, int token_tile, float (&sum)[4]) {
    constexpr int kAtOnce = 8;  // on their way together
    int block = 0, place = 0;
    for (int first = 0; first < params.segments.count; first += kAtOnce) {
        float4 part[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            if (first + s >= params.segments.count) continue;
            part[s] = load_shared_of(split_sums<C>(shared, params.own, place, row_tile, token_tile),
                                     block);
            if (++place < params.own) continue;
            place = 0;
            ++block;
        }
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            if (first + s >= params.segments.count) continue;
            const bool begins = first + s == 0;
            sum[0] = begins ? part[s].x : __fadd_rn(sum[0], part[s].x);
            sum[1] = begins ? part[s].y : __fadd_rn(sum[1], part[s].y);
            sum[2] = begins ? part[s].z : __fadd_rn(sum[2], part[s].z);
            sum[3] = begins ? part[s].w : __fadd_rn(sum[3], part[s].w);
        }
    }
}

// The warps that multiplied, when all blocks of the cluster have put their sums.
template <class C>
__device__ void merge_segments(const ManyParams& params, const ManyShared<C>& shared) {
    constexpr int kTiles = C::kOutputs / 16, kWarps = 8;
    const Problem& p = params.problem;
    const TokenTile tile = shared.tile(p, shared.first / params.row_blocks);
    int row_block = shared.first % params.row_blocks;
    const bool second = row_block >= params.first_row_blocks;
    if (second) row_block -= params.first_row_blocks;
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
    const int rank = static_cast<int>(blockIdx.x) % params.split;
    const int parts = kTiles * ((tile.count + 7) / 8);
    for (int i = warp * params.split + rank; i < parts; i += kWarps * params.split) {
        const int row_tile = i % kTiles, token_tile = i / kTiles;
        float sum[4];
        add_segments(params, shared, row_tile, token_tile, sum);
        const TokenTile eight{tile.group, tile.first + token_tile * 8,
                              min(8, tile.count - token_tile * 8)};
        const int output =
            (row_block * kTiles + row_tile) * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
        if (second)
            store_all<8>(sum, eight, output, {p.second.y_stride, 0, p.second.n}, p.second.y,
                         [](float* to, float value) { *to = value; });
        else
            store_sums<8>(sum, p, eight, output);
    }
}

}  // namespace espalier::linalg::cuda
