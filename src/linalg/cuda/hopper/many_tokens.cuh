// SPDX-License-Identifier: Apache-2.0
// Products for many tokens: bound by the tensor cores. A tile is 128 outputs × 128 tokens, or 64 or
// 32 where tiles would be too few for all multiprocessors.
//
// One block per multiprocessor goes through its tiles. A producing warpgroup brings 64 inputs at a
// time to shared memory: x in the order in which fragments.hpp has a step's inputs, weights as they
// are, by bulk copies. Two multiplying warpgroups have 64 outputs each; weights pass through their
// registers, which is where wgmma takes its left operand from and where codes are widened.
//
// Two blocks with tokens of their own can share a tile's weights, each asking for half of them,
// which takes 2 to 7 % off (docs/lab/products.md has when).
//
// The sums are those of few_tokens.cuh: a chain of steps per segment (of codes: per 128 or 32
// inputs, which enter the segment's sum by their scale), segments added in ascending order. That
// takes two sums per output, three over codes, where the segments' total waits in shared memory.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/cluster.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/named_barrier.cuh"
#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/hopper/many_producer.cuh"
#include "linalg/cuda/hopper/many_split.cuh"
#include "linalg/cuda/hopper/many_tiles.cuh"
#include "linalg/cuda/many_store.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

template <class C>
class Multiplier {
  public:
    __device__ Multiplier(const ManyParams& params, const ManyShared<C>& shared, int group)
        : params_(params), p_(params.problem), shared_(shared), group_(group) {
        warp_ = static_cast<int>(threadIdx.x) % 128 / 32;
        lane_ = static_cast<int>(threadIdx.x) % 32;
        chunks_ = shared.chunks;
    }

    __device__ void run() {
        for (int item = shared_.first; item < shared_.items; item += shared_.stride) {
            TokenTile tile = shared_.tile(p_, item / params_.row_blocks);
            if constexpr (C::kCluster > 1) {
                tile.first += shared_.rank * C::kTokens;
                tile.count -= shared_.rank * C::kTokens;
            }
            int row_block = item % params_.row_blocks;
            const bool second = C::kSecond && row_block >= params_.first_row_blocks;
            if (second) row_block -= params_.first_row_blocks;
            const int n = second ? p_.second.n : p_.n;
            const int row_tile = row_block * (C::kOutputs / 16) + group_ * 4 + warp_;
            if constexpr (C::kBlocks)
                scales_ = (second ? p_.second.scales : p_.scales + tile.group * p_.matrix_scales) +
                          (std::int64_t{min(row_tile, static_cast<int>(tiles_of(n)) - 1)} *
                               chunks_of(p_.k) +
                           shared_.first_chunk) *
                              p_.scale_outputs;
            multiply_item();
            if constexpr (C::kSplit) return;  // the cluster's one item
            const int output = row_tile * 16 + lane_ / 4;
            if (second)
                store_all<C::kTokens>(sums(), tile, output, {p_.second.y_stride, 0, n}, p_.second.y,
                                      [](float* to, float sum) { *to = sum; });
            else
                store_sums<C::kTokens>(sums(), p_, tile, output);
        }
    }

  private:
    static constexpr int kSums = C::kTokens / 2;  // token 8j + 2t + i, output g + 8h: 4j + 2h + i

    __device__ void multiply_item() {
        clear(block_);
        first_stage_ = true;
        for (int first = 0; first < chunks_; first += params_.segments.chunks) {
            if constexpr (C::kCodes) clear(segment_);
            const int end = min(first + params_.segments.chunks, chunks_);
            for (int chunk = first; chunk < end; ++chunk) multiply_chunk(chunk);
            if constexpr (!C::kCodes) {
                wgmma_wait<0>();
                hold(block_);
            }
            if constexpr (C::kSplit)
                put_segment(first / params_.segments.chunks);
            else
                end_segment(first == 0, end == chunks_);
        }
        if constexpr (!C::kGroups) release(previous_slot_);
    }

    __device__ void multiply_chunk(int chunk) {
        if constexpr (C::kGroups) {
            multiply_groups();
            multiply_groups();
            return;
        }
        float2 scale;
        if constexpr (C::kBlocks) scale = load_scales(chunk);
        multiply_stage(left_[0]);
        multiply_stage(left_[1]);
        if constexpr (C::kBlocks) {
            wgmma_wait<0>();
            hold(block_);
            add_block(scale);
            clear(block_);
        }
    }

    // A stage of integer codes: two groups of inputs, each a chain of its own. While one
    // warpgroup adds, the other one's products run.
    __device__ void multiply_groups() {
        wait(shared_.full(cursor_.slot), cursor_.parity);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        const std::uint32_t half = weights_of(base);
        const std::uint64_t right = descriptor(base);
        uint4(&left)[4] = left_[0];
        load_pair(left, half, 0);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            hold(block_);
            wgmma_begin();
            wgmma_left<C::kTokens>(block_, left[2 * pair], right + static_cast<unsigned>(4 * pair),
                                   false);
            wgmma_left<C::kTokens>(block_, left[2 * pair + 1],
                                   right + static_cast<unsigned>(4 * pair + 2), true);
            wgmma_commit();
            const float2 scale =
                group_scales<C::kCode>(half, pair, lane_, p_.two_groups, p_.wide_scales);
            if (pair == 0) load_pair(left, half, 1);
            wgmma_wait<0>();
            hold(block_);
            add_block(scale);
        }
        fence_async_proxy();  // of scales; codes are in the products that have ended
        release(cursor_.slot);
        cursor_.advance();
    }

    // Stages alternate between two sets of registers: one is filled while the other's products run.
    __device__ void multiply_stage(uint4 (&left)[4]) {
        wait(shared_.full(cursor_.slot), cursor_.parity);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        load_pair(left, weights_of(base), 0);
        load_pair(left, weights_of(base), 1);
        hold(block_);
        wgmma_begin();
        const std::uint64_t right = descriptor(base);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            wgmma_left<C::kTokens>(block_, left[i], right + static_cast<unsigned>(2 * i), true);
        wgmma_commit();
        wgmma_wait<1>();
        if (!first_stage_) release(previous_slot_);  // the stage before has been read
        first_stage_ = false;
        previous_slot_ = cursor_.slot;
        cursor_.advance();
    }

    // The warp's 16 outputs in a stage.
    __device__ std::uint32_t weights_of(std::uint32_t base) const {
        const int half = C::kCodes ? p_.half_bytes : C::kWeightBytes;
        return base + static_cast<std::uint32_t>(C::kInputBytes + (group_ * 4 + warp_) * half);
    }
    __device__ void load_pair(uint4 (&left)[4], std::uint32_t half, int pair) const {
        uint4 two[2];
        load_left<C::kCode>(half, pair, lane_, two);
        left[2 * pair] = two[0];
        left[2 * pair + 1] = two[1];
    }

    __device__ void release(int slot) {
        __syncwarp();
        if constexpr (C::kCluster == 1) {
            if (lane_ == 0) arrive(shared_.free(slot));
        } else {
            if (lane_ < C::kCluster) arrive_at(shared_.free(slot), lane_);
        }
    }

    __device__ float2 load_scales(int chunk) const {
        const float* from = scales_ + static_cast<std::int64_t>(chunk) * p_.scale_outputs;
        const bool apart = p_.scale_outputs != 2;
        return {__ldg(from + (apart ? lane_ / 4 : 0)), __ldg(from + (apart ? lane_ / 4 + 8 : 1))};
    }

    __device__ void add_block(float2 scale) {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            segment_[i] = fmaf(i / 2 % 2 == 0 ? scale.x : scale.y, block_[i], segment_[i]);
    }

    __device__ void end_segment(bool first, bool last) {
        if constexpr (C::kCodes) {
            const std::uint32_t place = shared_.totals +
                                        static_cast<std::uint32_t>(group_ * 64 * C::kTokens * 4) +
                                        threadIdx.x % 128 * 16;
#pragma unroll
            for (int i = 0; i < kSums / 4; ++i) {
                const std::uint32_t at = place + static_cast<std::uint32_t>(i * 2048);
                if (!first) add_shared(segment_ + 4 * i, at);
                if (!last) store_shared(segment_ + 4 * i, at);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                total_[i] = first ? block_[i] : __fadd_rn(total_[i], block_[i]);
            clear(block_);
        }
    }

    // The sums of the block's last segment go to where stages were, when both warpgroups have read
    // them.
    __device__ void put_segment(int place) {
        if (place == params_.own - 1) named_barrier(1, 256);
        const float* sums = C::kCodes ? segment_ : block_;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i)
            store_shared(sums + 4 * i,
                         split_sums<C>(shared_, params_.own, place, group_ * 4 + warp_, i));
        if constexpr (!C::kCodes) clear(block_);
    }

    __device__ static void add_shared(float* to, std::uint32_t at) {
        const uint4 v = load_shared(at);
        to[0] = __fadd_rn(__uint_as_float(v.x), to[0]);
        to[1] = __fadd_rn(__uint_as_float(v.y), to[1]);
        to[2] = __fadd_rn(__uint_as_float(v.z), to[2]);
        to[3] = __fadd_rn(__uint_as_float(v.w), to[3]);
    }
    __device__ static void store_shared(const float* from, std::uint32_t at) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(from[0]),
                     "f"(from[1]), "f"(from[2]), "f"(from[3])
                     : "memory");
    }

    __device__ const float (&sums() const)[kSums] {
        if constexpr (C::kCodes)
            return segment_;
        else
            return total_;
    }

    __device__ static void clear(float (&sums)[kSums]) {
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
    }

    const ManyParams& params_;
    const Problem& p_;
    const ManyShared<C>& shared_;
    StageCursor<C> cursor_;
    int group_;  // which of the two
    int warp_, lane_, chunks_;
    int previous_slot_ = 0;
    bool first_stage_ = true;
    const float* scales_ = nullptr;
    uint4 left_[2][4];
    float block_[kSums];                    // what the tensor cores add to
    float segment_[C::kCodes ? kSums : 1];  // codes: the segment's sum
    float total_[C::kCodes ? 1 : kSums];    // bf16: of the segments before
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    many_tokens_kernel(const __grid_constant__ ManyParams params) {
    extern __shared__ std::byte dynamic[];
    __shared__ int listed;
    const Problem& p = params.problem;
    const std::uint32_t unaligned = shared_address(dynamic);
    ManyShared<C> shared;
    shared.stages = (unaligned + 1023) / 1024 * 1024;
    shared.totals = shared.stages + C::kStages * C::kStageBytes;
    shared.barriers = shared.totals + C::kTotalBytes;
    shared.tiles =
        reinterpret_cast<TokenTile*>(dynamic + (shared.barriers - unaligned) + C::kBarrierBytes);
    shared.rank = static_cast<int>(blockIdx.x) % C::kCluster;
    const int together = C::kSplit ? params.split : C::kCluster;
    shared.first = static_cast<int>(blockIdx.x) / together;
    shared.stride = static_cast<int>(gridDim.x) / together;
    shared.first_chunk = 0;
    shared.chunks = static_cast<int>(chunks_of(p.k));
    if constexpr (C::kSplit) {
        const int part = params.own * params.segments.chunks;
        shared.first_chunk = static_cast<int>(blockIdx.x) % together * part;
        shared.chunks = min(part, shared.chunks - shared.first_chunk);
    }
    const bool experts = p.indptr != nullptr;
    const bool settled = params.grant.early;
    const bool early = !params.grant.holds_next && (!experts || settled);
    if (early) let_next_kernel_start();
    if (settled) see_settled_memory();
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < C::kStages; ++slot) {
            init_barrier(shared.full(slot), C::kStageWarps);
            init_barrier(shared.free(slot), 8 * C::kCluster);  // the multipliers'
        }
        fence_barrier_init();
    }
    if (experts && !settled) wait_for_previous_kernel();
    if (experts && threadIdx.x < 32) {
        const int count =
            list_expert_tiles(p, C::kTokens * C::kCluster, shared.tiles, params.token_tiles);
        if (threadIdx.x == 0) listed = count;
    }
    __syncthreads();
    if constexpr (C::kCluster > 1) synchronize_cluster();  // the others' barriers are there
    shared.items = (experts ? listed : params.token_tiles) * params.row_blocks;
    if (threadIdx.x < 128) {
        keep_registers<C::kProducerRegisters>();
        Producer<C> producer(params, shared);
        producer.ask_ahead();
        if (!settled) wait_for_previous_kernel();
        if (!early) let_next_kernel_start();
        producer.run();
        if constexpr (C::kSplit) synchronize_cluster();  // all sums are there
    } else {
        take_registers<C::kMultiplierRegisters>();
        if (!settled) wait_for_previous_kernel();
        Multiplier<C>(params, shared, static_cast<int>(threadIdx.x) / 128 - 1).run();
        if constexpr (C::kSplit) {
            synchronize_cluster();
            merge_segments(params, shared);
        }
    }
    // No block writes here any more, or reads.
    if constexpr (C::kCluster > 1 || C::kSplit) synchronize_cluster();
    // A kernel that waits for this one also waits for all earlier ones.
    if (settled) wait_for_previous_kernel();
}

}  // namespace espalier::linalg::cuda
