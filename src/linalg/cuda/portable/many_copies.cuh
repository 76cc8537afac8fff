// SPDX-License-Identifier: Apache-2.0
// The portable kernel for many tokens (many_tokens.cuh): the copies that bring x and weights.
#pragma once

#include "base/cuda/memory.cuh"
#include "linalg/cuda/portable/many_config.cuh"

namespace espalier::linalg::cuda::portable {

// Tile of tokens of a block's item, and its first tile of outputs.
struct ManyItem {
    TokenTile tokens;
    int row_tile;

    __device__ ManyItem(const ManyParams& params, const TokenTile* tiles, int tile_tokens,
                        int block_tiles, int item) {
        const int index = item / params.row_blocks;
        tokens = params.problem.indptr != nullptr ? tiles[index]
                                                  : dense_tile(params.problem, tile_tokens, index);
        row_tile = (item - index * params.row_blocks) * block_tiles;
    }
};

// A row of x in a stage is 128 bytes; the halves of every second one are exchanged, so that the
// loads of eight lanes, four pieces of two rows, have no bank in common.
__device__ __forceinline__ std::uint32_t place_in_row(int row, int piece) {
    return static_cast<std::uint32_t>(row * 128 + (piece ^ (row % 2 * 4)) * 16);
}

// The stages of a block's items in a row: 64 inputs of the item's tokens, then of its outputs.
template <class C>
class ManyCopies {
  public:
    __device__ ManyCopies(const ManyParams& params, const TokenTile* tiles, std::uint32_t stages,
                          int items)
        : params_(params),
          p_(params.problem),
          tiles_(tiles),
          stages_(stages),
          items_(items),
          item_(static_cast<int>(blockIdx.x)) {}

    __device__ bool done() const { return item_ >= items_; }
    // Place of x of the item's tokens. Reads nothing that another kernel writes, except of experts.
    __device__ void enter() {
        if (done()) return;
        const ManyItem item(params_, tiles_, C::kTokens, C::kBlockTiles, item_);
        row_tile_ = item.row_tile;
        group_ = item.tokens.group;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int place = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / 8;
            x_[i] = -1;
            if (place >= item.tokens.count) continue;
            const int row = p_.source != nullptr ? p_.source[item.tokens.first + place]
                                                 : item.tokens.first + place;
            x_[i] = row * static_cast<int>(p_.x_stride) + group_ * static_cast<int>(p_.x_step);
        }
    }
    __device__ void copy_weights() const {
        constexpr int kTileWarps = C::kWarps > C::kBlockTiles ? C::kWarps / C::kBlockTiles : 1;
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int own = static_cast<int>(tiles_of(p_.n));
        const std::int64_t row_bytes = 2 * chunks_of(p_.k) * p_.half_bytes;
#pragma unroll
        for (int place = warp / kTileWarps; place < C::kBlockTiles;
             place += C::kWarps / kTileWarps) {
            const int tile = min(row_tile_ + place, params_.row_tiles - 1);
            const std::byte* from = tile < own
                                        ? p_.weights + group_ * p_.matrix_bytes + tile * row_bytes
                                        : p_.second.weights + (tile - own) * row_bytes;
            from += static_cast<std::int64_t>(stage_) * p_.half_bytes;
            const std::uint32_t to =
                slot() + static_cast<std::uint32_t>(C::kInputBytes + place * p_.half_bytes);
            for (int at = (warp % kTileWarps * 32 + lane) * 16; at < p_.half_bytes;
                 at += kTileWarps * 512)
                copy_async(to + static_cast<std::uint32_t>(at), from + at, true);
        }
    }
    __device__ void copy_x() const {
        const auto* x = reinterpret_cast<const std::uint16_t*>(p_.x);
        const int piece = static_cast<int>(threadIdx.x) % 8;
        const int input = stage_ * 64 + piece * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int place = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / 8;
            const bool exists = x_[i] >= 0 && input < p_.k;
            copy_async(slot() + place_in_row(place, piece), exists ? x + x_[i] + input : x, exists);
        }
    }
    __device__ void advance() {
        if (++slot_ == params_.stages) slot_ = 0;
        if (++stage_ < 2 * static_cast<int>(chunks_of(p_.k))) return;
        stage_ = 0;
        item_ += static_cast<int>(gridDim.x);
        enter();
    }

  private:
    static constexpr int kRowsAtOnce = C::kThreads / 8;
    static_assert(2 * kRowsAtOnce == C::kTokens);

    __device__ std::uint32_t slot() const {
        return stages_ + static_cast<std::uint32_t>(slot_ * params_.stage_bytes);
    }

    const ManyParams& params_;
    const Problem& p_;
    const TokenTile* tiles_;
    std::uint32_t stages_;
    int items_;
    int item_;
    int stage_ = 0;
    int slot_ = 0;
    int row_tile_ = 0;
    int group_ = 0;
    int x_[2] = {-1, -1};  // where the thread's rows begin; -1: no token
};

}  // namespace espalier::linalg::cuda::portable
