// SPDX-License-Identifier: Apache-2.0
// Brings x into the order in which the tensor cores read it (arranged.hpp): for experts, each
// pair's row to its place.
#pragma once

#include "linalg/cuda/arranged.hpp"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct ArrangeParams {
    Problem problem;
    std::byte* arranged = nullptr;  // behind the header
    int* next = nullptr;            // the header
    int tile_tokens = 0;
    int stages = 0;  // of 64 inputs
    int parts = 0;   // of a tile, each the work of a block
};

// Where a tile's rows begin: after those of the groups before, each padded by less than eight.
__device__ __forceinline__ std::int64_t arranged_row(const TokenTile& tile) {
    return (tile.first + 7 * tile.group) / 8 * 8;
}
__device__ __forceinline__ int padded_rows(const TokenTile& tile) {
    return (tile.count + 7) / 8 * 8;
}

inline constexpr int kArrangeThreads = 256;
inline constexpr int kArrangeStages = 2;  // of a block

// Four lanes' four words each, exchanged: word t of lane w from word w of lane t.
__device__ __forceinline__ uint4 turn(const uint4& v) {
    const int lane = static_cast<int>(threadIdx.x);
    const bool odd = lane % 2 != 0, upper = lane / 2 % 2 != 0;
    // Lanes apart by one exchange words apart by one, then likewise by two.
    const std::uint32_t a = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1);
    const std::uint32_t b = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
    const uint4 one = odd ? make_uint4(a, v.y, b, v.w) : make_uint4(v.x, a, v.z, b);
    const std::uint32_t c = __shfl_xor_sync(~0u, upper ? one.x : one.z, 2);
    const std::uint32_t d = __shfl_xor_sync(~0u, upper ? one.y : one.w, 2);
    return upper ? make_uint4(c, d, one.z, one.w) : make_uint4(one.x, one.y, c, d);
}

// A block: so many stages of one tile. A warp has four rows at a time, eight lanes a row.
__device__ inline void arrange_tile(const ArrangeParams& params, const TokenTile& tile,
                                    int first_stage) {
    constexpr int kRowsAtOnce = kArrangeThreads / 8;
    constexpr int kSteps = kArrangedTokens / kRowsAtOnce;
    const Problem& p = params.problem;
    const int unit = static_cast<int>(threadIdx.x) % 8;
    const int rows = padded_rows(tile);
    uint4 v[kSteps][kArrangeStages];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const int row = step * kRowsAtOnce + static_cast<int>(threadIdx.x) / 8;
        if (step * kRowsAtOnce >= rows) break;
        const int place = tile.first + min(row, tile.count - 1);
        const std::int64_t from = p.source != nullptr ? p.source[place] : place;
        const auto* x = reinterpret_cast<const std::uint16_t*>(p.x) + from * p.x_stride;
#pragma unroll
        for (int s = 0; s < kArrangeStages; ++s) {
            const int input = (first_stage + s) * 64 + unit * 8;
            // Weights past k are zeros, and zero times what lies behind x may be NaN.
            v[step][s] = input < p.k ? load_global(x + input) : make_uint4(0, 0, 0, 0);
        }
    }
    std::byte* to = params.arranged + arranged_row(tile) * params.stages * 128;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const int row = step * kRowsAtOnce + static_cast<int>(threadIdx.x) / 8;
        if (step * kRowsAtOnce >= rows) break;
#pragma unroll
        for (int s = 0; s < kArrangeStages; ++s) {
            const uint4 turned = turn(v[step][s]);
            const std::int64_t at = std::int64_t{first_stage + s} * rows + row;
            if (row < rows && first_stage + s < params.stages)
                *reinterpret_cast<uint4*>(to + at * 128 + (unit ^ row % 8) * 16) = turned;
        }
    }
}

__global__ void __launch_bounds__(kArrangeThreads)
    arrange_kernel(const __grid_constant__ ArrangeParams params) {
    __shared__ TokenTile found;
    const Problem& p = params.problem;
    const int index = static_cast<int>(blockIdx.x) / params.parts;
    const int first_stage = static_cast<int>(blockIdx.x) % params.parts * kArrangeStages;
    // Always: the memory that it writes may be what the kernel in front reads.
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (blockIdx.x == 0 && threadIdx.x < 2) params.next[threadIdx.x] = 0;
    if (p.indptr == nullptr)
        return arrange_tile(params, dense_tile(p, params.tile_tokens, index), first_stage);
    if (threadIdx.x == 0) found.count = 0;
    __syncthreads();
    if (threadIdx.x < 32)
        scan_expert_tiles(p, params.tile_tokens, [&](int other, const TokenTile& tile) {
            if (other == index) found = tile;
        });
    __syncthreads();
    if (found.count > 0) arrange_tile(params, found, first_stage);
}

}  // namespace espalier::linalg::cuda
