// SPDX-License-Identifier: Apache-2.0
// Products for few tokens: bound by reading the weights. Tokens are the columns of mma.m16n8k16.
//
// A warp owns kRowTiles tiles of 16 outputs and one segment of k; the warps of a block have all
// segments of the block's outputs and add their sums through shared memory in ascending order.
// Weights come by bulk copies into a ring private to the warp: its lane 0 asks for a chunk as soon
// as the warp has used one up, so there is neither a producer nor a barrier of the block between.
// The first chunks are on their way before the kernel waits for the one in front of it. x goes
// straight to registers, and stays there where a segment is short.
//
// An expert product may lead with a dense one (Problem::lead): its items come first in every block,
// and its weights are asked for before the routing is known.
#pragma once

#include <limits>

#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/few_config.cuh"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

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
          chunk_bytes_(C::kCodes ? 2 * p_.half_bytes : 4096) {
        const int warps = static_cast<int>(blockDim.x) / 32;
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
        if constexpr (C::kLeading) return run_leading(listed);
        const bool experts = p_.indptr != nullptr;
        const bool settled = p_.overlap.inputs_settled;
        const bool known = !experts || settled || p_.routing_settled;  // which weights are read
        const bool early = !p_.overlap.holds_next && (!experts || settled);
        if (early) let_next_kernel_start();
        if (settled || p_.routing_settled) see_settled_memory();
        init_ring();
        if (!known) wait_for_previous_kernel();
        if (experts) list_tiles(listed);
        const int items = (experts ? *listed : params_.token_tiles) * params_.row_blocks.value;
        const Share share = share_of(items, static_cast<int>(blockIdx.x));
        own_begin_ = share.first;
        end_ = share.count;
        fill_ring();
        if constexpr (C::kBlocks) ask_scales(0);
        if (end_ > 0) locate(0);
        if (known && !settled) wait_for_previous_kernel();
        if (!early) let_next_kernel_start();
        multiply_items();
        // Who waits for this kernel waits for those in front of it, too.
        if (settled) wait_for_previous_kernel();
    }

  private:
    // The dense product's weights are asked for first. What is left of the ring is filled when the
    // routing is known.
    __device__ void run_leading(int* listed) {
        const bool known = p_.routing_settled;
        if (known) see_settled_memory();
        init_ring();
        const int block = static_cast<int>(blockIdx.x);
        const Share lead = share_of(params_.lead_items, block);
        lead_begin_ = lead.first;
        lead_end_ = end_ = lead.count;
        fill_ring();
        if constexpr (C::kBlocks) ask_scales(0);
        if (!known) wait_for_previous_kernel();
        list_tiles(listed);
        // Who has one more of the first product's items is the last to have one more of these.
        const Share own =
            share_of(*listed * params_.row_blocks.value, params_.blocks.value - 1 - block);
        own_begin_ = own.first - lead_end_;
        end_ += own.count;
        fill_ring();
        if constexpr (C::kBlocks) {
            if (lead_end_ == 0) ask_scales(0);
        }
        if (known) wait_for_previous_kernel();
        let_next_kernel_start();
        multiply_items();
    }

    __device__ void init_ring() const {
        if (lane_ != 0) return;
        for (int i = 0; i < params_.ring; ++i)
            init_barrier(barriers_ + static_cast<std::uint32_t>(8 * i), 1);
        fence_barrier_init();
    }
    __device__ void fill_ring() {
        if (lane_ == 0)
            while (filled_ < params_.ring && ask()) ++filled_;
        __syncwarp();
    }
    __device__ void list_tiles(int* listed) {
        if (warp_ == 0) {
            const int count = list_expert_tiles(p_, C::kTokens, tiles_, params_.token_tiles);
            if (lane_ == 0) *listed = count;
        }
        __syncthreads();
    }
    __device__ void multiply_items() {
        for (int item = 0; item < end_; ++item) {
            enter(item);
            multiply_segment(item);
            add_segments(item);
        }
    }

    // A block's items lie in a row: most are of one tile of tokens, whose x it keeps.
    struct Share {
        int first;
        int count;
    };
    __device__ Share share_of(int items, int block) const {
        const int each = params_.blocks.quotient(items);
        const int more = items - each * params_.blocks.value;
        return {block * each + min(block, more), each + (block < more ? 1 : 0)};
    }

    // --- items: the block's are counted from 0, those of the product in front first -------------
    __device__ bool leads(int item) const { return C::kLeading && item < lead_end_; }
    __device__ int place(int item) const { return item + (leads(item) ? lead_begin_ : own_begin_); }
    // Of tokens; those of the product in front are told from the others by their sign.
    __device__ int token_tile(int item) const {
        return leads(item) ? ~params_.lead_row_blocks.quotient(place(item))
                           : params_.row_blocks.quotient(place(item));
    }
    __device__ int row_block(int item) const {
        return leads(item) ? params_.lead_row_blocks.remainder(place(item))
                           : params_.row_blocks.remainder(place(item));
    }
    __device__ int row_tiles(int item) const {
        return leads(item) ? params_.lead_row_tiles : params_.row_tiles;
    }
    __device__ int chunks(int item) const {
        return static_cast<int>(chunks_of(leads(item) ? p_.lead.k : p_.k));
    }
    __device__ int first_chunk(int item) const {
        if constexpr (C::kSegment > 0) return segment_ * C::kSegment;
        return segment_ * (leads(item) ? params_.lead_segment : params_.segments.chunks);
    }
    __device__ int segment_chunks(int item) const {
        if constexpr (C::kSegment > 0) return C::kSegment;
        return min(leads(item) ? params_.lead_segment : params_.segments.chunks,
                   chunks(item) - first_chunk(item));
    }
    __device__ TokenTile tile_at(int index) const {
        if (C::kLeading && index < 0)
            return {0, ~index * C::kTokens, min(C::kTokens, p_.lead.rows - ~index * C::kTokens)};
        if (p_.indptr != nullptr) return tiles_[index];
        return dense_tile(p_, C::kTokens, index);
    }
    // The first of the warp's tiles of outputs, of which the last may lie beyond the matrix.
    __device__ int row_tile(int item) const {
        return (row_block(item) * (1 << params_.row_warps_log) + row_warp_) * C::kRowTiles;
    }
    // The chunks or the scales of an item's tile r of outputs: of the product in front, of the
    // first or of the second.
    template <typename T>
    __device__ const T* of_tile(const T* lead, const T* first, const T* second, int item, int r,
                                std::int64_t step) const {
        const int tile = min(row_tile(item) + r, row_tiles(item) - 1);
        if (leads(item)) return lead + tile * step;
        const int own = static_cast<int>(tiles_of(p_.n));
        return tile < own ? first + tile * step : second + (tile - own) * step;
    }
    __device__ const float* scales_of_tile(int item, int group, int r, std::int64_t step) const {
        return of_tile(p_.lead.scales, p_.scales + group * p_.matrix_scales, p_.second.scales, item,
                       r, step);
    }

    // --- weights --------------------------------------------------------------------------------
    // Asks for the next unit of this block's items, if there is one. One lane does.
    __device__ bool ask() {
        if (asked_item_ >= end_) return false;
        if (asked_chunk_ == 0) {
            const int group = tile_at(token_tile(asked_item_)).group;
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                asked_from_[r] =
                    of_tile(p_.lead.weights, p_.weights + group * p_.matrix_bytes,
                            p_.second.weights, asked_item_, r,
                            static_cast<std::int64_t>(chunks(asked_item_)) * chunk_bytes_) +
                    static_cast<std::int64_t>(first_chunk(asked_item_)) * chunk_bytes_;
        }
        const std::uint32_t barrier = barriers_ + static_cast<std::uint32_t>(8 * asked_slot_);
        const std::uint32_t to = ring_ + static_cast<std::uint32_t>(asked_slot_ * C::kRowTiles *
                                                                    C::kUnit * chunk_bytes_);
        const int segment = segment_chunks(asked_item_);
        const int count = min(C::kUnit, segment - asked_chunk_);
        const auto bytes = static_cast<std::uint32_t>(count * chunk_bytes_);
        arrive_expecting(barrier, C::kRowTiles * bytes);
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
            copy_passing_bytes(to + static_cast<std::uint32_t>(r * C::kUnit * chunk_bytes_),
                               asked_from_[r] + asked_chunk_ * chunk_bytes_, bytes, barrier);
        if (++asked_slot_ == params_.ring) asked_slot_ = 0;
        asked_chunk_ += count;
        if (asked_chunk_ == segment) {
            asked_chunk_ = 0;
            ++asked_item_;
        }
        return true;
    }

    // Lane l gets the scales of the segment's chunk l, where eight outputs share one.
    __device__ void ask_scales(int item) {
        if (item >= end_ || p_.scale_outputs != 2 || lane_ >= segment_chunks(item)) return;
        const int group = tile_at(token_tile(item)).group;
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r)
            scales_[r] = __ldg(
                reinterpret_cast<const float2*>(scales_of_tile(item, group, r, chunks(item) * 2)) +
                first_chunk(item) + lane_);
    }

    // --- x --------------------------------------------------------------------------------------
    // Where the lane's tokens of the item's tile are. Reads nothing that another kernel writes,
    // except of experts.
    __device__ void locate(int item) {
        tile_index_ = token_tile(item);
        tile_ = tile_at(tile_index_);
        fresh_ = true;
        const bool lead = leads(item);
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
        if (token_tile(item) != tile_index_) locate(item);
        if constexpr (C::kSegment == 0) {
            first_chunk_ = first_chunk(item);
            segment_chunks_ = segment_chunks(item);
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
    // Of the item at work.
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
        if (place + 1 < C::kUnit && chunk + 1 < entered_chunks()) return;
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
                    scales_of_tile(item, tile_.group, r, chunks(item) * kTileOutputs) +
                    (entered_chunk() + chunk) * kTileOutputs;
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
        const int first = row_block(item) * outputs;
        for (int i = static_cast<int>(threadIdx.x); i < outputs * tile_.count;
             i += static_cast<int>(blockDim.x)) {
            const int n = i & (outputs - 1), token = (i / kOutputs) >> params_.row_warps_log;
            const int row = tile_.first + token;
            if (first + n >= row_tiles(item) * 16) continue;
            const float sum = sum_of_segments(sums_of(n, token));
            if (leads(item))
                store_lead(row, first + n, sum);
            else if (p_.second.n > 0 && first + n >= p_.n)
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
        const int first = row_block(item) * columns;
        for (int i = static_cast<int>(threadIdx.x); i < columns * tile_.count;
             i += static_cast<int>(blockDim.x)) {
            const int n = i & (columns - 1), token = (2 * i / kOutputs) >> params_.row_warps_log;
            if (2 * (first + n) >= (leads(item) ? p_.lead.n : p_.n)) continue;
            const float* gate = sums_of(n / 8 * 16 + n % 8, token);
            const float value = gated(sum_of_segments(gate), sum_of_segments(gate + 8));
            if (leads(item))
                store_lead(tile_.first + token, first + n, value);
            else
                store(p_, tile_.group, tile_.first + token, first + n, value);
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
    int chunk_bytes_;
    std::uint32_t barriers_;
    std::uint32_t ring_;
    TokenTile* tiles_;
    int end_ = 0;  // of the block's items
    int lead_end_ = 0;
    int lead_begin_ = 0;  // what item 0 is of the product in front
    int own_begin_ = 0;   // and would be of the other
    int filled_ = 0;      // units of the ring that have been asked for at first

    // The next chunk to ask for.
    int asked_item_ = 0;
    int asked_chunk_ = 0;
    int asked_slot_ = 0;
    const std::byte* asked_from_[C::kRowTiles] = {};

    int slot_ = 0;
    std::uint32_t parity_ = 0;
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
    __shared__ int listed;  // an expert product's tiles of tokens
    FewTokens<C>(params, shared).run(&listed);
}

}  // namespace espalier::linalg::cuda
