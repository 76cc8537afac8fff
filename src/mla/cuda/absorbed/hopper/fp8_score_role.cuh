// SPDX-License-Identifier: Apache-2.0
// The two scoring warpgroups over FP8 caches: Sᵀ = K·Qᵀ for a tile of 64 keys each and kColumns
// packed rows (here columns), the mask, and the running softmax. Keys are the left operand: a
// thread loads the codes it needs and widens them in registers, so that widened keys never pass
// through shared memory, whose bandwidth would be the bound (docs/kernels/mla_decode.md).
//
// A warp owns 16 keys; a thread has two of them, g and g + 8 in the product's order, and columns
// 8n + 2p, 8n + 2p + 1 (lane = 4g + p). Key g of the product is key_at(g) of the sixteen, which
// makes the code loads here and in fp8_output_role.cuh free of bank conflicts. A column's maximum
// is over all eight warps, so they look together whether any column needs a new reference; seldom,
// but always where a split begins. Where splits_go_on nobody asks there, and where a split ends
// each warp leaves its sums to the outputs.
//
// With a scale σ per key (fp8_token) the maximum is taken over score + log2 σ: weights P·σ stay
// small whatever the scales, and the sum of P is the sum of weight / σ.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/absorbed/hopper/invariant_merge.cuh"
#include "mla/cuda/absorbed/hopper/query_widener.cuh"

namespace espalier::mla::cuda {

// Which of eight keys stands at place g of a product.
__device__ __forceinline__ int key_at(int g) { return g ^ (g & 1) << 2; }

// Fold over lanes: a thread has eight values of eight columns, and so have the eight lanes with the
// same lane % 4: combined over these, every lane ends up with one column's, in 7 shuffles instead
// of 24. (What wants shared memory waits for the products of other warps.) Sums are taken in the
// order of a butterfly's steps 4, 8 and 16.
struct LaneFold {
    template <typename Combine>
    __device__ static float over_lanes(float (&value)[8], Combine combine) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            const bool upper = (lane & step) != 0;
#pragma unroll
            for (int i = 0; i < 16 / step; ++i) {
                const float own = upper ? value[i + 16 / step] : value[i];
                const float other = upper ? value[i] : value[i + 16 / step];
                value[i] = combine(own, __shfl_xor_sync(~0u, other, step));
            }
        }
        return value[0];
    }
    // Which one a lane ends up with, and the first of the four lanes that have value `index`.
    __device__ static int owned(int lane) { return (lane & 4) + (lane >> 2 & 2) + (lane >> 4); }
    __device__ static constexpr int owner(int index) {
        return (index & 4) + (index & 2) * 4 + (index & 1) * 16;
    }
};

template <KvFormat kFormat, int kColumns, bool kInvariant, bool kOneToken>
class Fp8Scorer {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr int kEights = kColumns / 8;
    static constexpr int kSums = kColumns / 2;  // column 8n + 2p + j, key g + 8h: 4n + 2h + j
    using Left = std::uint32_t[4][4];           // left operands of 64 columns of K
    static constexpr int kSets = 2;             // one is filled while the other's products run
    static constexpr bool kGoOn = splits_go_on(kColumns, kInvariant);
    static constexpr int kAllThreads = 256;
    static constexpr int kWarps = kAllThreads / 32;

  public:
    __device__ Fp8Scorer(const AbsorbedParams& p, Shared& shared, int which)
        : p_(p),
          shared_(shared),
          which_(which),
          thread_(threadIdx.x % 128),
          warp_(thread_ / 32),
          lane_(threadIdx.x % 32),
          pair_(lane_ % 4),
          key_(warp_ * 16 + key_at(lane_ / 4)) {}

    __device__ void run() {
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return;
            if (!kInvariant || (uniform(item.flags) & kMerges) == 0)
                score_item(item);
            else if constexpr (kGoOn)
                merge(item);
            arrive_as_warp(&shared_.item_free[items_.index]);
            items_.advance();
        }
    }

  private:
    // Scales of a thread's two keys.
    struct Scales {
        float sigma[2], log_sigma[2], inverse[2];
    };

    // Both scoring warpgroups. (Named barriers would do, but to racecheck they are not always one.)
    __device__ void sync_scorers() {
        arrive_as_warp(&shared_.scorers);
        wait(&shared_.scorers, meeting_phase_);
        meeting_phase_ ^= 1;
    }

    __device__ void merge(const Item& item) {
        if ((uniform(item.flags) & kLocal) != 0 && all_merge(p_))
            merge_with_all(p_, item, kOutputWarps);
#pragma unroll
        for (float& sum : sum_) sum = 0.0f;  // of no use any more: no registers are kept for them
    }

    // Tiles are taken two at a time. Where the last one has no partner, the second warpgroup only
    // takes part in the decisions.
    __device__ void score_item(const Item& item) {
        int tile = uniform(item.tile_begin);
        // The last item's products are through: all have met since, at a vote. (The meeting before
        // is racecheck's, to whom a named barrier is not always one.)
        if (tile < uniform(item.tile_end) && item_says<kInvariant>(item, kNewQuery)) {
            if (kGoOn) sync_scorers();
            QueryWidener<kFormat>(p_, shared_).run(item, which_ * 4 + warp_, kWarps);
            if (kGoOn) sync_scorers();
        }
        SplitRun<kInvariant> run(item);
        while (run.next()) {
            if (item_says<kInvariant>(item, kStarts)) start(item);
            if (!kGoOn) sync_scorers();
            const int end = run.end();
            score_tiles(item, tile, end);
            tile = end;
            if (!item_says<kInvariant>(item, kEnds)) continue;
            if constexpr (kGoOn)
                leave_sums();
            else
                finish(item, run.slot());
        }
    }

    __device__ void start(const Item& item) {
#pragma unroll
        for (float& sum : sum_) sum = 0.0f;
        fresh_ = true;
        if (!kGoOn && which_ == 0 && thread_ < kColumns)
            shared_.reference[thread_] = first_reference(item);
    }
    // Columns that do not exist never ask for another reference.
    __device__ float first_reference(const Item& item) const {
        return thread_ < item.columns ? minus_infinity() : -minus_infinity();
    }
    __device__ float* references() {
        return kGoOn ? shared_.turn_reference[final_phase_] : shared_.reference;
    }

    __device__ void score_tiles(const Item& item, int tile_begin, int tile_end) {
        for (int tile = tile_begin + which_; tile - which_ < tile_end; tile += 2) {
            float score[kSums];
            Scales scales;
            const bool mine = tile < tile_end;
            if (which_ == 1) keys_.advance();
            if (mine) {
                score_tile(item, tile, score, scales);
            } else {
#pragma unroll
                for (float& one : score) one = minus_infinity();
            }
            softmax_tile(item, score, scales, mine);
            if (mine) keys_.advance();
            if (which_ == 0 && tile + 1 < tile_end) keys_.advance();
        }
    }

    __device__ void score_tile(const Item& item, int tile, float (&score)[kSums], Scales& scales) {
        wait(&shared_.keys_full[keys_.index], keys_.phase);
        // Slots past the last key may hold NaN, which even a weight of zero would spread.
        const int valid = item.keys - tile * kTileKeys;
        if (valid < kTileKeys) {
            clear_key_rows<4>(shared_.keys[keys_.index], valid);
            named_barrier(kMaskBarrier + which_, 128);
        }
        scales = key_scales();
        multiply(score, scales);
        scale(score, scales);
        if ((tile + 1) * kTileKeys > item.free_keys) apply_mask(item, tile, score);
    }

    __device__ Scales key_scales() {
        Scales scales;
#pragma unroll
        for (int half = 0; half < 2 && T::kTokenScale; ++half) {
            float sigma = shared_.key_scale[keys_.index][key_ + 8 * half];
            if (!(sigma > 0.0f && sigma < 3e38f)) sigma = 1.0f;  // a key of zeros
            // Below 2^-64 a key's latent is nothing beside any rope, and 1 / σ must stay finite.
            sigma = fmaxf(sigma, 0x1p-64f);
            scales.sigma[half] = sigma;
            scales.log_sigma[half] = log2_fast(sigma);
            scales.inverse[half] = __fdividef(1.0f, sigma);
        }
        return scales;
    }

    // --- Sᵀ = K·Qᵀ ------------------------------------------------------------------------------
    // The rope first. Latent codes then come 64 columns at a time.
    __device__ void multiply(float (&score)[kSums], const Scales& scales) {
        hold(score);
        Left left[kSets];
        const UniformDescriptor query(shared_.query);
        if constexpr (T::kTokenScale) {
            // The rope has no scale: its part is divided by those that the sum is multiplied with.
            float factor[2];
            rope_operand(left[kSets - 1], scales, factor);
            multiply_block(query.at(8 * T::kQueryBlock), left[kSets - 1], score, 0);
            wgmma_wait<0>();
            hold(score);
#pragma unroll
            for (int i = 0; i < kSums; ++i) score[i] *= factor[i / 2 % 2];
            hold(score);
        } else {
            widen(rope_codes(0), rope_codes(1), left[kSets - 1]);
            multiply_block(query.at(8 * T::kQueryBlock), left[kSets - 1], score, 0);
        }
#pragma unroll
        for (int block = 0; block < 8; ++block) {
            const int4 upper = codes(block, 0);
            const int4 lower = codes(block, 1);
            wgmma_wait<kSets - 1>();
            widen(upper, lower, left[block % kSets]);
            multiply_block(query.at(block * T::kQueryBlock), left[block % kSets], score, 1);
        }
        wgmma_wait<0>();
        hold(score);
    }

    __device__ void multiply_block(std::uint64_t query, const Left& left, float (&score)[kSums],
                                   int add) {
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma_left<kColumns, Element::f16>(score, left[step], query + 2 * step, add + step > 0);
        wgmma_commit();
    }

    // Sixteen codes of key g (half 0) or g + 8: columns 16p … 16p + 15 of 64.
    __device__ int4 codes(int block, int half) const {
        const int row = key_ + 8 * half;
        const std::byte* from = shared_.keys[keys_.index] + block / 2 * kBlockBytes + row * 128;
        return *reinterpret_cast<const int4*>(from + ((block % 2 * 4 + pair_ ^ (row & 7)) << 4));
    }
    __device__ int4 rope_codes(int half) const {
        const int row = key_ + 8 * half;
        return *reinterpret_cast<const int4*>(shared_.keys[keys_.index] + T::kRopePlace + row * 64 +
                                              ((pair_ ^ (row >> 1 & 3)) << 4));
    }
    // Step s of a product takes columns 16p + 4s … 16p + 4s + 3 (query_widener.cuh follows).
    __device__ static void widen(const int4& upper, const int4& lower, Left& left) {
        const int up[4] = {upper.x, upper.y, upper.z, upper.w};
        const int low[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            widen_four(static_cast<std::uint32_t>(up[step]), left[step][0], left[step][2]);
            widen_four(static_cast<std::uint32_t>(low[step]), left[step][1], left[step][3]);
        }
    }

    // The rope columns of fp8_token are bf16; a power of two per key brings the largest just below
    // 2^15, so that fp16 has them exactly down to 2^-39 of it.
    __device__ void rope_operand(Left& left, const Scales& scales, float (&factor)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = key_ + 8 * half;
            const std::byte* from = shared_.keys[keys_.index] + T::kRopePlace + row * 128;
            const int4 first =
                *reinterpret_cast<const int4*>(from + ((2 * pair_ ^ (row & 7)) << 4));
            const int4 second =
                *reinterpret_cast<const int4*>(from + ((2 * pair_ + 1 ^ (row & 7)) << 4));
            const int pairs[8] = {first.x,  first.y,  first.z,  first.w,
                                  second.x, second.y, second.z, second.w};
            float largest = 0.0f;
#pragma unroll
            for (const int two : pairs) {
                const float2 values = unpack<Element::bf16>(static_cast<std::uint32_t>(two));
                largest = fmaxf(largest, fmaxf(fabsf(values.x), fabsf(values.y)));
            }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const int shift = shift_below_2_15(largest);
            const float scale = power_of_two(shift);
            factor[half] = power_of_two(-shift) * scales.inverse[half];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float2 values = unpack<Element::bf16>(static_cast<std::uint32_t>(pairs[i]));
                left[i / 2][half + i % 2 * 2] =
                    pack<Element::f16>(values.x * scale, values.y * scale);
            }
        }
    }

    // --- the softmax ----------------------------------------------------------------------------
    __device__ float2 pair_of(const float* table, int eight) const {
        return *reinterpret_cast<const float2*>(table + eight * 8 + pair_ * 2);
    }

    // To the logarithm of base 2.
    __device__ void scale(float (&score)[kSums], const Scales& scales) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
            const float2 query = pair_of(shared_.query_scale, n);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& one = score[4 * n + i];
                one *= (i % 2 == 0 ? query.x : query.y) * p_.score_scale;
                if constexpr (T::kTokenScale)
                    one = one * scales.sigma[i / 2] + scales.log_sigma[i / 2];
            }
        }
    }

    // Two threads find what a column sees; all take from it.
    __device__ void apply_mask(const Item& item, int tile, float (&score)[kSums]) {
        if constexpr (kOneToken) {
            const std::uint64_t visible = keys_of_one_token(item, tile);
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                if ((visible >> (key_ + i / 2 % 2 * 8) & 1) == 0) score[i] = minus_infinity();
            return;
        }
        if (thread_ < 2 * kColumns) {
            const int column = thread_ / 2;
            const RowMask mask(p_, item, shared_.seen[items_.index], min(column, item.columns - 1));
            const std::uint64_t visible = mask.template visible<2>(tile);
            if (thread_ % 2 == 0) shared_.visible[which_][column] = visible;
        }
        named_barrier(kMaskBarrier + which_, 128);
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const std::uint64_t visible = shared_.visible[which_][i / 4 * 8 + pair_ * 2 + i % 2];
            if ((visible >> (key_ + i / 2 % 2 * 8) & 1) == 0) score[i] = minus_infinity();
        }
    }

    __device__ void softmax_tile(const Item& item, float (&score)[kSums], const Scales& scales,
                                 bool mine) {
        const bool raise = (kGoOn && fresh_) || any_above(score);
        if (mine) {
            wait(&shared_.weights_free[which_], weights_phase_ ^ 1);
            weights_phase_ ^= 1;
        }
        if (raise) raise_references(item, score);
        fresh_ = false;
        if (mine) publish(score, scales, raise);
    }
    __device__ bool any_above(const float (&score)[kSums]) {
        bool above = false;
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
            const float2 reference = pair_of(references(), n);
            above |= fmaxf(score[4 * n], score[4 * n + 2]) > reference.x + kReach;
            above |= fmaxf(score[4 * n + 1], score[4 * n + 3]) > reference.y + kReach;
        }
        return named_barrier_or(kVoteBarrier, kAllThreads, above);
    }

    // Columns whose largest score is too far above get it as their reference.
    __device__ void raise_references(const Item& item, const float (&score)[kSums]) {
        tell_maxima(score);
        sync_scorers();
        if (which_ == 0 && thread_ < kColumns) {
            const float before = kGoOn && fresh_ ? first_reference(item) : references()[thread_];
            float largest = minus_infinity();
#pragma unroll
            for (const auto& warp : shared_.by_warp) largest = fmaxf(largest, warp[thread_]);
            const bool raised = largest > before + kReach;
            const float after = raised ? largest - kLift : before;
            shared_.factor[thread_] = raised ? exp2_fast(before - after) : 1.0f;
            references()[thread_] = after;
        }
        sync_scorers();
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
            const float2 factor = pair_of(shared_.factor, n);
            sum_[2 * n] *= factor.x;
            sum_[2 * n + 1] *= factor.y;
        }
    }
    // Over the warp's sixteen keys.
    __device__ void tell_maxima(const float (&score)[kSums]) {
        if constexpr (kGoOn) {
            float largest[2 * kEights];
#pragma unroll
            for (int i = 0; i < 2 * kEights; ++i)
                largest[i] = fmaxf(score[i / 2 * 4 + i % 2], score[i / 2 * 4 + i % 2 + 2]);
            shared_.by_warp[which_ * 4 + warp_][own_column()] =
                LaneFold::over_lanes(largest, [](float a, float b) { return fmaxf(a, b); });
        } else {
#pragma unroll
            for (int n = 0; n < kEights; ++n) {
                const float2 largest = {over_keys_max(fmaxf(score[4 * n], score[4 * n + 2])),
                                        over_keys_max(fmaxf(score[4 * n + 1], score[4 * n + 3]))};
                if (lane_ < 4)
                    *reinterpret_cast<float2*>(
                        &shared_.by_warp[which_ * 4 + warp_][n * 8 + pair_ * 2]) = largest;
            }
        }
    }
    // The one that LaneFold gives this lane.
    __device__ int own_column() const {
        const int index = LaneFold::owned(lane_);
        return index / 2 * 8 + pair_ * 2 + index % 2;
    }
    __device__ static float over_keys_max(float value) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
            value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
        return value;
    }

    // Pᵀ as rows of 64 keys, swizzled as the products want it. (A thread has keys × columns.)
    __device__ void publish(const float (&score)[kSums], const Scales& scales, bool raise) {
        const int row = lane_ % 8;
        const int chunk = warp_ * 2 + lane_ / 8 % 2;
        const std::uint32_t base = shared_address(shared_.weights[which_]) + lane_ / 16 * 1024 +
                                   row * 128 + ((chunk ^ row) << 4);
#pragma unroll
        for (int n = 0; n < kEights; n += 2) {
            std::uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 reference = pair_of(references(), n + i);
                const float shift[2] = {finite_or_zero(reference.x), finite_or_zero(reference.y)};
                float weight[4];
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    weight[c] = exp2_fast(score[4 * (n + i) + c] - shift[c % 2]);
                    sum_[2 * (n + i) + c % 2] +=
                        T::kTokenScale ? weight[c] * scales.inverse[c / 2] : weight[c];
                }
                packed[2 * i] = pack<Element::f16>(weight[0], weight[1]);
                packed[2 * i + 1] = pack<Element::f16>(weight[2], weight[3]);
            }
            store_transposed(base + n * 1024, packed[0], packed[1], packed[2], packed[3]);
        }
        if (which_ == 0 && thread_ == 0) shared_.rescale[0] = raise ? 1 : 0;
        fence_async_proxy();
        arrive_as_warp(&shared_.weights_full[which_]);
    }

    // The outputs have done with the split before, and so with the place of its sums.
    __device__ void leave_sums() {
        wait(&shared_.final_free, final_phase_ ^ 1);
        final_phase_ ^= 1;
        shared_.sum_of_warp[which_ * 4 + warp_][own_column()] =
            LaneFold::over_lanes(sum_, [](float a, float b) { return a + b; });
        arrive_as_warp(&shared_.final_full);
    }
    __device__ void finish(const Item& item, int slot) {
        wait(&shared_.final_free, final_phase_ ^ 1);
        final_phase_ ^= 1;
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
            float sum = sum_[i];
#pragma unroll
            for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (lane_ < 4) shared_.by_warp[which_ * 4 + warp_][i / 2 * 8 + pair_ * 2 + i % 2] = sum;
        }
        sync_scorers();
        if (which_ == 0 && thread_ < min(item.columns, kColumns)) {
            float sum = 0.0f;
#pragma unroll
            for (const auto& warp : shared_.by_warp) sum += warp[thread_];
            shared_.final_factor[thread_] = sum > 0.0f ? __fdividef(p_.value_scale, sum) : 0.0f;
            const float lse =
                sum > 0.0f ? shared_.reference[thread_] + log2_fast(sum) : minus_infinity();
            if (kInvariant && slot >= 0)
                shared_.final_lse[thread_] = lse;
            else if (slot >= 0)
                p_.partial_lse[static_cast<long long>(slot) * T::kRows + thread_] = lse;
            else if (p_.lse != nullptr)
                p_.lse[item.packed_first + thread_] = lse * kLn2;
        }
        arrive_as_warp(&shared_.final_full);
    }

    static constexpr float kLift = kLargestAfterRaise<Element::f16>;
    static constexpr float kReach = kLift + kHeadroom;

    const AbsorbedParams& p_;
    Shared& shared_;
    const int which_, thread_, warp_, lane_, pair_, key_;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t weights_phase_ = 0, final_phase_ = 0, meeting_phase_ = 0;
    bool fresh_ = true;  // no tile of the split has been looked at
    float sum_[2 * kEights];
};

}  // namespace espalier::mla::cuda
