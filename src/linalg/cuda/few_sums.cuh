// SPDX-License-Identifier: Apache-2.0
// The end of an item: its segments' sums, one warp's each, are added through shared memory in
// ascending order and stored.
#pragma once

#include <cuda_bf16.h>

#include "base/cuda/barrier.cuh"
#include "linalg/cuda/few_items.cuh"

namespace espalier::linalg::cuda {

template <class C>
class FewSums {
  public:
    // sums: [warp][token][output], padded. read: a barrier in shared memory.
    __device__ FewSums(const FewParams& params, float* sums, std::uint32_t read)
        : params_(params), p_(params.problem), sums_(sums), read_(read) {}

    // The block synchronizes before anybody leaves.
    __device__ void init() const {
        if (C::kLeavesEarly && threadIdx.x == 0)
            init_barrier(read_, static_cast<int>(blockDim.x) / 32 * kArrivalsOfWarp);
    }
    // The warp has stored its part of an item, and goes on to the next one's products while others
    // still store.
    __device__ void leave() const {
        if constexpr (C::kLeavesEarly)
            arrive_as_warp(read_);
        else
            __syncthreads();
    }
    // Before a warp puts sums where those of the item before were.
    __device__ void wait_until_all_left() {
        if constexpr (C::kLeavesEarly) {
            wait(read_, parity_);
            parity_ ^= 1;
        }
    }

    // The warp's own: of tiles of outputs and of tokens, as mma leaves them.
    __device__ void put(const float (&sum)[C::kRowTiles][C::kTokenTiles][4]) const {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        float* mine = sums_ + warp * C::kTokens * C::kSumStride;
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    mine[(t * 8 + lane % 4 * 2 + e % 2) * C::kSumStride + r * 16 + lane / 4 +
                         e / 2 * 8] = sum[r][t][e];
    }
    // The whole block, when all have put theirs.
    __device__ void store(const FewItems<C>& items, int item, const TokenTile& tile) const {
        if (p_.gated)
            store_gated(items, item, tile);
        else
            store_outputs(items, item, tile);
    }

  private:
    static constexpr int kOutputs = 16 * C::kRowTiles;  // of a warp

    // Segments' sums of the block's output n.
    __device__ const float* sums_of(int n, int token) const {
        return sums_ +
               (n / kOutputs * params_.segments.count * C::kTokens + token) * C::kSumStride +
               n % kOutputs;
    }

    __device__ void store_outputs(const FewItems<C>& items, int item, const TokenTile& tile) const {
        const int outputs = kOutputs << params_.row_warps_log;
        const int first = items.row_block(item) * outputs;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < outputs * tile.count;
             i += static_cast<int>(blockDim.x)) {
            const int n = i & (outputs - 1), token = (i / kOutputs) >> params_.row_warps_log;
            const int row = tile.first + token;
            if (first + n >= items.row_tiles(item) * 16) continue;
            const float sum = sum_of_segments(sums_of(n, token));
            if (items.leads(item))
                store_lead(row, first + n, sum);
            else if (p_.second.n > 0 && first + n >= p_.n)
                p_.second.y[row * p_.second.y_stride + first + n - p_.n] = sum;
            else if (p_.query.cos_sin != nullptr)
                store_query(p_.query, row, first + n, sum,
                            [&] { return sum_of_segments(sums_of(n ^ 1, token)); });
            else if (first + n < p_.n)
                cuda::store(p_, tile.group, row, first + n, sum);
        }
    }

    // Eight of 16 outputs are the gate's and eight are up's.
    __device__ void store_gated(const FewItems<C>& items, int item, const TokenTile& tile) const {
        const int columns = kOutputs / 2 << params_.row_warps_log;
        const int first = items.row_block(item) * columns;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < columns * tile.count;
             i += static_cast<int>(blockDim.x)) {
            const int n = i & (columns - 1), token = (2 * i / kOutputs) >> params_.row_warps_log;
            if (2 * (first + n) >= (items.leads(item) ? p_.lead.n : p_.n)) continue;
            const float* gate = sums_of(n / 8 * 16 + n % 8, token);
            const float value = gated(sum_of_segments(gate), sum_of_segments(gate + 8));
            if (items.leads(item))
                store_lead(tile.first + token, first + n, value);
            else
                cuda::store(p_, tile.group, tile.first + token, first + n, value);
        }
    }

    __device__ void store_lead(int row, int n, float value) const {
        const std::int64_t at = row * p_.lead.y_stride + n;
        if (p_.gated)
            reinterpret_cast<__nv_bfloat16*>(p_.lead.y)[at] = __float2bfloat16_rn(value);
        else if (n < p_.lead.n)
            reinterpret_cast<float*>(p_.lead.y)[at] = value;
    }

    __device__ float sum_of_segments(const float* from) const {
        float sum = 0.0f;
#pragma unroll 1
        for (int s0 = 0; s0 < params_.segments.count; s0 += 8) {
            float part[8];
#pragma unroll
            for (int s = 0; s < 8; ++s)
                if (s0 + s < params_.segments.count)
                    part[s] = from[(s0 + s) * C::kTokens * C::kSumStride];
#pragma unroll
            for (int s = 0; s < 8; ++s)
                if (s0 + s < params_.segments.count)
                    sum = s0 + s == 0 ? part[s] : __fadd_rn(sum, part[s]);
        }
        return sum;
    }

    const FewParams& params_;
    const Problem& p_;
    float* sums_;
    std::uint32_t read_;
    std::uint32_t parity_ = 0;  // of the item before
};

}  // namespace espalier::linalg::cuda
