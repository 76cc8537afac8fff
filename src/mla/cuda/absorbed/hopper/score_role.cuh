// SPDX-License-Identifier: Apache-2.0
// The scoring warpgroup: S = Q·Kᵀ for 64 packed rows and a tile of 64 keys, the mask, and the
// running softmax. A warp owns 16 rows, a thread rows g and g + 8 of them and keys 8j + 2c, 8j + 2c
// + 1 (lane = 4g + c), so that a row's maximum never leaves its warp. Up to 32 rows are spread:
// eight to a warp, row g of each thread; its other half computes unread numbers.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/absorbed/hopper/partial.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat, int kColumns, bool kInvariant, bool kOneToken>
class Scorer {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr bool kSpread = kInvariant && kColumns <= kFewRows;
    static constexpr int kSums = 32;

  public:
    __device__ Scorer(const AbsorbedParams& p, Shared& shared)
        : p_(p),
          shared_(shared),
          warp_(threadIdx.x % 128 / 32),
          lane_(threadIdx.x % 32),
          row_(warp_ * (kSpread ? 8 : 16) + lane_ / 4),
          pair_(lane_ % 4) {}

    __device__ void run() {
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return;
            if (!kInvariant || (uniform(item.flags) & kMerges) == 0) score_item(item);
            arrive_as_warp(&shared_.item_free[items_.index]);
            items_.advance();
        }
    }

  private:
    __device__ void score_item(const Item& item) {
        const int tile_end = uniform(item.tile_end);
        int tile = uniform(item.tile_begin);
        new_query_ = tile < tile_end && item_says<kInvariant>(item, kNewQuery);
        const bool frees = !kInvariant || (uniform(item.flags) & kFreesQuery) != 0;
        if (kInvariant && frees && tile == tile_end) arrive_as_warp(&shared_.query_free);
        SplitRun<kInvariant> run(item);
        while (run.next()) {
            if (item_says<kInvariant>(item, kStarts)) {
                maximum_[0] = maximum_[1] = minus_infinity();
                sum_[0] = sum_[1] = rounded_sum_[0] = rounded_sum_[1] = 0.0f;
            }
            for (const int end = run.end(); tile < end; ++tile)
                score_tile(item, tile, frees && tile + 1 == tile_end);
            if (item_says<kInvariant>(item, kEnds)) finish(item, run.slot());
        }
    }

    __device__ void score_tile(const Item& item, int tile, bool frees_query) {
        float score[kSums];
        const int valid = item.keys - tile * kTileKeys;
        wait(&shared_.keys_full[keys_.index], keys_.phase);
        if (may_gather<kInvariant>(p_, item)) fence_async_proxy();
        if (valid < kTileKeys) clear_rows(valid);
        if (new_query_) {  // the last to come, where keys are asked for early
            wait(&shared_.query_full, query_phase_);
            query_phase_ ^= 1;
            new_query_ = false;
        }
        multiply(score);
        if (frees_query) arrive_as_warp(&shared_.query_free);
        scale(score);
        if ((tile + 1) * kTileKeys > item.free_keys) apply_mask(item, tile, score);
        softmax_tile(score);
        keys_.advance();
    }

    // Slots past the last key may hold NaN, which even a weight of zero would spread.
    __device__ void clear_rows(int valid) {
        clear_key_rows<9>(shared_.keys[keys_.index], valid);
        fence_async_proxy();
        named_barrier(kScoreBarrier, 128);
    }

    // Nothing is read from shared memory or waited for on the way: products of 64 × 64 take all its
    // bandwidth, so that whatever else reads it waits until they are through. With the keys in
    // three pieces and a look at their barriers before each block, this took 2,300 cycles, not
    // 1,300. Rolled: cold code costs a short call more than the loop does.
    __device__ void multiply(float (&score)[kSums]) {
        hold(score);
#pragma unroll 1
        for (int block = 0; block < 9; ++block) multiply_block(block, score, block > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(score);
    }

    __device__ void multiply_block(int block, float (&score)[kSums], int add) {
        wgmma_begin();
        const std::uint64_t a =
            row_descriptor(shared_address(shared_.query) + block * p_.query_rows * 128, kSpread);
        const std::uint64_t b =
            descriptor(shared_address(shared_.keys[keys_.index]) + block * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma_shared<64, T::kElement>(score, a + 2 * step, b + 2 * step, add + step > 0);
    }

    // To the logarithm of base 2.
    __device__ void scale(float (&score)[kSums]) {
#pragma unroll
        for (float& one : score) one *= p_.score_scale;
    }

    __device__ void apply_mask(const Item& item, int tile, float (&score)[kSums]) {
        std::uint64_t visible[2] = {};
        if constexpr (kOneToken) {
            visible[0] = visible[1] = keys_of_one_token(item, tile) >> pair_ * 2;
        } else {
#pragma unroll 1
            for (int half = kSpread ? 1 : 0; half < 2; ++half) {
                const RowMask mask(p_, item, shared_.seen[items_.index],
                                   min(row_ + (kSpread ? 0 : 8 * half), item.columns - 1));
                visible[0] = visible[1];
                visible[1] = mask.template visible<4>(tile) >> pair_ * 2;
            }
            if (kSpread) visible[0] = visible[1];
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            if (((visible[i / 2 % 2] >> (i / 4 * 8 + i % 2)) & 1) == 0) score[i] = minus_infinity();
    }

    __device__ void softmax_tile(const float (&score)[kSums]) {
        float factor[2] = {1.0f, 1.0f};
        std::uint32_t weight[2][kSums / 4] = {};  // pairs of keys; row g, row g + 8
        softmax_row(score, 0, weight[0], factor[0]);
        if (!kSpread) softmax_row(score, 1, weight[1], factor[1]);
        const bool changed = __any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f);
        wait(&shared_.weights_free[0], weights_phase_ ^ 1);
        weights_phase_ ^= 1;
        publish(weight, factor, changed);
    }

    __device__ void softmax_row(const float (&score)[kSums], int half,
                                std::uint32_t (&weight)[kSums / 4], float& factor) {
        const float tile = row_maximum(score, half);
        const float before = maximum_[half];
        constexpr float lift = kLargestAfterRaise<T::kElement>;
        const bool raise = tile > before + (lift + kHeadroom);
        if (raise) maximum_[half] = tile - lift;
        // Before the first visible key there are no sums to rescale.
        factor = raise && before != minus_infinity() ? exp2_fast(before - maximum_[half]) : 1.0f;
        const float shift = finite_or_zero(maximum_[half]);
        // The output is divided by the sum of the rounded weights: what rounding adds to a
        // key's share it takes from the others, and one visible key gives exactly its value.
        // The log-sum-exp is of the weights themselves.
        float exact[2] = {}, rounded[2] = {};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int first = 4 * j + half * 2;
            const float2 own = {exp2_fast(score[first] - shift),
                                exp2_fast(score[first + 1] - shift)};
            weight[j] = pack<T::kElement>(own.x, own.y);
            const float2 kept = unpack<T::kElement>(weight[j]);
            exact[0] += own.x;
            exact[1] += own.y;
            rounded[0] += kept.x;
            rounded[1] += kept.y;
        }
        sum_[half] = sum_[half] * factor + (exact[0] + exact[1]);
        rounded_sum_[half] = rounded_sum_[half] * factor + (rounded[0] + rounded[1]);
    }

    // Over this tile's keys; the same in the four lanes of a row.
    __device__ static float row_maximum(const float (&score)[kSums], int half) {
        float largest[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            largest[j] = fmaxf(score[4 * j + half * 2], score[4 * j + half * 2 + 1]);
#pragma unroll
        for (int left = 4; left > 0; left /= 2)
#pragma unroll
            for (int j = 0; j < left; ++j) largest[j] = fmaxf(largest[j], largest[j + left]);
        const float other = fmaxf(largest[0], __shfl_xor_sync(~0u, largest[0], 1));
        return fmaxf(other, __shfl_xor_sync(~0u, other, 2));
    }

    // P as rows of 64 keys, swizzled as the products want it.
    __device__ void publish(const std::uint32_t (&weight)[2][kSums / 4], const float (&factor)[2],
                            bool changed) {
        const std::uint32_t base = shared_address(shared_.weights[0]);
        if (kSpread) {
            const std::uint32_t row = base + (warp_ * 8 + lane_ % 8) * 128;
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                store_matrices(row + (((j + lane_ / 8) ^ (lane_ & 7)) << 4), weight[0][j],
                               weight[0][j + 1], weight[0][j + 2], weight[0][j + 3]);
        } else {
            const std::uint32_t row = base + (warp_ * 16 + lane_ % 16) * 128;
#pragma unroll
            for (int j = 0; j < 8; j += 2)
                store_matrices(row + (((j + lane_ / 16) ^ (lane_ & 7)) << 4), weight[0][j],
                               weight[1][j], weight[0][j + 1], weight[1][j + 1]);
        }
        if (changed && pair_ == 0) {
            shared_.factor[row_] = factor[0];
            if (!kSpread) shared_.factor[row_ + 8] = factor[1];
        }
        if (lane_ == 0) shared_.rescale[warp_] = changed ? 1 : 0;
        fence_async_proxy();
        arrive_as_warp(&shared_.weights_full[0]);
    }

    __device__ void finish(const Item& item, int slot) {
        wait(&shared_.final_free, final_phase_ ^ 1);
        final_phase_ ^= 1;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 1 && kSpread) break;
            const int row = row_ + 8 * half;
            const float exact = over_row(sum_[half]);
            const float rounded = over_row(rounded_sum_[half]);
            if (pair_ != 0 || row >= item.columns) continue;
            shared_.final_factor[row] = rounded > 0.0f ? __fdividef(p_.value_scale, rounded) : 0.0f;
            const float lse = exact > 0.0f ? maximum_[half] + log2_fast(exact) : minus_infinity();
            if (kInvariant && slot >= 0)
                shared_.final_lse[row] = lse;
            else if (slot >= 0)
                p_.partial_lse[static_cast<long long>(slot) * kBlockRows + row] = lse;
            else if (p_.lse != nullptr)
                p_.lse[item.packed_first + row] = lse * kLn2;
        }
        arrive_as_warp(&shared_.final_full);
    }

    // The four lanes that share a row.
    __device__ static float over_row(float value) {
        value += __shfl_xor_sync(~0u, value, 1);
        return value + __shfl_xor_sync(~0u, value, 2);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int warp_, lane_, row_, pair_;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t query_phase_ = 0, weights_phase_ = 0, final_phase_ = 0;
    bool new_query_ = false;  // the item's queries have not been waited for
    float maximum_[2], sum_[2], rounded_sum_[2];
};

}  // namespace espalier::mla::cuda
