// SPDX-License-Identifier: Apache-2.0
// Products for many tokens by mma.m16n8k16: bound by the tensor cores. A tile is 128 outputs × 128
// tokens, or 64 or 32; a warp has 32 × 32 of it.
//
// A block goes through its tiles. All of its threads ask for 64 inputs of x and of the weights at a
// time, by copies of 16 bytes into stages (many_copies.cuh), as many stages ahead as there are; one
// barrier of the block a stage says that it is there and that the one before has been read.
//
// The sums are those of few_tokens.cuh: a chain of steps per segment (of codes: per 128 or 32
// inputs, which enter the segment's sum by their scale), segments added in ascending order.
#pragma once

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/many_store.cuh"
#include "linalg/cuda/portable/many_copies.cuh"

namespace espalier::linalg::cuda::portable {

template <class C>
class ManyTokens {
  public:
    __device__ ManyTokens(const ManyParams& params, const TokenTile* tiles, std::uint32_t stages,
                          int items)
        : params_(params),
          p_(params.problem),
          tiles_(tiles),
          stages_(stages),
          items_(items),
          warp_row_(static_cast<int>(threadIdx.x) / 32 % C::kRows),
          warp_column_(static_cast<int>(threadIdx.x) / 32 / C::kRows),
          lane_(static_cast<int>(threadIdx.x) % 32),
          copies_(params, tiles, stages, items) {}

    // Weights of the first stages: no other kernel writes them.
    __device__ void ask_ahead() {
        copies_.enter();
        ManyCopies<C> ahead = copies_;
        for (int stage = 0; stage + 1 < params_.stages && !ahead.done(); ++stage) {
            ahead.copy_weights();
            ahead.advance();
        }
    }
    __device__ void run() {
        for (int stage = 0; stage + 1 < params_.stages; ++stage) {
            if (!copies_.done()) {
                copies_.copy_x();
                copies_.advance();
            }
            commit_copies();
        }
        for (int item = static_cast<int>(blockIdx.x); item < items_;
             item += static_cast<int>(gridDim.x)) {
            const ManyItem entered(params_, tiles_, C::kTokens, C::kBlockTiles, item);
            multiply_item(entered);
            store(entered);
        }
    }

  private:
    using Sums = float[C::kRowTiles][C::kTokenTiles][4];

    __device__ void multiply_item(const ManyItem& item) {
        const int chunks = static_cast<int>(chunks_of(p_.k));
        clear(chain_);
        for (int first = 0; first < chunks; first += params_.segments.chunks) {
            if constexpr (C::kCodes) clear(segment_);
            const int end = min(first + params_.segments.chunks, chunks);
            for (int chunk = first; chunk < end; ++chunk) multiply_chunk(item, chunk);
            end_segment(first == 0);
        }
    }

    __device__ void multiply_chunk(const ManyItem& item, int chunk) {
        float2 scales[C::kRowTiles] = {};
        if constexpr (C::kBlocks)
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r) scales[r] = block_scales(item, r, chunk);
        multiply_stage();
        multiply_stage();
        if constexpr (C::kBlocks) {
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
                for (int t = 0; t < C::kTokenTiles; ++t)
                    add_scaled(segment_[r][t], scales[r], chain_[r][t]);
            clear(chain_);
        }
    }

    __device__ void multiply_stage() {
        next_stage();
        const std::uint32_t x = stages_ + static_cast<std::uint32_t>(slot_ * params_.stage_bytes);
        const std::uint32_t weights =
            x +
            static_cast<std::uint32_t>(C::kInputBytes + warp_row_ * C::kRowTiles * p_.half_bytes);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            uint4 left[C::kRowTiles][2];
            float2 scales[C::kRowTiles] = {};
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r) {
                const std::uint32_t half = weights + static_cast<std::uint32_t>(r * p_.half_bytes);
                load_left<C::kCode>(half, pair, lane_, left[r]);
                if constexpr (C::kGroups)
                    scales[r] =
                        group_scales<C::kCode>(half, pair, lane_, p_.two_groups, p_.wide_scales);
            }
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t) {
                const int row = warp_column_ * C::kWarpTokens + t * 8 + lane_ / 4;
                const uint4 right = load_shared(x + place_in_row(row, pair * 4 + lane_ % 4));
                multiply_tile(t, left, scales, right);
            }
        }
        if (++slot_ == params_.stages) slot_ = 0;
    }

    // Until the oldest stage is there; asks for the one whose place has become free.
    __device__ void next_stage() {
        if (params_.stages == 2)
            wait_copies<0>();
        else if (params_.stages == 3)
            wait_copies<1>();
        else
            wait_copies<2>();
        __syncthreads();
        if (!copies_.done()) {
            copies_.copy_weights();
            copies_.copy_x();
            copies_.advance();
        }
        commit_copies();
    }

    __device__ void multiply_tile(int t, const uint4 (&left)[C::kRowTiles][2],
                                  const float2 (&scales)[C::kRowTiles], const uint4& right) {
        if constexpr (C::kGroups) {
            float chain[C::kRowTiles][4];
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                multiply_first_bf16(chain[r], left[r][0], right.x, right.y);
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                multiply_bf16(chain[r], left[r][1], right.z, right.w);
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r) add_scaled(segment_[r][t], scales[r], chain[r]);
        } else {
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                multiply_bf16(chain_[r][t], left[r][0], right.x, right.y);
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                multiply_bf16(chain_[r][t], left[r][1], right.z, right.w);
        }
    }

    // Scales of the lane's outputs g and g + 8 of tile r.
    __device__ float2 block_scales(const ManyItem& item, int r, int chunk) const {
        const int own = static_cast<int>(tiles_of(p_.n));
        const int tile = min(item.row_tile + warp_row_ * C::kRowTiles + r, params_.row_tiles - 1);
        const std::int64_t at = tile < own ? tile : tile - own;
        const float* from =
            (tile < own ? p_.scales + item.tokens.group * p_.matrix_scales : p_.second.scales) +
            (at * chunks_of(p_.k) + chunk) * p_.scale_outputs;
        const bool apart = p_.scale_outputs != 2;
        return {__ldg(from + (apart ? lane_ / 4 : 0)), __ldg(from + (apart ? lane_ / 4 + 8 : 1))};
    }

    __device__ void end_segment(bool first) {
        Sums& sums = segment_sums();
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    total_[r][t][e] =
                        first ? sums[r][t][e] : __fadd_rn(total_[r][t][e], sums[r][t][e]);
        if constexpr (!C::kCodes) clear(chain_);
    }

    __device__ void store(const ManyItem& item) const {
        TokenTile tile = item.tokens;
        tile.first += warp_column_ * C::kWarpTokens;
        tile.count -= warp_column_ * C::kWarpTokens;
        const int own = static_cast<int>(tiles_of(p_.n));
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
            const int row_tile = item.row_tile + warp_row_ * C::kRowTiles + r;
            float sums[4 * C::kTokenTiles];
#pragma unroll
            for (int i = 0; i < 4 * C::kTokenTiles; ++i) sums[i] = total_[r][i / 4][i % 4];
            const int output = row_tile * 16 + lane_ / 4;
            if (row_tile < own)
                store_sums<C::kWarpTokens>(sums, p_, tile, output);
            else
                store_all<C::kWarpTokens>(sums, tile, output - own * 16,
                                          {p_.second.y_stride, 0, p_.second.n}, p_.second.y,
                                          [](float* to, float sum) { *to = sum; });
        }
    }

    // The sum over inputs that share a scale enters the segment's sum.
    __device__ static void add_scaled(float (&to)[4], float2 scale, const float (&sum)[4]) {
        to[0] = fmaf(scale.x, sum[0], to[0]);
        to[1] = fmaf(scale.x, sum[1], to[1]);
        to[2] = fmaf(scale.y, sum[2], to[2]);
        to[3] = fmaf(scale.y, sum[3], to[3]);
    }
    __device__ static void clear(Sums& sums) {
#pragma unroll
        for (int i = 0; i < C::kRowTiles * C::kTokenTiles * 4; ++i)
            sums[i / 4 / C::kTokenTiles][i / 4 % C::kTokenTiles][i % 4] = 0.0f;
    }
    __device__ Sums& segment_sums() {
        if constexpr (C::kCodes)
            return segment_;
        else
            return chain_;
    }

    const ManyParams& params_;
    const Problem& p_;
    const TokenTile* tiles_;
    std::uint32_t stages_;
    int items_;
    int warp_row_, warp_column_, lane_;
    int slot_ = 0;  // of the stage that is multiplied
    ManyCopies<C> copies_;
    Sums chain_;    // what the tensor cores add to; integer codes: unused
    Sums segment_;  // codes: the segment's sum
    Sums total_;    // of the segments before
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    many_tokens_kernel(const __grid_constant__ ManyParams params) {
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ int listed;
    const Problem& p = params.problem;
    auto* tiles = reinterpret_cast<TokenTile*>(shared + params.stages * params.stage_bytes);
    const bool experts = p.indptr != nullptr;
    const bool settled = params.grant.early;
    const bool early = !params.grant.holds_next && (!experts || settled);
    if (early) let_next_kernel_start();
    if (settled) see_settled_memory();
    if (experts && !settled) wait_for_previous_kernel();
    if (experts && threadIdx.x < 32) {
        const int count = list_expert_tiles(p, C::kTokens, tiles, params.token_tiles);
        if (threadIdx.x == 0) listed = count;
    }
    __syncthreads();
    ManyTokens<C> tokens(params, tiles, shared_address(shared),
                         (experts ? listed : params.token_tiles) * params.row_blocks);
    tokens.ask_ahead();
    if (!settled) wait_for_previous_kernel();
    if (!early) let_next_kernel_start();
    tokens.run();
    // A kernel that waits for this one also waits for all earlier ones.
    if (settled) wait_for_previous_kernel();
}

}  // namespace espalier::linalg::cuda::portable
