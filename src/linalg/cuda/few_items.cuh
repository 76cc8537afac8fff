// SPDX-License-Identifier: Apache-2.0
// What a block of the kernel for few tokens works on. An item is a row of tiles of outputs for a
// tile of tokens; a block's items lie in a row, so that most are of one tile of tokens, whose x it
// keeps. They are counted from 0, those of a dense product in front (Problem::lead) first.
#pragma once

#include "linalg/cuda/few_config.cuh"

namespace espalier::linalg::cuda {

template <class C>
class FewItems {
  public:
    // tiles: room for the list of an expert product's tiles of tokens.
    __device__ FewItems(const FewParams& params, TokenTile* tiles)
        : params_(params),
          p_(params.problem),
          tiles_(tiles),
          segment_(warp_id() % params.segments.count),
          row_warp_(warp_id() / params.segments.count) {}

    // --- which are the block's ------------------------------------------------------------------
    __device__ int count() const { return end_; }
    __device__ int lead_count() const { return lead_end_; }
    // Those of the product in front come before the others are known.
    __device__ void take_lead() {
        const Share share = share_of(params_.lead_items, static_cast<int>(blockIdx.x));
        lead_begin_ = share.first;
        lead_end_ = end_ = share.count;
    }
    // Items of token_tiles tiles. A block with one more of the first items is the last to have
    // one more of these.
    __device__ void take_own(int token_tiles) {
        const int block = static_cast<int>(blockIdx.x);
        const Share share = share_of(token_tiles * params_.row_blocks.value,
                                     C::kLeading ? params_.blocks.value - 1 - block : block);
        own_begin_ = share.first - lead_end_;
        end_ += share.count;
    }
    // The whole block. Returns how many tiles of tokens an expert product has.
    __device__ int list_tiles(int* listed) {
        if (warp_id() == 0) {
            const int count = list_expert_tiles(p_, C::kTokens, tiles_, params_.token_tiles);
            if (threadIdx.x == 0) *listed = count;
        }
        __syncthreads();
        return *listed;
    }

    // --- what one is ----------------------------------------------------------------------------
    __device__ bool leads(int item) const { return C::kLeading && item < lead_end_; }
    // Tile of tokens of an item; those of the product in front are told by their sign.
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

    // --- where its weights are ------------------------------------------------------------------
    // The chunks of the warp's tile r of outputs; the last tile may lie beyond the matrix.
    __device__ const std::byte* weights_of(int item, int group, int r, int chunk_bytes) const {
        return of_tile(p_.lead.weights, p_.weights + group * p_.matrix_bytes, p_.second.weights,
                       item, r, static_cast<std::int64_t>(chunks(item)) * chunk_bytes) +
               static_cast<std::int64_t>(first_chunk(item)) * chunk_bytes;
    }
    // Its scales, chunk_scales for each chunk.
    __device__ const float* scales_of(int item, int group, int r, int chunk_scales) const {
        return of_tile(p_.lead.scales, p_.scales + group * p_.matrix_scales, p_.second.scales, item,
                       r, static_cast<std::int64_t>(chunks(item)) * chunk_scales) +
               static_cast<std::int64_t>(first_chunk(item)) * chunk_scales;
    }

  private:
    struct Share {
        int first;
        int count;
    };
    __device__ Share share_of(int items, int block) const {
        const int each = params_.blocks.quotient(items);
        const int more = items - each * params_.blocks.value;
        return {block * each + min(block, more), each + (block < more ? 1 : 0)};
    }
    __device__ static int warp_id() { return static_cast<int>(threadIdx.x) / 32; }
    __device__ int place(int item) const { return item + (leads(item) ? lead_begin_ : own_begin_); }
    // Value of the product in front, of the first or of the second.
    template <typename T>
    __device__ const T* of_tile(const T* lead, const T* first, const T* second, int item, int r,
                                std::int64_t step) const {
        const int row_tile =
            (row_block(item) * (1 << params_.row_warps_log) + row_warp_) * C::kRowTiles;
        const int tile = min(row_tile + r, row_tiles(item) - 1);
        if (leads(item)) return lead + tile * step;
        const int own = static_cast<int>(tiles_of(p_.n));
        return tile < own ? first + tile * step : second + (tile - own) * step;
    }

    const FewParams& params_;
    const Problem& p_;
    TokenTile* tiles_;
    int segment_;
    int row_warp_;
    int end_ = 0;
    int lead_end_ = 0;
    int lead_begin_ = 0;  // what item 0 is of the product in front
    int own_begin_ = 0;   // and would be of the other
};

}  // namespace espalier::linalg::cuda
