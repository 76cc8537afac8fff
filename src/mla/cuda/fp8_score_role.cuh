// SPDX-License-Identifier: Apache-2.0
// The scoring warpgroup of FP8 caches: Sᵀ = K·Qᵀ for a tile of 64 keys, the mask, and the running
// softmax over keys. Weights go to shared memory as Pᵀ, with the factor by which earlier output
// shrinks. A thread holds keys g and g + 8 of its warp's sixteen, and columns 8j + 2c, 8j + 2c + 1
// (lane = 4g + c).
//
// With a scale σ per key (fp8_token) the maximum is taken over score + log2 σ: weights P·σ stay
// below one whatever the scales, and the sum of P is their sum divided by σ again.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

// Reduces `values` (one per column of a thread) over the eight lanes that share columns; each lane
// ends with kCount / 8 of them, or one. Returns the index of the first.
template <int kCount, typename Combine>
__device__ __forceinline__ int scatter_reduce(float (&values)[kCount], int lane, Combine combine) {
    int first = 0;
    int left = kCount;
#pragma unroll
    for (int bit = 4; bit <= 16; bit *= 2) {
        if (left > 1) {
            left /= 2;
            const bool upper = (lane & bit) != 0;
#pragma unroll
            for (int i = 0; i < kCount / 2; ++i) {
                if (i >= left) break;
                const float sent = upper ? values[i] : values[i + left];
                const float kept = upper ? values[i + left] : values[i];
                values[i] = combine(kept, __shfl_xor_sync(~0u, sent, bit));
            }
            if (upper) first += left;
        } else {
            values[0] = combine(values[0], __shfl_xor_sync(~0u, values[0], bit));
        }
    }
    return first;
}

template <KvFormat kFormat, int kN>
class Fp8Scorer {
    using T = Traits<kFormat, kN>;
    using Shared = SharedLayout<kFormat, kN>;
    static constexpr int kSums = kN / 2;
    static constexpr int kColumns = kN / 4;  // per thread

  public:
    __device__ Fp8Scorer(const AbsorbedParams& p, Shared& shared)
        : p_(p),
          shared_(shared),
          thread_(threadIdx.x % 128),
          warp_(threadIdx.x % 128 / 32),
          lane_(threadIdx.x % 32),
          group_(lane_ / 4),
          pair_(lane_ % 4) {}

    __device__ void run() {
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return;
            score_item(item);
            __syncwarp();
            if (lane_ == 0) arrive(&shared_.item_free[items_.index]);
            items_.advance();
        }
    }

  private:
    __device__ void score_item(const Item& item) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            maximum_[i] = minus_infinity();
            sum_[i] = 0.0f;
        }
        const int tile_end = uniform(item.tile_end);
        int tile = uniform(item.tile_begin);
        if (tile < tile_end) {
            wait(&shared_.query_full, query_phase_);
            query_phase_ ^= 1;
        }
        for (; tile < tile_end; ++tile) {
            float score[kSums];
            multiply(item, tile, score);
            if (tile + 1 == tile_end) {
                __syncwarp();
                if (lane_ == 0) arrive(&shared_.query_free);
            }
            scale(score);
            if ((tile + 1) * kTileKeys > item.free_keys) apply_mask(item, tile, score);
            soften(score);
            keys_.advance();
        }
        finish(item);
    }

    // --- Sᵀ = K·Qᵀ
    // --------------------------------------------------------------------------------
    __device__ void multiply(const Item& item, int tile, float (&score)[kSums]) {
        const std::uint32_t keys = shared_address(shared_.keys[keys_.index]);
        wait(&shared_.keys_full[keys_.index][0], keys_.phase);
        const int valid = item.keys - tile * kTileKeys;
        if (valid < kTileKeys) {
            // Slots past the last key may hold NaN, which even a weight of zero would spread.
            clear_key_rows<4>(shared_.keys[keys_.index], valid);
            named_barrier(kScoreBarrier, 128);
        }
        const std::uint32_t query = shared_address(shared_.query);
        const int row = warp_ * 16 + lane_ % 16;
        if constexpr (T::kTokenScale) {
            multiply_rope(keys + T::kRopeOffset, query + 8 * T::kQueryBlock, score);
            prepare_scales(score);
        }
        constexpr int kLoads = T::kTokenScale ? 16 : 18;  // of 32 columns
        constexpr int kBatch = 2;
        std::uint32_t a[2][kBatch][2][4];
        hold(score);
#pragma unroll
        for (int batch = 0; batch < kLoads / kBatch; ++batch) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
                unpack(key_chunk(keys, row, batch * kBatch + i), a[batch % 2][i]);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < kBatch * 2; ++i) {
                const int step = batch * kBatch * 2 + i;
                wgmma(score, a[batch % 2][i / 2][i % 2],
                      descriptor(query + step / 4 * T::kQueryBlock + step % 4 * 32),
                      T::kTokenScale || step > 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
        }
        wgmma_wait<0>();
        hold(score);
    }

    // Eight warps' worth of e4m3 unpack to fp16 in registers: two products of sixteen columns per
    // matrix load.
    __device__ void unpack(std::uint32_t address, std::uint32_t (&a)[2][4]) {
        std::uint32_t r[4];
        load_matrices(r, address);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            a[half][0] = widen_e4m3(static_cast<std::uint16_t>(r[2 * half]));
            a[half][1] = widen_e4m3(static_cast<std::uint16_t>(r[2 * half + 1]));
            a[half][2] = widen_e4m3(static_cast<std::uint16_t>(r[2 * half] >> 16));
            a[half][3] = widen_e4m3(static_cast<std::uint16_t>(r[2 * half + 1] >> 16));
        }
    }

    // Where this lane reads columns 32·load … of its row, for a load of four 8×8 matrices.
    __device__ std::uint32_t key_chunk(std::uint32_t keys, int row, int load) const {
        if (load >= 16) {  // the rope columns of fp8_tensor: rows of 64 bytes
            const int chunk = (load - 16) * 2 + lane_ / 16;
            return keys + T::kRopeOffset + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
        }
        const int chunk = load % 4 * 2 + lane_ / 16;
        return keys + load / 4 * T::kBlockBytes + row * 128 + ((chunk ^ (row & 7)) << 4);
    }

    __device__ void multiply_rope(std::uint32_t rope, std::uint32_t query, float (&score)[kSums]) {
        hold(score);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 8; ++step)
            wgmma<Element::bf16, false>(
                score, descriptor(rope + step % 4 * 32),
                descriptor(query + step / 4 * T::kQueryBlock + step % 4 * 32), step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(score);
    }

    // The rope's part of a score has no scale: it is divided by those that the sum is multiplied
    // with afterwards. A hidden key may have any scale.
    __device__ void prepare_scales(float (&score)[kSums]) {
        const auto* scales =
            reinterpret_cast<const float*>(shared_.keys[keys_.index] + T::kScaleOffset);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sigma = scales[warp_ * 16 + group_ + 8 * half];
            if (!(sigma > 0.0f && sigma < 3e38f)) sigma = 1.0f;  // past the last key, or all zeros
            key_scale_[half] = sigma;
            key_inverse_[half] = 1.0f / sigma;
            key_log_[half] = log2_fast(sigma);
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            score[i] *= key_inverse_[i / 2 % 2] / shared_.query_scale[column_of(i)];
    }

    __device__ int column_of(int i) const { return i / 4 * 8 + pair_ * 2 + i % 2; }

    __device__ void scale(float (&score)[kSums]) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            float factor = p_.score_scale;
            if constexpr (T::kFp8) factor *= shared_.query_scale[column_of(i)];
            if constexpr (T::kTokenScale) factor *= key_scale_[i / 2 % 2];
            score[i] *= factor;
        }
    }

    // --- the mask
    // -----------------------------------------------------------------------------------
    __device__ void apply_mask(const Item& item, int tile, float (&score)[kSums]) {
        const int key = tile * kTileKeys + warp_ * 16 + group_;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const RowMask mask(p_, item, min(i / 2 * 8 + pair_ * 2 + i % 2, item.columns - 1));
            if (!mask.sees(key)) score[i / 2 * 4 + i % 2] = minus_infinity();
            if (!mask.sees(key + 8)) score[i / 2 * 4 + i % 2 + 2] = minus_infinity();
        }
    }

    // --- the softmax
    // --------------------------------------------------------------------------------
    __device__ void soften(float (&score)[kSums]) {
        float excess[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const int at = i / 2 * 4 + i % 2;
            if constexpr (T::kTokenScale) {
                score[at] += key_log_[0];
                score[at + 2] += key_log_[1];
            }
            excess[i] = fmaxf(score[at], score[at + 2]) - maximum_[i];  // NaN: nothing seen yet
        }
#pragma unroll
        for (int left = kColumns / 2; left > 0; left /= 2)
#pragma unroll
            for (int i = 0; i < left; ++i) excess[i] = fmaxf(excess[i], excess[i + left]);
        const bool changed = any_of_warpgroup(excess[0] > kHeadroom);
        if (changed) raise_maxima(score);
        weigh(score);
        wait(&shared_.weights_free, weights_phase_ ^ 1);
        weights_phase_ ^= 1;
        publish(score, changed);
    }

    __device__ static bool any_of_warpgroup(bool mine) {
        int any;
        asm volatile(
            "{ .reg .pred p, q; setp.ne.b32 p, %1, 0;\n"
            "barrier.cta.red.or.pred q, %2, 128, p;\n"
            "selp.b32 %0, 1, 0, q; }\n"
            : "=r"(any)
            : "r"(static_cast<int>(mine)), "n"(kScoreBarrier)
            : "memory");
        return uniform(any) != 0;
    }

    // Columns whose scores outgrew their reference by 2^8 get this tile's maximum as the new one.
    // The others keep theirs: what a column does must not depend on its neighbours.
    __device__ void raise_maxima(const float (&score)[kSums]) {
        float largest[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
            largest[i] = fmaxf(score[i / 2 * 4 + i % 2], score[i / 2 * 4 + i % 2 + 2]);
        float(&maxima)[4][kN] = shared_.maxima[turn_];
        turn_ ^= 1;
        wait(&shared_.weights_free, weights_phase_ ^ 1);  // the factors of the last tile are used
        share_columns(largest, maxima[warp_], [](float a, float b) { return fmaxf(a, b); });
        named_barrier(kScoreBarrier, 128);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const int column = i / 2 * 8 + pair_ * 2 + i % 2;
            const float tile = fmaxf(fmaxf(maxima[0][column], maxima[1][column]),
                                     fmaxf(maxima[2][column], maxima[3][column]));
            const float before = maximum_[i];
            if (tile > before + kHeadroom) maximum_[i] = tile;
            const float factor = shrink(before, maximum_[i]);
            sum_[i] *= factor;
            if (warp_ == 0 && group_ == 0) shared_.factor[column] = factor;
        }
    }

    __device__ static float shrink(float before, float now) {
        return before == now ? 1.0f : exp2_fast(before - now);
    }

    // Columns of a warp, reduced over its keys, to shared memory.
    template <typename Combine>
    __device__ void share_columns(float (&values)[kColumns], float* to, Combine combine) {
        const int first = scatter_reduce<kColumns>(values, lane_, combine);
        constexpr int kKept = kColumns >= 8 ? kColumns / 8 : 1;
#pragma unroll
        for (int i = 0; i < kKept; ++i) {
            const int at = first + i;
            to[at / 2 * 8 + pair_ * 2 + at % 2] = values[i];
        }
    }

    __device__ void weigh(float (&score)[kSums]) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const int at = i / 2 * 4 + i % 2;
            const float shift = maximum_[i] == minus_infinity() ? 0.0f : maximum_[i];
            score[at] = exp2_fast(score[at] - shift);
            score[at + 2] = exp2_fast(score[at + 2] - shift);
            float added = score[at] + score[at + 2];
            if constexpr (T::kTokenScale) {
                // A hidden key's weight is 0 and its scale anything, NaN included.
                added = (score[at] == 0.0f ? 0.0f : score[at] * key_inverse_[0]) +
                        (score[at + 2] == 0.0f ? 0.0f : score[at + 2] * key_inverse_[1]);
            }
            sum_[i] += added;
        }
    }

    // Pᵀ as rows of 64 keys, one per column, swizzled as the products want it.
    __device__ void publish(const float (&weight)[kSums], bool changed) {
        const std::uint32_t base = shared_address(shared_.weights);
#pragma unroll
        for (int j = 0; j < kN / 8; j += 2) {
            const int column = (j + lane_ / 16) * 8 + lane_ % 8;
            const int chunk = warp_ * 2 + lane_ / 8 % 2;
            store_matrices_transposed(base + column * 128 + ((chunk ^ (column & 7)) << 4),
                                      pack<Element::f16>(weight[4 * j], weight[4 * j + 1]),
                                      pack<Element::f16>(weight[4 * j + 2], weight[4 * j + 3]),
                                      pack<Element::f16>(weight[4 * j + 4], weight[4 * j + 5]),
                                      pack<Element::f16>(weight[4 * j + 6], weight[4 * j + 7]));
        }
        if (warp_ == 0 && lane_ == 0) shared_.rescale[0] = changed ? 1 : 0;
        fence_async_proxy();
        __syncwarp();
        if (lane_ == 0) arrive(&shared_.weights_full);
    }

    // --- the end of an item
    // -------------------------------------------------------------------------
    __device__ void finish(const Item& item) {
        float(&sums)[4][kN] = shared_.maxima[turn_];
        float(&maxima)[4][kN] = shared_.maxima[turn_ ^ 1];
        // Others may still read the last tile's maxima.
        named_barrier(kScoreBarrier, 128);
        share_columns(sum_, sums[warp_], [](float a, float b) { return a + b; });
        if (warp_ == 0 && group_ == 0)
#pragma unroll
            for (int i = 0; i < kColumns; ++i)
                maxima[0][i / 2 * 8 + pair_ * 2 + i % 2] = maximum_[i];
        wait(&shared_.final_free, final_phase_ ^ 1);
        final_phase_ ^= 1;
        named_barrier(kScoreBarrier, 128);
        if (thread_ < kN) {
            const float sum =
                ((sums[0][thread_] + sums[1][thread_]) + sums[2][thread_]) + sums[3][thread_];
            write_stats(item, maxima[0][thread_], sum);
        }
        named_barrier(kScoreBarrier, 128);
        if (thread_ == 0) arrive(&shared_.final_full);
    }

    __device__ void write_stats(const Item& item, float maximum, float sum) {
        if (item.slot >= 0) {
            p_.stats[static_cast<long long>(item.slot) * kN + thread_] = float2{maximum, sum};
            return;
        }
        shared_.final_factor[thread_] = sum > 0.0f ? p_.value_scale / sum : 0.0f;
        if (p_.lse != nullptr && thread_ < item.columns)
            p_.lse[item.packed_first + thread_] = natural_lse(maximum, sum);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int thread_, warp_, lane_, group_, pair_;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t query_phase_ = 0, weights_phase_ = 0, final_phase_ = 0;
    int turn_ = 0;
    float maximum_[kColumns], sum_[kColumns];
    float key_scale_[2], key_inverse_[2], key_log_[2];
};

}  // namespace espalier::mla::cuda
