// SPDX-License-Identifier: Apache-2.0
// Products for few tokens: bound by reading the weights. Tokens are the columns of mma.m16n8k16.
//
// A warp owns kRowTiles tiles of 16 outputs and one segment of k; the warps of a block have all
// segments of the block's outputs (few_items.cuh) and add their sums through shared memory in
// ascending order (few_sums.cuh). Weights come into a ring private to the warp
// (FewRing), the first of them before the kernel waits for the one in front of it. x goes
// straight to registers, and stays there where a segment is short.
//
// An expert product may lead with a dense one (Problem::lead): its items come first in every block,
// and its weights are asked for before the routing is known.
#pragma once

#include <limits>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/few_items.cuh"
#include "linalg/cuda/few_sums.cuh"

namespace espalier::linalg::cuda {

// Offsets of a block's parts of shared memory: sums, barriers of rings, rings, tiles of tokens.
template <class C>
struct FewPlaces {
    int chunk_bytes;
    std::uint32_t barriers;  // the warp's
    std::uint32_t ring;      // the warp's
    TokenTile* tiles;

    __device__ FewPlaces(const FewParams& params, std::byte* shared)
        : chunk_bytes(C::kCodes ? 2 * params.problem.half_bytes : 4096) {
        const int warps = static_cast<int>(blockDim.x) / 32;
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const std::size_t rings = C::sum_bytes(warps) + C::barrier_bytes(warps, params.ring);
        const int ring_bytes = params.ring * C::kRowTiles * C::kUnit * chunk_bytes;
        barriers = shared_address(shared + C::sum_bytes(warps)) +
                   static_cast<std::uint32_t>(warp * params.ring * 8);
        ring = shared_address(shared + rings) + static_cast<std::uint32_t>(warp * ring_bytes);
        tiles = reinterpret_cast<TokenTile*>(shared + rings +
                                             static_cast<std::size_t>(warps * ring_bytes));
    }
};

template <class C>
class FewTokens {
  public:
    __device__ FewTokens(const FewParams& params, std::byte* shared, std::uint64_t* read)
        : FewTokens(params, shared, read, FewPlaces<C>(params, shared)) {}

    __device__ void run(int* listed) {
        if constexpr (C::kLeading) return run_leading(listed);
        const bool experts = p_.indptr != nullptr;
        const bool settled = params_.grant.early;
        const bool known = !experts || settled || params_.grant.ahead;  // which weights are read
        const bool early = !params_.grant.holds_next && (!experts || settled);
        if (early) let_next_kernel_start();
        if (settled || params_.grant.ahead) see_settled_memory();
        ring_.init();
        sums_.init();
        if (!known) wait_for_previous_kernel();
        items_.take_own(experts ? items_.list_tiles(listed) : params_.token_tiles);
        ring_.fill(items_);
        if constexpr (C::kBlocks) ask_scales(0);
        if (items_.count() > 0) locate(0);
        if (known && !settled) wait_for_previous_kernel();
        if (!early) let_next_kernel_start();
        multiply_items();
        // A kernel that waits for this one also waits for all earlier ones.
        if (settled) wait_for_previous_kernel();
    }

  private:
    __device__ FewTokens(const FewParams& params, std::byte* shared, std::uint64_t* read,
                         const FewPlaces<C>& places)
        : params_(params),
          p_(params.problem),
          lane_(static_cast<int>(threadIdx.x) % 32),
          segment_(static_cast<int>(threadIdx.x) / 32 % params.segments.count),
          chunk_bytes_(places.chunk_bytes),
          items_(params, places.tiles),
          ring_(params, places.barriers, places.ring, places.chunk_bytes),
          sums_(params, reinterpret_cast<float*>(shared), shared_address(read)) {}

    // The dense product's weights are asked for first. What is left of the ring is filled when the
    // routing is known.
    __device__ void run_leading(int* listed) {
        const bool known = params_.grant.ahead;
        if (known) see_settled_memory();
        ring_.init();
        sums_.init();
        items_.take_lead();
        ring_.fill(items_);
        if constexpr (C::kBlocks) ask_scales(0);
        if (!known) wait_for_previous_kernel();
        items_.take_own(items_.list_tiles(listed));
        ring_.fill(items_);
        if constexpr (C::kBlocks) {
            if (items_.lead_count() == 0) ask_scales(0);
        }
        if (known) wait_for_previous_kernel();
        let_next_kernel_start();
        multiply_items();
    }

    __device__ void multiply_items() {
        for (int item = 0; item < items_.count(); ++item) {
            enter(item);
            multiply_segment(item);
            if constexpr (C::kBlocks) ask_scales(item + 1);
            if (item > 0) sums_.wait_until_all_left();
            sums_.put(sum_);
            __syncthreads();
            sums_.store(items_, item, tile_);
            if (item + 1 < items_.count()) sums_.leave();
        }
    }

    // Lane l gets the scales of the segment's chunk l, where eight outputs share one.
    __device__ void ask_scales(int item) {
        if (item >= items_.count() || p_.scale_outputs != 2 || lane_ >= items_.segment_chunks(item))
            return;
        const int group = items_.tile_at(items_.token_tile(item)).group;
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
            scales_[r] =
                __ldg(reinterpret_cast<const float2*>(items_.scales_of(item, group, r, 2)) + lane_);
    }

    // --- x --------------------------------------------------------------------------------------
    // Where the lane's tokens of the item's tile are. Reads nothing that another kernel writes,
    // except of experts.
    __device__ void locate(int item) {
        tile_index_ = items_.token_tile(item);
        tile_ = items_.tile_at(tile_index_);
        fresh_ = true;
        const bool lead = items_.leads(item);
        x_from_ = reinterpret_cast<const std::uint16_t*>(lead ? p_.lead.x : p_.x);
        const auto stride = static_cast<int>(lead ? p_.lead.x_stride : p_.x_stride);
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t) {
            const int i = t * 8 + lane_ / 4;
            x_[t] = -1;
            if (i >= tile_.count) continue;
            const int row =
                p_.source != nullptr && !lead ? p_.source[tile_.first + i] : tile_.first + i;
            x_[t] = row * stride + tile_.group * static_cast<int>(p_.x_step);
        }
    }

    __device__ void enter(int item) {
        if (items_.token_tile(item) != tile_index_) locate(item);
        if constexpr (C::kSegment == 0) {
            first_chunk_ = items_.first_chunk(item);
            segment_chunks_ = items_.segment_chunks(item);
        }
        if constexpr (C::kKeepX) {
            if (!fresh_) return;
            fresh_ = false;
#pragma unroll
            for (int c = 0; c < C::kSegment; ++c)
#pragma unroll
                for (int t = 0; t < C::kTokenTiles; ++t) load_chunk(t, c, kept_[c][t]);
        }
    }
    // First chunk of the item at work.
    __device__ int entered_chunk() const {
        return C::kSegment > 0 ? segment_ * C::kSegment : first_chunk_;
    }
    __device__ int entered_chunks() const {
        return C::kSegment > 0 ? C::kSegment : segment_chunks_;
    }

    // This lane's inputs of a whole chunk: one address where the chunk is whole.
    __device__ void load_chunk(int t, int chunk, uint4 (&x)[4]) const {
        const int first = (entered_chunk() + chunk) * 128;
        if (C::kVectorX && x_[t] >= 0 && (C::kLeading || first + 128 <= p_.k)) {
            const std::uint16_t* from = x_from_ + x_[t] + first + lane_ % 4 * 8;
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) x[pair] = load_global(from + pair * 32);
            return;
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) x[pair] = load_x(t, chunk, pair);
    }

    // Eight inputs of this lane's token for steps 2·pair and 2·pair + 1 of the segment's chunk.
    __device__ uint4 load_x(int t, int chunk, int pair) const {
        const int input = (entered_chunk() + chunk) * 128 + pair * 32 + lane_ % 4 * 8;
        if (x_[t] < 0 || (!C::kLeading && input >= p_.k)) return make_uint4(0, 0, 0, 0);
        const std::uint16_t* from = x_from_ + x_[t] + input;
        if constexpr (C::kVectorX) return load_global(from);
        std::uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (input + i < p_.k) word[i / 2] |= std::uint32_t{from[i]} << i % 2 * 16;
        return make_uint4(word[0], word[1], word[2], word[3]);
    }

    // --- products -------------------------------------------------------------------------------
    __device__ void multiply_segment(int item) {
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum_[r][t][e] = 0.0f;
        if constexpr (C::kSegment > 0) {
#pragma unroll
            for (int chunk = 0; chunk < C::kSegment; ++chunk) multiply_chunk(item, chunk);
        } else {
            for (int chunk = 0; chunk < entered_chunks(); ++chunk) multiply_chunk(item, chunk);
        }
    }

    __device__ void multiply_chunk(int item, int chunk) {
        uint4 x[C::kChunkOfX ? C::kTokenTiles : 1][4];
        uint4 next[C::kTokenTiles];  // otherwise two steps ahead
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t) {
            if constexpr (C::kChunkOfX) {
                load_chunk(t, chunk, x[t]);
            } else if constexpr (!C::kKeepX) {
                next[t] = load_x(t, chunk, 0);
            }
        }
        const int place = chunk % C::kUnit;  // in its unit
        if (place == 0) ring_.wait_for_unit();
        const std::uint32_t from = ring_.chunk(place);
        float block[C::kRowTiles][C::kTokenTiles][4] = {};  // of inputs that share a scale
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            uint4 right[C::kTokenTiles];
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t) {
                if constexpr (C::kKeepX) {
                    right[t] = kept_[chunk][t][pair];
                } else if constexpr (C::kChunkOfX) {
                    right[t] = x[t][pair];
                } else {
                    right[t] = next[t];
                    if (pair < 3) next[t] = load_x(t, chunk, pair + 1);
                }
            }
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r) {
                const std::uint32_t half =
                    from +
                    static_cast<std::uint32_t>((2 * r * C::kUnit + pair / 2) * chunk_bytes_ / 2);
                uint4 left[2];
                load_left<C::kCode>(half, pair % 2, lane_, left);
                float2 scale{};
                if constexpr (C::kGroups)
                    scale = group_scales<C::kCode>(half, pair % 2, lane_, p_.two_groups,
                                                   p_.wide_scales);
#pragma unroll
                for (int t = 0; t < C::kTokenTiles; ++t) {
                    if (C::kTokenTiles > 1 && t * 8 >= tile_.count) continue;
                    float(&sum)[4] = C::kCodes ? block[r][t] : sum_[r][t];
                    if constexpr (C::kGroups)
                        multiply_first_bf16(sum, left[0], right[t].x, right[t].y);
                    else
                        multiply_bf16(sum, left[0], right[t].x, right[t].y);
                    multiply_bf16(sum, left[1], right[t].z, right[t].w);
                    if constexpr (C::kGroups) add_scaled(sum_[r][t], scale, sum);
                }
            }
        }
        if constexpr (C::kBlocks) add_block(item, chunk, block);
        if (place + 1 < C::kUnit && chunk + 1 < entered_chunks()) return;
        ring_.free_unit(items_);
    }

    // The sum over inputs that share a scale enters the segment's sum. scale: of outputs g and g
    // + 8.
    __device__ static void add_scaled(float (&to)[4], float2 scale, const float (&sum)[4]) {
        to[0] = fmaf(scale.x, sum[0], to[0]);
        to[1] = fmaf(scale.x, sum[1], to[1]);
        to[2] = fmaf(scale.y, sum[2], to[2]);
        to[3] = fmaf(scale.y, sum[3], to[3]);
    }
    __device__ void add_block(int item, int chunk,
                              const float (&block)[C::kRowTiles][C::kTokenTiles][4]) {
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
            float2 scale{__shfl_sync(~0u, scales_[r].x, chunk),
                         __shfl_sync(~0u, scales_[r].y, chunk)};
            if (p_.scale_outputs != 2) {
                const float* from =
                    items_.scales_of(item, tile_.group, r, kTileOutputs) + chunk * kTileOutputs;
                scale = {__ldg(from + lane_ / 4), __ldg(from + lane_ / 4 + 8)};
            }
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t) add_scaled(sum_[r][t], scale, block[r][t]);
        }
    }

    const FewParams& params_;
    const Problem& p_;
    int lane_;
    int segment_;
    int chunk_bytes_;
    FewItems<C> items_;
    FewRing<C> ring_;
    FewSums<C> sums_;

    int tile_index_ = std::numeric_limits<int>::min();
    int first_chunk_ = 0;  // of the item at work, where segments differ
    int segment_chunks_ = 0;
    const std::uint16_t* x_from_ = nullptr;
    bool fresh_ = false;  // the tile's x is not in kept_ yet
    TokenTile tile_{};
    int x_[C::kTokenTiles];  // where the lane's tokens begin in x; -1: no token
    uint4 kept_[C::kKeepX ? C::kSegment : 1][C::kTokenTiles][4];
    float sum_[C::kRowTiles][C::kTokenTiles][4];
    float2 scales_[C::kRowTiles] = {};
};

template <class C>
__global__ void __maxnreg__(C::kRegisters)
    few_tokens_kernel(const __grid_constant__ FewParams params) {
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ int listed;          // an expert product's tiles of tokens
    __shared__ std::uint64_t read;  // a barrier: an item's sums have been read
    FewTokens<C>(params, shared, &read).run(&listed);
}

}  // namespace espalier::linalg::cuda
