// SPDX-License-Identifier: Apache-2.0
// The two output warpgroups over FP8 caches: Oᵀ += Vᵀ·Pᵀ, 256 of the 512 value columns each, for
// kColumns packed rows. Values are the left operand, widened in registers from the codes of the key
// tile: four keys × eight value columns at a time.
//
// A warp owns 64 value columns, a thread eight neighbouring ones (8g … 8g + 7; two of them in each
// of four products) and packed rows 8n + 2p, 8n + 2p + 1 (lane = 4g + p).
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "mla/cuda/absorbed/hopper/fp8_score_role.cuh"
#include "mla/cuda/absorbed/hopper/invariant_merge.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat, int kColumns, bool kInvariant>
class Fp8OutputHalf {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;
    static constexpr int kEights = kColumns / 8;
    static constexpr int kSums = kColumns / 2;  // row 8n + 2p + j, value column h: 4n + 2h + j
    static constexpr int kProducts = 4;
    static constexpr bool kGoOn = splits_go_on(kColumns, kInvariant);
    using Left = std::uint32_t[kProducts][4];  // left operands of 16 keys
    static constexpr int kSets =
        kColumns == 16 ? 2
                       : 1;  // where registers allow, one is filled while the other's products run

  public:
    __device__ Fp8OutputHalf(const AbsorbedParams& p, Shared& shared, int half)
        : p_(p), shared_(shared), lane_(threadIdx.x % 32), pair_(lane_ % 4) {
        const int warp = threadIdx.x % 128 / 32;
        column_ = half * 256 + warp * 64 + lane_ / 4 * 8;
        // Codes of a key's row: a block of 128 columns, a chunk of sixteen bytes in it, half of it.
        const int chunk = column_ % 128 / 16;
        const auto place = [&](int key) {
            return column_ / 128 * kBlockBytes + key * 128 + ((chunk ^ key) << 4) + column_ % 16;
        };
        even_ = place(key_at(2 * pair_));
        odd_ = place(key_at(2 * pair_ + 1));
    }

    __device__ void run() {
        while (accumulate()) {
            merge_share<true, kColumns <= kFewRows, kGoOn>(p_, shared_.items[items_.index],
                                                           shared_);
            release_item();
        }
    }

  private:
    // Up to an item that merges, which has no need of these registers; false: up to the end.
    __device__ bool accumulate() {
        float out[kProducts][kSums];
        clear(out);
#pragma unroll
        for (auto& sums : out) hold(sums);
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item& item = shared_.items[items_.index];
            if (uniform(item.last) != 0) return false;
            if (kInvariant && (uniform(item.flags) & kMerges) != 0) return true;
            add_item(item, out);
            release_item();
        }
    }
    __device__ void release_item() {
        arrive_as_warp(&shared_.item_free[items_.index]);
        items_.advance();
    }

    __device__ static void clear(float (&out)[kProducts][kSums]) {
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (float& sum : out[i]) sum = 0.0f;
    }

    __device__ void add_item(const Item& item, float (&out)[kProducts][kSums]) {
        if (kInvariant && threadIdx.x % kOutputThreads == 0) look_at_counter(p_, item, shared_);
        int tile = uniform(item.tile_begin);
        SplitRun<kInvariant> run(item);
        while (run.next()) {
            if (item_says<kInvariant>(item, kStarts)) clear(out);
            const int begin = tile;
            for (const int end = run.end(); tile < end; ++tile) add_tile((tile - begin) % 2, out);
            if (item_says<kInvariant>(item, kEnds)) finish(item, run, out);
        }
    }

    __device__ void finish(const Item& item, const SplitRun<kInvariant>& run,
                           const float (&out)[kProducts][kSums]) {
        wait(&shared_.final_full, final_phase_);
        if constexpr (kGoOn) {
            const RowFinal own(p_, shared_, final_phase_, row_of(LaneFold::owned(lane_)),
                               item.columns);
            final_phase_ ^= 1;
            arrive_as_warp(&shared_.final_free);
            store_together(item, run.slot(), own, out);
        } else {
            final_phase_ ^= 1;
            if constexpr (kInvariant)
                store_rounded(item, run.slot(), out);
            else
                store_rows(item, out);
            arrive_as_warp(&shared_.final_free);
        }
        if (kInvariant && run.last()) count_partials(p_, item);
    }

    // `from`: which of the scoring warpgroups had it.
    __device__ void add_tile(int from, float (&out)[kProducts][kSums]) {
        wait(&shared_.keys_full[keys_.index], keys_.phase);  // makes them visible to this thread
        wait(&shared_.weights_full[from], weights_phases_ >> from & 1);
        weights_phases_ ^= 1u << from;
        if (from == 0 && uniform(shared_.rescale[0]) != 0) rescale(out);
        const std::byte* tile = shared_.keys[keys_.index];
#pragma unroll
        for (int i = 0; i < kProducts; ++i) hold(out[i]);
        const UniformDescriptor weights(shared_.weights[from]);
        Left left[kSets];
#pragma unroll
        for (int step = 0; step < 4; ++step) {  // of sixteen keys
            const std::byte* keys = tile + step * 16 * 128;
            if (step >= kSets) wgmma_wait<kSets - 1>();
            widen(keys, left[step % kSets]);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < kProducts; ++i)
                wgmma_left<kColumns, Element::f16>(out[i], left[step % kSets][i],
                                                   weights.at(step * 32), 1);
            wgmma_commit();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < kProducts; ++i) hold(out[i]);
        arrive_as_warp(&shared_.keys_free[keys_.index]);
        arrive_as_warp(&shared_.weights_free[from]);
        keys_.advance();
    }

    // Pairs of keys come together byte by byte. Product i takes value columns 2i and 2i + 1.
    __device__ void widen(const std::byte* keys, Left& left) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint2 even = *reinterpret_cast<const uint2*>(keys + even_ + half * 8 * 128);
            const uint2 odd = *reinterpret_cast<const uint2*>(keys + odd_ + half * 8 * 128);
#pragma unroll
            for (int i = 0; i < kProducts; ++i) {
                const std::uint32_t both = __byte_perm(
                    i < 2 ? even.x : even.y, i < 2 ? odd.x : odd.y, i % 2 == 0 ? 0x5140 : 0x7362);
                widen_four(both, left[i][2 * half], left[i][2 * half + 1]);
            }
        }
    }

    __device__ void rescale(float (&out)[kProducts][kSums]) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
            const float2 factor =
                *reinterpret_cast<const float2*>(shared_.factor + n * 8 + pair_ * 2);
#pragma unroll
            for (int i = 0; i < kProducts; ++i) {
                out[i][4 * n] *= factor.x;
                out[i][4 * n + 1] *= factor.y;
                out[i][4 * n + 2] *= factor.x;
                out[i][4 * n + 3] *= factor.y;
            }
        }
    }

    // Each row in 16 bits, 64 columns with one scale: to the output if it has no other splits, or
    // to where it waits for them.
    __device__ void store_rounded(const Item& item, int first_slot,
                                  const float (&sums)[kProducts][kSums]) {
        const PartialPlace<kColumns <= kFewRows> place(p_, item, first_slot, lane_);
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
            const int row = i / 2 * 8 + pair_ * 2 + i % 2;
            const float factor = row < item.columns ? shared_.final_factor[row] : 0.0f;
            float value[8];
            float largest = 0.0f;
#pragma unroll
            for (int column = 0; column < 8; ++column) {
                value[column] = sums[column / 2][i / 2 * 4 + column % 2 * 2 + i % 2];
                largest = fmaxf(largest, fabsf(value[column]));
            }
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
            const RowScale of_row(largest, factor);
            if (first_slot < 0) {
                if (row >= item.columns) continue;
                const long long to =
                    static_cast<long long>(item.packed_first + row) * kLatent + column_;
#pragma unroll
                for (int column = 0; column < 8; column += 2)
                    store_pair(p_.out, p_.out_dtype, to + column,
                               RowScale::rounded(of_row.scale, of_row.inverse, value[column]),
                               RowScale::rounded(of_row.scale, of_row.inverse, value[column + 1]));
                continue;
            }
            if (i / 4 * kStripRows >= item.columns) continue;
            const int group = column_ / 64;
            if (lane_ < 4)
                store_at_once(place.row(group, row % kStripRows) + i / 4 * kStripScales,
                              {shared_.final_lse[row], of_row.inverse});
            const auto packed = [&](int column) {
                return RowScale::packed(of_row.scale, value[column], value[column + 1]);
            };
            store_codes(place.chunk(i / 4 * kStripChunks + group * 2 + i % 4 / 2) + i % 2 * 32,
                        uint4{packed(0), packed(2), packed(4), packed(6)});
        }
    }

    // --- where splits_go_on ---------------------------------------------------------------------
    // A thread's rows are numbered as LaneFold does.
    __device__ int row_of(int index) const { return index / 2 * 8 + pair_ * 2 + index % 2; }
    __device__ static float sum_of(const float (&sums)[kProducts][kSums], int index, int column) {
        return sums[column / 2][index / 2 * 4 + column % 2 * 2 + index % 2];
    }

    // Factor and log-sum-exp with which a split ends, for the row that LaneFold gives a lane.
    struct RowFinal {
        int row;
        float factor = 0.0f;  // makes the output of sums
        float lse = minus_infinity();
        __device__ RowFinal(const AbsorbedParams& p, const Shared& shared, int turn, int of_row,
                            int columns)
            : row(of_row) {
            float sum = 0.0f;
#pragma unroll
            for (const auto& warp : shared.sum_of_warp) sum += warp[row];
            if (row >= columns || !(sum > 0.0f)) return;
            factor = __fdividef(p.value_scale, sum);
            lse = shared.turn_reference[turn][row] + log2_fast(sum);
        }
    };

    // Results of store_rounded, all rows looked at together: one after another, each with its own
    // shuffles, 32 of them take 7,000 cycles.
    __device__ void store_together(const Item& item, int first_slot, const RowFinal& own,
                                   const float (&sums)[kProducts][kSums]) {
        float largest[2 * kEights];
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
            largest[i] = 0.0f;
#pragma unroll
            for (int column = 0; column < 8; ++column)
                largest[i] = fmaxf(largest[i], fabsf(sum_of(sums, i, column)));
        }
        const RowScale own_scale(
            LaneFold::over_lanes(largest, [](float a, float b) { return fmaxf(a, b); }),
            own.factor);
        const auto of_row = [&](float value, int index) {
            return __shfl_sync(~0u, value, LaneFold::owner(index) + pair_);
        };
        float scale[2 * kEights];
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) scale[i] = of_row(own_scale.scale, i);
        if (first_slot < 0) {
            if (column_ / 64 == 0 && own.row < item.columns && p_.lse != nullptr)
                p_.lse[item.packed_first + own.row] = own.lse * kLn2;
#pragma unroll
            for (int i = 0; i < 2 * kEights; ++i) {
                const float inverse = of_row(own_scale.inverse, i);
                if (row_of(i) >= item.columns) continue;
                const long long to =
                    static_cast<long long>(item.packed_first + row_of(i)) * kLatent + column_;
#pragma unroll
                for (int column = 0; column < 8; column += 2)
                    store_pair(p_.out, p_.out_dtype, to + column,
                               RowScale::rounded(scale[i], inverse, sum_of(sums, i, column)),
                               RowScale::rounded(scale[i], inverse, sum_of(sums, i, column + 1)));
            }
            return;
        }
        const PartialPlace<kColumns <= kFewRows> place(p_, item, first_slot, lane_);
        const int group = column_ / 64;
        const int strip = own.row / kStripRows;
        if (strip * kStripRows < item.columns)
            store_at_once(place.row(group, own.row % kStripRows) + strip * kStripScales,
                          {own.lse, own_scale.inverse});
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
            if (i / 4 * kStripRows >= item.columns) continue;
            const auto packed = [&](int column) {
                return RowScale::packed(scale[i], sum_of(sums, i, column),
                                        sum_of(sums, i, column + 1));
            };
            store_codes(place.chunk(i / 4 * kStripChunks + group * 2 + i % 4 / 2) + i % 2 * 32,
                        uint4{packed(0), packed(2), packed(4), packed(6)});
        }
    }

    __device__ void store_rows(const Item& item, const float (&sums)[kProducts][kSums]) {
        const bool partial = item.slot >= 0;
        if (partial || p_.out_dtype == DType::f32)
            store_as<DType::f32>(item, partial ? reinterpret_cast<std::byte*>(p_.partial) : p_.out,
                                 partial ? static_cast<long long>(item.slot) * T::kRows
                                         : static_cast<long long>(item.packed_first),
                                 sums);
        else if (p_.out_dtype == DType::bf16)
            store_as<DType::bf16>(item, p_.out, item.packed_first, sums);
        else
            store_as<DType::f16>(item, p_.out, item.packed_first, sums);
    }
    template <DType kDType>
    __device__ void store_as(const Item& item, std::byte* out, long long first,
                             const float (&sums)[kProducts][kSums]) {
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
            const int row = i / 2 * 8 + pair_ * 2 + i % 2;
            if (row >= item.columns) continue;
            const float factor = shared_.final_factor[row];
            const long long to = (first + row) * kLatent + column_;
            const auto value = [&](int column) {
                return sums[column / 2][i / 2 * 4 + column % 2 * 2 + i % 2] * factor;
            };
#pragma unroll
            for (int quad = 0; quad < 8; quad += 4)
                store_quad<kDType>(
                    out, to + quad,
                    float4{value(quad), value(quad + 1), value(quad + 2), value(quad + 3)});
        }
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_, pair_;
    int column_ = 0;  // first of this thread's eight
    int even_ = 0, odd_ = 0;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t weights_phases_ = 0, final_phase_ = 0;
};

}  // namespace espalier::mla::cuda
