// SPDX-License-Identifier: Apache-2.0
// The kernel for many tokens (many_tokens.cuh): the warpgroup that brings x and weights.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/memory.cuh"
#include "linalg/cuda/hopper/many_tiles.cuh"

namespace espalier::linalg::cuda {

// A warp brings 32 tokens, and as much of the eight tiles of outputs as of the tile's tokens. Four
// tokens' 64 inputs come with one load: lane = 8 · token + unit, where unit 4j + t is the eight
// inputs that lane t of a fragment has for steps 2j and 2j + 1; its four words go to where wgmma
// looks for them. (Copies that need no registers can move 4 bytes at a time: four times the
// instructions, and the bound of the kernel.)
template <class C>
class Producer {
  public:
    __device__ Producer(const ManyParams& params, const ManyShared<C>& shared)
        : params_(params), p_(params.problem), shared_(shared) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        part_ = warp % C::kStageWarps;
        token_ = static_cast<int>(threadIdx.x) % 32 / 8;
        unit_ = static_cast<int>(threadIdx.x) % 8;
        stages_ = 2 * shared_.chunks;
        row_bytes_ = 2 * static_cast<int>(chunks_of(p_.k)) * p_.half_bytes;
#pragma unroll
        for (int word = 0; word < 4; ++word)
            to_[word] = static_cast<std::uint32_t>(part_ * 4096 + token_ * 128 + unit_ / 4 * 64 +
                                                   (word ^ token_) * 16 + unit_ % 4 * 4);
        first_ = C::kStageStep == 1 ? 0 : warp / C::kStageWarps;
        put_.item = shared_.first;
        for (int before = 0; before < first_; ++before) {
            cursor_.advance(1);
            put_.template advance<1>(stages_, shared_.stride);
        }
        loaded_ = put_;
    }

    // The first item's weights, as far as there is room: no other kernel writes them.
    __device__ void ask_ahead() {
        if (shared_.first >= shared_.items) return;
        for (int stage = first_; stage < min(C::kStages, stages_); stage += C::kStageStep) {
            if (threadIdx.x % 32 == 0) ask_weights({shared_.first, stage}, stage);
            ++ahead_;
        }
        __syncwarp();
    }

    // This warp's stages of all items in a row, the loads of two ahead of the one that is put.
    __device__ void run() {
        if (shared_.first >= shared_.items) return;
        const int all =
            (shared_.items - shared_.first + shared_.stride - 1) / shared_.stride * stages_;
        left_ = unloaded_ = (all - first_ + C::kStageStep - 1) / C::kStageStep;
        if (all <= first_) return;
        uint4 x[3][8];
        load(x[0]);
        load(x[1]);
        while (true) {  // written out: a loop would leave x in memory
            load(x[2]);
            if (put(x[0])) return;
            load(x[0]);
            if (put(x[1])) return;
            load(x[1]);
            if (put(x[2])) return;
        }
    }

  private:
    static constexpr int kTiles = C::kOutputs / 16 / C::kStageWarps;  // of outputs, a warp's

    // True if this is the first of the warp's stages of an item.
    __device__ static bool enters(const ItemStage& at, int last_item) {
        return C::kStageStep == 1 ? at.stage == 0 : at.item != last_item;
    }

    __device__ void find_tokens() {
        found_item_ = loaded_.item;
        const TokenTile tile = shared_.tile(p_, loaded_.item / params_.row_blocks);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Tokens that do not exist are the last one again, and are not stored.
            const int own = shared_.rank * C::kTokens + part_ * 32 + i * 4 + token_;
            const int place = tile.first + min(own, tile.count - 1);
            const int row = p_.source != nullptr ? p_.source[place] : place;
            from_[i] = row * static_cast<int>(p_.x_stride) +
                       tile.group * static_cast<int>(p_.x_step) + unit_ * 8;
        }
    }

    __device__ void load(uint4 (&x)[8]) {
        if (unloaded_ == 0) return;
        --unloaded_;
        if (enters(loaded_, found_item_)) find_tokens();
        const int first = (2 * shared_.first_chunk + loaded_.stage) * 64;
        const auto* inputs = reinterpret_cast<const std::uint16_t*>(p_.x) + first;
        if (first + unit_ * 8 < p_.k) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = load_global(inputs + from_[i]);
        } else {  // weights there are zeros, and zero times what lies behind x may be NaN
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = make_uint4(0, 0, 0, 0);
        }
        loaded_.template advance<C::kStageStep>(stages_, shared_.stride);
    }

    // One lane does.
    __device__ void ask_weights(const ItemStage& at, int slot) {
        if (enters(at, asked_item_)) find_weights(at.item);
        const int half = C::kCodes ? p_.half_bytes : C::kWeightBytes;
        const std::byte* from = weights_ + (2 * shared_.first_chunk + at.stage) * half;
        const std::uint32_t to = shared_.stage(slot) +
                                 static_cast<std::uint32_t>(C::kInputBytes + part_ * kTiles * half);
        const std::uint32_t barrier = shared_.full(slot);
        expect_bytes(barrier, static_cast<std::uint32_t>(kTiles * half));
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const std::uint32_t place = to + static_cast<std::uint32_t>(i * half);
            const std::byte* tile = from + min(i, last_tile_) * row_bytes_;
            const auto bytes = static_cast<std::uint32_t>(half);
            if constexpr (C::kCluster == 1) {
                if (!C::kSplit && params_.passing)
                    copy_passing_bytes(place, tile, bytes, barrier);
                else
                    copy_bytes(place, tile, bytes, barrier);
            } else if ((part_ * kTiles + i) % C::kCluster == shared_.rank)
                copy_to_cluster(place, tile, bytes, barrier, (1 << C::kCluster) - 1);
        }
    }
    // Divisions, so once for an item. Tiles of outputs beyond the last are computed like it and not
    // stored.
    __device__ void find_weights(int item) {
        asked_item_ = item;
        const int tile = item / params_.row_blocks;
        int row_block = item - tile * params_.row_blocks;
        const bool second = C::kSecond && row_block >= params_.first_row_blocks;
        if (second) row_block -= params_.first_row_blocks;
        const int all = static_cast<int>(tiles_of(second ? p_.second.n : p_.n));
        const int wanted = row_block * (C::kOutputs / 16) + part_ * kTiles;
        const int first = min(wanted, all - 1);
        last_tile_ = max(0, min(kTiles, all - wanted) - 1);
        weights_ = second ? p_.second.weights
                          : p_.weights + shared_.tile(p_, tile).group * p_.matrix_bytes;
        weights_ += static_cast<std::int64_t>(first) * row_bytes_;
    }

    // True after the last.
    __device__ bool put(const uint4 (&x)[8]) {
        wait(shared_.free(cursor_.slot), cursor_.parity ^ 1);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        if (ahead_ > 0)
            --ahead_;
        else if (threadIdx.x % 32 == 0)
            ask_weights(put_, cursor_.slot);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const std::uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int word = 0; word < 4; ++word)  // the swizzle: tokens 4 … 7 of eight
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(
                                 base + (to_[word] ^ static_cast<std::uint32_t>(i % 2 * 64)) +
                                 static_cast<std::uint32_t>(i * 512)),
                             "r"(words[word])
                             : "memory");
        }
        // The tensor cores read what ordinary stores wrote.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(shared_.full(cursor_.slot));
        cursor_.advance(C::kStageStep);
        put_.template advance<C::kStageStep>(stages_, shared_.stride);
        return --left_ == 0;
    }

    const ManyParams& params_;
    const Problem& p_;
    const ManyShared<C>& shared_;
    StageCursor<C> cursor_;
    int part_;   // of a stage that is the warp's
    int first_;  // of its stages
    int token_, unit_;
    int stages_;                   // of an item
    int row_bytes_;                // from one tile of outputs to the next
    int left_ = 0, unloaded_ = 0;  // of its stages: to put, to load
    ItemStage loaded_{}, put_{};   // the next
    int found_item_ = -1;          // whose tokens from_ knows
    int asked_item_ = -1;          // whose weights these are:
    const std::byte* weights_ = nullptr;
    int last_tile_ = 0;  // that there is, of the warp's
    int ahead_ = 0;      // of its stages: whose weights have been asked for already
    std::uint32_t to_[4];
    int from_[8];  // where the thread's inputs of its tokens begin in x
};

}  // namespace espalier::linalg::cuda
