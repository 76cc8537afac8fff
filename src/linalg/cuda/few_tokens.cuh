// SPDX-License-Identifier: Apache-2.0
// Products for few tokens: bound by reading the weights. Tokens are the columns of mma.m16n8k16.
//
// A warp owns kRowTiles tiles of 16 outputs and one segment of k; the warps of a block have all
// segments of the block's outputs and add their sums through shared memory in ascending order.
// Weights come by bulk copies into a ring private to the warp: its lane 0 asks for a chunk as soon
// as the warp has used one up, so there is neither a producer nor a barrier of the block between.
// The first chunks are on their way before the kernel waits for the one in front of it. x goes
// straight to registers, and stays there where a segment is short.
#pragma once

#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/few_tokens.hpp"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct FewParams {
    Problem problem;
    Segments segments;
    int row_warps_log = 0;  // of the number of warps side by side over outputs
    int row_blocks = 0;     // of a group
    int row_tiles = 0;      // of a group's outputs, those of a second product included
    int ring = 0;           // units (of each row tile) in a warp's ring
    int token_tiles = 0;    // what the list of an expert product's tiles has room for
};

template <WeightCode kCode_, int kTokenTiles_, int kRowTiles_, int kSegment_, bool kVectorX_ = true>
struct FewConfig {
    static constexpr WeightCode kCode = kCode_;
    static constexpr bool kGroups = in_groups(kCode);  // a chain of sums for each 32 inputs,
    static constexpr bool kBlocks = in_blocks(kCode);  // for each 128
    static constexpr int kTokenTiles = kTokenTiles_;   // of 8 tokens
    static constexpr int kRowTiles = kRowTiles_;       // of 16 outputs, per warp
    static constexpr int kSegment = kSegment_;         // every segment's chunks; 0: as params say
    static constexpr bool kVectorX = kVectorX_;
    static constexpr int kTokens = 8 * kTokenTiles;
    static constexpr bool kCodes = kCode != WeightCode::bf16;
    static constexpr int kUnit = few_unit(kCode, kRowTiles);  // chunks of a ring's place
    static constexpr bool kKeepX = few_keeps_x(kCodes, kTokenTiles, kSegment);
    static constexpr bool kChunkOfX = !kKeepX && kTokenTiles <= 2;  // asked for at once
    static constexpr int kSumStride = few_sum_stride(kRowTiles);
    static constexpr int kRegisters = few_registers(kCodes, kTokenTiles, kRowTiles, kSegment);

    static constexpr std::size_t sum_bytes(int warps) {
        return static_cast<std::size_t>(warps) * kTokens * kSumStride * sizeof(float);
    }
    static constexpr std::size_t barrier_bytes(int warps, int ring) {
        return (static_cast<std::size_t>(warps) * static_cast<std::size_t>(ring) * 8 + 127) / 128 *
               128;
    }
    static constexpr std::size_t shared_bytes(int warps, int ring, int chunk_bytes,
                                              int token_tiles) {
        return sum_bytes(warps) + barrier_bytes(warps, ring) +
               static_cast<std::size_t>(warps * ring * kRowTiles * kUnit * chunk_bytes) +
               static_cast<std::size_t>(token_tiles) * sizeof(TokenTile);
    }
};

template <class C>
class FewTokens {
  public:
    __device__ FewTokens(const FewParams& params, std::byte* shared)
        : params_(params),
          p_(params.problem),
          sums_(reinterpret_cast<float*>(shared)),
          warp_(static_cast<int>(threadIdx.x) / 32),
          lane_(static_cast<int>(threadIdx.x) % 32),
          segment_(warp_ % params.segments.count),
          row_warp_(warp_ / params.segments.count),
          chunks_(static_cast<int>(chunks_of(p_.k))),
          chunk_bytes_(C::kCodes ? 2 * p_.half_bytes : 4096) {
        const int warps = static_cast<int>(blockDim.x) / 32;
        const int most = C::kSegment > 0 ? C::kSegment : params.segments.chunks;
        first_chunk_ = segment_ * most;
        segment_chunks_ = C::kSegment > 0 ? C::kSegment : min(most, chunks_ - first_chunk_);
        const std::uint32_t base =
            shared_address(shared) + static_cast<std::uint32_t>(C::sum_bytes(warps));
        barriers_ = base + static_cast<std::uint32_t>(warp_ * params.ring * 8);
        const auto rings = static_cast<std::uint32_t>(C::barrier_bytes(warps, params.ring));
        const int ring_bytes = params.ring * C::kRowTiles * C::kUnit * chunk_bytes_;
        ring_ = base + rings + static_cast<std::uint32_t>(warp_ * ring_bytes);
        tiles_ = reinterpret_cast<TokenTile*>(shared + C::sum_bytes(warps) + rings +
                                              static_cast<std::size_t>(warps * ring_bytes));
    }

    __device__ void run(int* listed) {
        const bool experts = p_.indptr != nullptr;
        const bool settled = p_.overlap.inputs_settled;
        const bool known = !experts || settled || p_.routing_settled;  // which weights are read
        const bool early = !p_.overlap.holds_next && (!experts || settled);
        if (early) let_next_kernel_start();
        if (settled || p_.routing_settled) see_settled_memory();
        if (lane_ == 0) {
            for (int i = 0; i < params_.ring; ++i)
                init_barrier(barriers_ + static_cast<std::uint32_t>(8 * i), 1);
            fence_barrier_init();
        }
        if (!known) wait_for_previous_kernel();
        if (experts) {
            if (warp_ == 0) {
                const int count = list_expert_tiles(p_, C::kTokens, tiles_, params_.token_tiles);
                if (lane_ == 0) *listed = count;
            }
            __syncthreads();
        }
        const int first =
            share_items((experts ? *listed : params_.token_tiles) * params_.row_blocks);
        asked_item_ = first;
        if (lane_ == 0)
            for (int i = 0; i < params_.ring; ++i) ask();
        __syncwarp();
        if constexpr (C::kBlocks) ask_scales(first);
        if (first < end_) locate(first / params_.row_blocks);
        if (known && !settled) wait_for_previous_kernel();
        if (!early) let_next_kernel_start();
        for (int item = first; item < end_; ++item) {
            enter(item / params_.row_blocks);
            multiply_segment(item);
            add_segments(item);
        }
        // Who waits for this kernel waits for those in front of it, too.
        if (settled) wait_for_previous_kernel();
    }

  private:
    // A block's items lie in a row: most are of one tile of tokens, whose x it keeps. Returns the
    // first.
    __device__ int share_items(int items) {
        const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
        const int each = items / blocks, more = items % blocks;
        const int first = block * each + min(block, more);
        end_ = first + each + (block < more ? 1 : 0);
        return first;
    }
    __device__ TokenTile tile_at(int index) const {
        if (p_.indptr != nullptr) return tiles_[index];
        return dense_tile(p_, C::kTokens, index);
    }
    // The first of the warp's tiles of outputs, of which the last may lie beyond the matrix.
    __device__ int row_tile(int item) const {
        return (item % params_.row_blocks * (1 << params_.row_warps_log) + row_warp_) *
               C::kRowTiles;
    }
    __device__ int existing(int row_tile) const { return min(row_tile, params_.row_tiles - 1); }
    // The chunks or the scales of a tile of outputs, of the first product or the second.
    template <typename T>
    __device__ const T* of_tile(const T* first, const T* second, int row_tile,
                                std::int64_t step) const {
        const int tile = existing(row_tile), own = static_cast<int>(tiles_of(p_.n));
        return tile < own ? first + tile * step : second + (tile - own) * step;
    }

    // --- weights --------------------------------------------------------------------------------
    // Asks for the next unit of this block's items, if there is one. One lane does.
    __device__ void ask() {
        if (asked_item_ >= end_) return;
        if (asked_chunk_ == 0) {
            const int group = tile_at(asked_item_ / params_.row_blocks).group;
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                asked_from_[r] = of_tile(p_.weights + group * p_.matrix_bytes, p_.second.weights,
                                         row_tile(asked_item_) + r,
                                         static_cast<std::int64_t>(chunks_) * chunk_bytes_) +
                                 static_cast<std::int64_t>(first_chunk_) * chunk_bytes_;
        }
        const std::uint32_t barrier = barriers_ + static_cast<std::uint32_t>(8 * asked_slot_);
        const std::uint32_t to = ring_ + static_cast<std::uint32_t>(asked_slot_ * C::kRowTiles *
                                                                    C::kUnit * chunk_bytes_);
        const int count = min(C::kUnit, segment_chunks_ - asked_chunk_);
        const auto bytes = static_cast<std::uint32_t>(count * chunk_bytes_);
        arrive_expecting(barrier, C::kRowTiles * bytes);
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
            copy_passing_bytes(to + static_cast<std::uint32_t>(r * C::kUnit * chunk_bytes_),
                               asked_from_[r] + asked_chunk_ * chunk_bytes_, bytes, barrier);
        if (++asked_slot_ == params_.ring) asked_slot_ = 0;
        asked_chunk_ += count;
        if (asked_chunk_ == segment_chunks_) {
            asked_chunk_ = 0;
            ++asked_item_;
        }
    }

    // Lane l gets the scales of the segment's chunk l, where eight outputs share one.
    __device__ void ask_scales(int item) {
        if (item >= end_ || p_.scale_outputs != 2 || lane_ >= segment_chunks_) return;
        const int group = tile_at(item / params_.row_blocks).group;
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
            scales_[r] = __ldg(reinterpret_cast<const float2*>(
                                   of_tile(p_.scales + group * p_.matrix_scales, p_.second.scales,
                                           row_tile(item) + r, chunks_ * 2)) +
                               first_chunk_ + lane_);
    }

    // --- x --------------------------------------------------------------------------------------
    // Where the lane's tokens of that tile are. Reads nothing that another kernel writes, except of
    // experts.
    __device__ void locate(int tile) {
        tile_index_ = tile;
        tile_ = tile_at(tile);
        fresh_ = true;
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t) {
            const int i = t * 8 + lane_ / 4;
            x_[t] = -1;
            if (i >= tile_.count) continue;
            const int row = p_.source != nullptr ? p_.source[tile_.first + i] : tile_.first + i;
            x_[t] = row * static_cast<int>(p_.x_stride) + tile_.group * static_cast<int>(p_.x_step);
        }
    }

    __device__ void enter(int tile) {
        if (tile != tile_index_) locate(tile);
        if constexpr (C::kKeepX) {
            if (!fresh_) return;
            fresh_ = false;
#pragma unroll
            for (int c = 0; c < C::kSegment; ++c)
#pragma unroll
                for (int t = 0; t < C::kTokenTiles; ++t) load_chunk(t, c, kept_[c][t]);
        }
    }

    // This lane's inputs of a whole chunk: one address where the chunk is whole.
    __device__ void load_chunk(int t, int chunk, uint4 (&x)[4]) const {
        const int first = (first_chunk_ + chunk) * 128;
        if (C::kVectorX && x_[t] >= 0 && first + 128 <= p_.k) {
            const auto* from =
                reinterpret_cast<const std::uint16_t*>(p_.x) + x_[t] + first + lane_ % 4 * 8;
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) x[pair] = load_global(from + pair * 32);
            return;
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) x[pair] = load_x(t, chunk, pair);
    }

    // Eight inputs of this lane's token for steps 2·pair and 2·pair + 1 of the segment's chunk.
    __device__ uint4 load_x(int t, int chunk, int pair) const {
        const int input = (first_chunk_ + chunk) * 128 + pair * 32 + lane_ % 4 * 8;
        if (x_[t] < 0 || input >= p_.k) return make_uint4(0, 0, 0, 0);
        const auto* from = reinterpret_cast<const std::uint16_t*>(p_.x) + x_[t] + input;
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
            for (int chunk = 0; chunk < segment_chunks_; ++chunk) multiply_chunk(item, chunk);
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
        if (place == 0) wait(barriers_ + static_cast<std::uint32_t>(8 * slot_), parity_);
        const std::uint32_t from =
            ring_ +
            static_cast<std::uint32_t>((slot_ * C::kRowTiles * C::kUnit + place) * chunk_bytes_);
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
                        multiply_first(sum, left[0], right[t].x, right[t].y);
                    else
                        multiply(sum, left[0], right[t].x, right[t].y);
                    multiply(sum, left[1], right[t].z, right[t].w);
                    if constexpr (C::kGroups) add_scaled(sum_[r][t], scale, sum);
                }
            }
        }
        if constexpr (C::kBlocks) add_block(item, chunk, block);
        if (place + 1 < C::kUnit && chunk + 1 < segment_chunks_) return;
        __syncwarp();
        if (lane_ == 0) ask();
        if (++slot_ == params_.ring) {
            slot_ = 0;
            parity_ ^= 1;
        }
    }

    // What inputs that share a scale sum to enters the segment's sum. scale: of outputs g and g
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
                    of_tile(p_.scales + tile_.group * p_.matrix_scales, p_.second.scales,
                            row_tile(item) + r, chunks_ * kTileOutputs) +
                    (first_chunk_ + chunk) * kTileOutputs;
                scale = {__ldg(from + lane_ / 4), __ldg(from + lane_ / 4 + 8)};
            }
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t) add_scaled(sum_[r][t], scale, block[r][t]);
        }
    }

    // --- segments -------------------------------------------------------------------------------
    __device__ void add_segments(int item) {
        if constexpr (C::kBlocks) ask_scales(item + 1);
        float* mine = sums_ + warp_ * C::kTokens * C::kSumStride;
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
            for (int t = 0; t < C::kTokenTiles; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    mine[(t * 8 + lane_ % 4 * 2 + e % 2) * C::kSumStride + r * 16 + lane_ / 4 +
                         e / 2 * 8] = sum_[r][t][e];
        __syncthreads();
        if (p_.gated)
            store_gated(item);
        else
            store_outputs(item);
        if (item + 1 < end_) __syncthreads();
    }

    static constexpr int kOutputs = 16 * C::kRowTiles;  // of a warp

    // Where the segments' sums of the block's output n are.
    __device__ const float* sums_of(int n, int token) const {
        return sums_ +
               (n / kOutputs * params_.segments.count * C::kTokens + token) * C::kSumStride +
               n % kOutputs;
    }

    __device__ void store_outputs(int item) {
        const int outputs = kOutputs << params_.row_warps_log;
        const int first = item % params_.row_blocks * outputs;
        for (int i = static_cast<int>(threadIdx.x); i < outputs * tile_.count;
             i += static_cast<int>(blockDim.x)) {
            const int n = i & (outputs - 1), token = (i / kOutputs) >> params_.row_warps_log;
            const int row = tile_.first + token;
            if (first + n >= params_.row_tiles * 16) continue;
            const float sum = sum_of_segments(sums_of(n, token));
            if (p_.second.n > 0 && first + n >= p_.n)
                p_.second.y[row * p_.second.y_stride + first + n - p_.n] = sum;
            else if (p_.query.cos_sin != nullptr)
                store_query(p_.query, row, first + n, sum,
                            [&] { return sum_of_segments(sums_of(n ^ 1, token)); });
            else if (first + n < p_.n)
                store(p_, tile_.group, row, first + n, sum);
        }
    }

    // Of 16 outputs, eight are the gate's and eight are up's.
    __device__ void store_gated(int item) {
        const int columns = kOutputs / 2 << params_.row_warps_log;
        const int first = item % params_.row_blocks * columns;
        for (int i = static_cast<int>(threadIdx.x); i < columns * tile_.count;
             i += static_cast<int>(blockDim.x)) {
            const int n = i & (columns - 1), token = (2 * i / kOutputs) >> params_.row_warps_log;
            if (2 * (first + n) >= p_.n) continue;
            const float* gate = sums_of(n / 8 * 16 + n % 8, token);
            store(p_, tile_.group, tile_.first + token, first + n,
                  gated(sum_of_segments(gate), sum_of_segments(gate + 8)));
        }
    }

    __device__ float sum_of_segments(const float* from) const {
        float sum = 0.0f;
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
    float* sums_;  // [warp][token][output], padded
    int warp_;
    int lane_;
    int segment_;
    int row_warp_;
    int chunks_;
    int chunk_bytes_;
    int first_chunk_;
    int segment_chunks_;
    std::uint32_t barriers_;
    std::uint32_t ring_;
    TokenTile* tiles_;
    int end_ = 0;  // of the block's items

    // The next chunk to ask for.
    int asked_item_ = 0;
    int asked_chunk_ = 0;
    int asked_slot_ = 0;
    const std::byte* asked_from_[C::kRowTiles] = {};

    int slot_ = 0;
    std::uint32_t parity_ = 0;
    int tile_index_ = -1;
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
    __shared__ int listed;  // an expert product's tiles of tokens
    FewTokens<C>(params, shared).run(&listed);
}

}  // namespace espalier::linalg::cuda
