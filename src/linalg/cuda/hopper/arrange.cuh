// SPDX-License-Identifier: Apache-2.0
// Brings x into the order in which the tensor cores read it (arranged.hpp): for experts, each
// pair's row to its place.
#pragma once

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "linalg/cuda/hopper/arranged.hpp"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct ArrangeParams {
    Problem problem;
    std::byte* arranged = nullptr;  // behind the header
    int* next = nullptr;            // the header
    int tile_tokens = 0;
    int stages = 0;  // of 64 inputs
    int part = 0;    // of them that are one block's
};

inline constexpr int kArrangeThreads = 256;

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

// A thread's places in a stage: one 16-byte unit of every 32nd row.
class ArrangedRows {
    static constexpr int kRowsAtOnce = kArrangeThreads / 8;

  public:
    static constexpr int kSteps = kArrangedTokens / kRowsAtOnce;
    using Stage = uint4[kSteps];

    __device__ ArrangedRows(const ArrangeParams& params, const TokenTile& tile)
        : p_(params.problem),
          rows_(tile.count),
          to_(params.arranged + std::int64_t{tile.first} * params.stages * 128) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int place = tile.first + min(row(step), tile.count - 1);
            from_[step] = static_cast<std::uint32_t>(
                (p_.source != nullptr ? p_.source[place] : place) * p_.x_stride + unit() * 8);
        }
    }

    __device__ void load(int stage, Stage& v) const {
        // Weights past k are zeros, and zero times what lies behind x may be NaN.
        const bool there = stage * 64 + unit() * 8 < p_.k;
        const auto* x = reinterpret_cast<const std::uint16_t*>(p_.x) + stage * 64;
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
            v[step] = there && step * kRowsAtOnce < rows_ ? load_global(x + from_[step])
                                                          : make_uint4(0, 0, 0, 0);
    }

    __device__ void store(int stage, const Stage& v) const {
        std::byte* to = to_ + std::int64_t{stage} * rows_ * 128;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const uint4 turned = turn(v[step]);
            const int one = row(step);
            if (one >= rows_) continue;
            auto* at = reinterpret_cast<uint4*>(to + one * 128 + (unit() ^ one % 8) * 16);
            // Experts' rows are several times the L2, which is to keep x: others read it again.
            if (p_.source != nullptr)
                __stcs(at, turned);
            else
                *at = turned;
        }
    }

  private:
    __device__ static int unit() { return static_cast<int>(threadIdx.x) % 8; }
    __device__ static int row(int step) {
        return step * kRowsAtOnce + static_cast<int>(threadIdx.x) / 8;
    }

    const Problem& p_;
    int rows_;
    std::byte* to_;
    std::uint32_t from_[kSteps];  // elements; x has less than 2³¹
};

// Stages first … of a tile, the next one on its way while one is stored.
__device__ inline void arrange_tile(const ArrangeParams& params, const TokenTile& tile, int first) {
    const ArrangedRows rows(params, tile);
    const int end = min(first + params.part, params.stages);
    ArrangedRows::Stage one, other;
    rows.load(first, one);
    for (int stage = first; stage < end; stage += 2) {
        if (stage + 1 < end) rows.load(stage + 1, other);
        rows.store(stage, one);
        if (stage + 2 < end) rows.load(stage + 2, one);
        if (stage + 1 < end) rows.store(stage + 1, other);
    }
}

__global__ void __launch_bounds__(kArrangeThreads, 3)
    arrange_kernel(const __grid_constant__ ArrangeParams params) {
    __shared__ TokenTile found;
    const Problem& p = params.problem;
    const int parts = (params.stages + params.part - 1) / params.part;
    const int index = static_cast<int>(blockIdx.x) / parts;
    const int first = static_cast<int>(blockIdx.x) % parts * params.part;
    // Always: the memory that it writes may be what the kernel in front reads.
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (blockIdx.x == 0 && threadIdx.x == 0) *params.next = 0;
    if (p.indptr == nullptr)
        return arrange_tile(params, dense_tile(p, params.tile_tokens, index), first);
    if (threadIdx.x == 0) found.count = 0;
    __syncthreads();
    if (threadIdx.x < 32)
        scan_expert_tiles(p, params.tile_tokens, [&](int other, const TokenTile& tile) {
            if (other == index) found = tile;
        });
    __syncthreads();
    if (found.count > 0) arrange_tile(params, found, first);
}

}  // namespace espalier::linalg::cuda
