// SPDX-License-Identifier: Apache-2.0
// Products of prompts, bf16: both operands of the tensor cores lie in shared memory, where bulk
// copies bring them as they are, weights by fragments.hpp and x by arranged.hpp. One warp asks for
// them; no other instruction moves an operand.
//
// A tile is 128 outputs × up to 192 tokens. One block per multiprocessor takes tiles as it gets
// through them: experts' last tiles are smaller, and cost less. Two multiplying warpgroups have 64
// outputs each and two sums per output: the segment's, which the tensor cores add to, and that of
// the segments before. Sums and bits are those of many_tokens.cuh.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "linalg/cuda/hopper/arranged_stages.cuh"

namespace espalier::linalg::cuda {

class ArrangedMultiplier {
    using C = ArrangedConfig<WeightCode::bf16>;
    using Shared = ArrangedShared<C>;
    static constexpr int kStages = kBf16Slots;

  public:
    __device__ ArrangedMultiplier(const ArrangedParams& params, const Shared& shared, int group)

        : params_(params), shared_(shared), group_(group) {}

    // A tile's sums are stored while the tensor cores have the next one's first stages: what they
    // add to is not what is stored.
    __device__ void run() {
        int stored = -1;  // the tile whose sums are to be stored
        while (true) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            const int item = *static_cast<volatile int*>(arranged_memory->items + cursor_.slot);
            const int lead = cursor_.slot;
            TokenTile tile{};
            if (item >= 0) tile = shared_.tile(params_, item / params_.row_blocks);
            lead_item(item >= 0);
            if (stored >= 0) store_item(stored);
            if (item < 0) break;
            const Shared::Rows rows = shared_.rows(params_, item);
            stored = first_output(rows) < rows.n ? item : -1;
            if (stored >= 0)
                multiply_item<C::kTokens>(tile, lead);
            else
                pass_item(lead);
        }
        wgmma_wait<0>();
    }

  private:
    static constexpr int kLead = 2;  // stages; no segment has fewer

    __device__ int first_output(const Shared::Rows& rows) const {
        return rows.block * C::kOutputs + group_ * 64;
    }

    __device__ void store_item(int item) {
        const TokenTile tile = shared_.tile(params_, item / params_.row_blocks);
        const Shared::Rows rows = shared_.rows(params_, item);
        store_arranged_item<C::kTokens>(total_, params_, tile, rows.second, first_output(rows),
                                        group_);
    }

    // All columns, whichever the tile has: others are never stored. Without a tile the numbers are
    // what was left there, and no warp waits for them.
    __device__ void lead_item(bool there) {
#pragma unroll
        for (int stage = 0; stage < kLead; ++stage, cursor_.advance(params_)) {
            if (stage > 0 && there) wait(shared_.full(cursor_.slot), cursor_.parity);
            multiply_stage<C::kTokens>(stage > 0);
        }
    }

    // These outputs do not exist.
    __device__ void pass_item(int lead) {
        wgmma_wait<0>();
        hold(block_);
        release(lead);
        release((lead + 1) % kStages);
        for (int stage = kLead; stage < params_.stages; ++stage, cursor_.advance(params_)) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            release(cursor_.slot);
        }
    }

    // By the smallest multiple of 16 tokens that the tile fits in. lead: the slot of the first
    // stage.
    template <int kTokens>
    __device__ void multiply_item(const TokenTile& tile, int lead) {
        if constexpr (kTokens > 16)
            if (tile.count <= kTokens - 16) return multiply_item<kTokens - 16>(tile, lead);
        const int segment = 2 * params_.segments.chunks;
        // -0 + x has the bits of x. (With a first segment that is stored, not added, the compiler
        // moves every sum twice a segment, and 192 tokens have no registers for that.)
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) total_[i] = -0.0f;
        wgmma_wait<1>();
        release(lead);
        int previous = (lead + 1) % kStages;
        int stage = kLead;
        for (int first = 0; first < params_.stages; first += segment, stage = 0) {
            const int count = min(segment, params_.stages - first);
            for (; stage < count; ++stage) {
                wait(shared_.full(cursor_.slot), cursor_.parity);
                multiply_stage<kTokens>(stage > 0);
                wgmma_wait<1>();
                if (stage > 0) release(previous);
                previous = cursor_.slot;
                cursor_.advance(params_);
            }
            wgmma_wait<0>();
            hold(block_);
            release(previous);
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) total_[i] = __fadd_rn(total_[i], block_[i]);
        }
    }

    template <int kTokens>
    __device__ void multiply_stage(bool add) {
        const std::uint32_t base = shared_.stage(params_, cursor_.slot);
        const std::uint64_t right = descriptor(base);
        const std::uint64_t left = matrices_operand(
            base + static_cast<std::uint32_t>(shared_.half_input_bytes(params_) +
                                              group_ * 4 * shared_.tile_bytes(params_)));
        hold(block_);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            wgmma_shared<kTokens>(block_, left + static_cast<unsigned>(16 * i),
                                  right + static_cast<unsigned>(2 * i), add || i > 0);
        wgmma_commit();
    }

    __device__ void release(int slot) { arrive_as_warp(shared_.free(slot)); }

    const ArrangedParams& params_;
    const Shared& shared_;
    ArrangedCursor<C> cursor_;
    int group_;
    float block_[C::kTokens / 2];  // what the tensor cores add to: the segment's sums
    float total_[C::kTokens / 2];  // of the segments before
};

}  // namespace espalier::linalg::cuda
