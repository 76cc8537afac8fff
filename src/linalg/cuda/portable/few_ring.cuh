// SPDX-License-Identifier: Apache-2.0
// A warp's ring of weights in shared memory: copies of 16 bytes that all of its lanes ask for, a
// unit as soon as the warp has used one up, so there is neither a producer nor a barrier of the
// block between.
#pragma once

#include "base/cuda/barrier.cuh"
#include "linalg/cuda/few_items.cuh"

namespace espalier::linalg::cuda {

template <class C>
class FewRing<C, GpuFamily::portable> {
  public:
    // At these addresses in shared memory.
    __device__ FewRing(const FewParams& params, std::uint32_t barriers, std::uint32_t units,
                       int chunk_bytes)
        : params_(params), barriers_(barriers), units_(units), chunk_bytes_(chunk_bytes) {}

    __device__ void init() const {
        if (lane_id() == 0) {
            for (int i = 0; i < params_.ring; ++i) init_barrier(barrier(i), kLanes);
            fence_barrier_init();
        }
        __syncwarp();
    }
    // Asks for as much of the items that are known as there is room for.
    __device__ void fill(const FewItems<C>& items) {
        while (filled_ < params_.ring && ask(items)) ++filled_;
    }
    // Until the oldest unit is there.
    __device__ void wait_for_unit() const { wait(barrier(place_), parity_); }
    // Its chunk of that number, of the first tile of outputs; those of the next lie kUnit further
    // on.
    __device__ std::uint32_t chunk(int number) const {
        return units_ + static_cast<std::uint32_t>((place_ * C::kRowTiles * C::kUnit + number) *
                                                   chunk_bytes_);
    }
    // The whole warp has used the unit up.
    __device__ void free_unit(const FewItems<C>& items) {
        __syncwarp();
        ask(items);
        if (++place_ == params_.ring) {
            place_ = 0;
            parity_ ^= 1;
        }
    }

  private:
    static constexpr int kLanes = 32;
    static constexpr int kPiece = 16;  // bytes of a copy

    // Asks for the next unit of this block's items, if there is one.
    __device__ bool ask(const FewItems<C>& items) {
        if (asked_item_ >= items.count()) return false;
        if (asked_chunk_ == 0) {
            const int group = items.tile_at(items.token_tile(asked_item_)).group;
#pragma unroll
            for (int r = 0; r < C::kRowTiles; ++r)
                asked_from_[r] = items.weights_of(asked_item_, group, r, chunk_bytes_);
        }
        const std::uint32_t to = units_ + static_cast<std::uint32_t>(asked_place_ * C::kRowTiles *
                                                                     C::kUnit * chunk_bytes_);
        const int segment = items.segment_chunks(asked_item_);
        const int count = min(C::kUnit, segment - asked_chunk_);
        const int bytes = count * chunk_bytes_;
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
            const std::byte* from = asked_from_[r] + asked_chunk_ * chunk_bytes_;
            const std::uint32_t unit = to + static_cast<std::uint32_t>(r * C::kUnit * chunk_bytes_);
            for (int at = lane_id() * kPiece; at < bytes; at += kLanes * kPiece)
                copy_passing_16_async(unit + static_cast<std::uint32_t>(at), from + at, passing_);
        }
        arrive_behind_copies(barrier(asked_place_));
        if (++asked_place_ == params_.ring) asked_place_ = 0;
        asked_chunk_ += count;
        if (asked_chunk_ == segment) {
            asked_chunk_ = 0;
            ++asked_item_;
        }
        return true;
    }

    __device__ static int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ std::uint32_t barrier(int place) const {
        return barriers_ + static_cast<std::uint32_t>(8 * place);
    }

    const FewParams& params_;
    const std::uint64_t passing_ = evict_first();
    std::uint32_t barriers_;
    std::uint32_t units_;
    int chunk_bytes_;
    int filled_ = 0;  // units that have been asked for at first

    // The next chunk to ask for.
    int asked_item_ = 0;
    int asked_chunk_ = 0;
    int asked_place_ = 0;
    const std::byte* asked_from_[C::kRowTiles] = {};

    // The oldest unit.
    int place_ = 0;
    std::uint32_t parity_ = 0;
};

}  // namespace espalier::linalg::cuda
