// SPDX-License-Identifier: Apache-2.0
// Products of prompts over codes: x is arranged, weights come as codes, and pass through registers
// where they are widened to the tensor cores' left operand.
//
// A tile is 128 outputs × up to 128 tokens. Two multiplying warpgroups have 64 outputs each and
// three sums per output: the chain's, which the tensor cores add to, the segment's, which chains
// enter by their scale, and that of the segments before. Sums and bits are those of
// many_tokens.cuh.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/hopper/arranged_stages.cuh"

namespace espalier::linalg::cuda {

template <class C>
class CodesMultiplier {
  public:
    __device__ CodesMultiplier(const ArrangedParams& params, const ArrangedShared<C>& shared,
                               int group)
        : params_(params), p_(params.problem), shared_(shared), group_(group) {}

    __device__ void run() {
        while (true) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            const int item = *static_cast<volatile int*>(arranged_memory->items + cursor_.slot);
            if (item < 0) return;
            const TokenTile tile = shared_.tile(params_, item / params_.row_blocks);
            const auto rows = shared_.rows(params_, item);
            const int first = rows.block * C::kOutputs + group_ * 64;
            if (first >= rows.n) {
                pass_item();
                continue;
            }
            if constexpr (C::kBlocks) find_scales(tile, rows);
            multiply_item<C::kTokens>(tile);
            store_arranged_item<C::kTokens>(total_, params_, tile, rows.second, first, group_);
        }
    }

  private:
    static constexpr int kSums = C::kTokens / 2;
    static constexpr int kPairs = 4;  // of steps, in a stage

    // While a tile is multiplied. As members they were alive from one tile to the next, since wgmma
    // reads what it may add to, through products of every number of tokens: the assembler, which
    // has to lay such sums side by side, then found no registers for some formats, sizes and even
    // versions of the warp that brings stages, and serialised all products (C7511).
    template <int kTokens>
    struct Tile {
        PackedPair<C::kCode> packed;
        uint4 left[2][2];
        float chain[kTokens / 2];    // what the tensor cores add to
        float segment[kTokens / 2];  // of the chains before
    };

    __device__ int warp_tile() const {
        return group_ * 4 + static_cast<int>(threadIdx.x) % 128 / 32;
    }
    __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ int chunks() const { return params_.stages / C::kHalves; }

    // These outputs do not exist.
    __device__ void pass_item() {
        for (int chunk = 0; chunk < chunks(); ++chunk, cursor_.advance(params_)) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            release();
        }
    }

    // By the smallest multiple of 16 tokens that the tile fits in. The first stage is there.
    template <int kTokens>
    __device__ void multiply_item(const TokenTile& tile) {
        if constexpr (kTokens > 16)
            if (tile.count <= kTokens - 16) return multiply_item<kTokens - 16>(tile);
        constexpr int kHeld = kTokens < kHeldTokens ? kTokens / 2 : kHeldTokens / 2;
        // -0 + x has the bits of x.
#pragma unroll
        for (int i = 0; i < kHeld; ++i) total_[i] = -0.0f;
        // The tile before has been stored by way of the memory where totals go.
        if constexpr (kTokens > kHeldTokens) synchronize_warpgroup(group_);
        Tile<kTokens> now;
#pragma unroll
        for (float& sum : now.chain) sum = 0.0f;  // defined, and never added
        load_pair(now.packed, 0);
        now.packed.widen(now.left[0]);
        load_pair(now.packed, 1);
        for (int first = 0; first < chunks(); first += params_.segments.chunks) {
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) now.segment[i] = 0.0f;
            const int end = min(first + params_.segments.chunks, chunks());
            for (int chunk = first; chunk < end; ++chunk)
                multiply_chunk(now, chunk + 1 == chunks());
#pragma unroll
            for (int i = 0; i < kHeld; ++i) total_[i] = __fadd_rn(total_[i], now.segment[i]);
#pragma unroll
            for (int i = kHeld; i < kTokens / 2; i += 4) add_total(i, now.segment + i, first == 0);
        }
#pragma unroll
        for (int i = kHeld; i < kTokens / 2; i += 4) {
            const float4 total = total_at(i);
            total_[i] = total.x;
            total_[i + 1] = total.y;
            total_[i + 2] = total.z;
            total_[i + 3] = total.w;
        }
        // Other warps' totals have been read before a warp stores by way of their memory.
        if constexpr (kTokens > kHeldTokens) synchronize_warpgroup(group_);
    }

    // The thread's totals i … i + 3 that registers do not have.
    __device__ float4& total_at(int i) const {
        return arranged_memory->sums[group_].totals[(i - kHeldTokens / 2) / 4][threadIdx.x % 128];
    }
    __device__ void add_total(int i, const float* segment, bool first) {
        const float4 before = first ? make_float4(-0.0f, -0.0f, -0.0f, -0.0f) : total_at(i);
        total_at(i) = make_float4(__fadd_rn(before.x, segment[0]), __fadd_rn(before.y, segment[1]),
                                  __fadd_rn(before.z, segment[2]), __fadd_rn(before.w, segment[3]));
    }

    // The left operand of a stage's first two steps is there, and the next two's codes are loaded;
    // it leaves the same of the next stage, if this is not the last. Two steps' products run while
    // the next two's operand is widened, and loading the codes in advance takes 8 % off experts of
    // 64 tokens.
    template <int kTokens>
    __device__ void multiply_chunk(Tile<kTokens>& now, bool last) {
        float2 scale;
        if constexpr (C::kBlocks) scale = next_scales();
        const std::uint32_t base = shared_.stage(params_, cursor_.slot);
        const std::uint64_t right = descriptor(base);
        const int slot = cursor_.slot;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
            const bool begins = C::kGroups || pair == 0, ends = C::kGroups || pair == kPairs - 1;
            const std::uint64_t steps =
                right + static_cast<unsigned>(pair % 2 * 4 +
                                              pair / 2 * (shared_.half_input_bytes(params_) / 16));
            hold(now.chain);
            wgmma_begin();
            wgmma_left<kTokens>(now.chain, now.left[pair % 2][0], steps, !begins);
            wgmma_left<kTokens>(now.chain, now.left[pair % 2][1], steps + 2, true);
            wgmma_commit();
            if constexpr (C::kGroups)
                scale = group_scales<C::kCode>(half_chunk(slot, pair / 2), pair % 2, lane(),
                                               p_.two_groups, p_.wide_scales);
            if (!begins) wgmma_wait<1>();  // the products of what is overwritten
            if (pair < kPairs - 1 || !last) now.packed.widen(now.left[(pair + 1) % 2]);
            if (pair == kPairs - 2) {
                cursor_.advance(params_);
                if (!last) wait(shared_.full(cursor_.slot), cursor_.parity);
            }
            if (pair < kPairs - 2 || !last) load_pair(now.packed, (pair + 2) % kPairs);
            if (!ends) continue;
            wgmma_wait<0>();
            hold(now.chain);
            if (pair == kPairs - 1) {
                if (C::kGroups) fence_async_proxy();  // of scales
                release(slot);
            }
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i)
                now.segment[i] =
                    fmaf(i / 2 % 2 == 0 ? scale.x : scale.y, now.chain[i], now.segment[i]);
        }
    }

    // The warp's 16 outputs in half of a stage.
    __device__ std::uint32_t half_chunk(int slot, int half) const {
        return shared_.stage(params_, slot) +
               static_cast<std::uint32_t>(C::kHalves * shared_.half_input_bytes(params_) +
                                          (warp_tile() * C::kHalves + half) * p_.half_bytes);
    }
    // Pair of the cursor's stage.
    __device__ void load_pair(PackedPair<C::kCode>& packed, int pair) {
        packed.load(half_chunk(cursor_.slot, pair / 2), pair % 2, lane());
    }

    __device__ void find_scales(const TokenTile& tile,
                                const typename ArrangedShared<C>::Rows& rows) {
        const int row_tile = rows.block * (C::kOutputs / 16) + warp_tile();
        scales_ = (rows.second ? p_.second.scales : p_.scales + tile.group * p_.matrix_scales) +
                  std::int64_t{min(row_tile, static_cast<int>(tiles_of(rows.n)) - 1)} * chunks() *
                      p_.scale_outputs +
                  (p_.scale_outputs != 2 ? lane() / 4 : 0);
    }
    // Scales of outputs g and g + 8, in the next chunk.
    __device__ float2 next_scales() {
        const float2 scale = {__ldg(scales_), __ldg(scales_ + (p_.scale_outputs != 2 ? 8 : 1))};
        scales_ += p_.scale_outputs;
        return scale;
    }

    __device__ void release() { release(cursor_.slot); }
    __device__ void release(int slot) { arrive_as_warp(shared_.free(slot)); }

    const ArrangedParams& params_;
    const Problem& p_;
    const ArrangedShared<C>& shared_;
    ArrangedCursor<C> cursor_;
    int group_;
    const float* scales_ = nullptr;
    float total_[kSums];  // of the segments before
};

}  // namespace espalier::linalg::cuda
