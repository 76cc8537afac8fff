// SPDX-License-Identifier: Apache-2.0
// Merges the splits of a block of packed rows as soon as all are there. Every part that computed
// some of the splits merges that share of the columns, so nobody waits for a whole grid. Splits
// fold in ascending order into groups of eight, groups in ascending order into the row: always, so
// that one warp may take all groups or several may share them. A warp takes two chunks at a time,
// 16 packed rows by 32 columns or 8 rows by 64 (FP8), and asks for all that a group has of them at
// once.
#pragma once

#include "mla/cuda/partial.cuh"

namespace espalier::mla::cuda {

inline constexpr int kOutputWarps = kOutputThreads / 32;
inline constexpr int kGroupSplits = 8;
inline constexpr int kStripPairs = kStripChunks / 2;

// What a lane has of two chunks: two rows, and of each chunk four words of two columns.
template <bool kFp8>
struct PairLane {
    int pair;  // of its slot
    int lane = static_cast<int>(threadIdx.x) % 32;
    // Which of the two rows a word is of.
    __device__ static constexpr int row_of(int chunk, int word) { return kFp8 ? chunk : word % 2; }
    // In the strip.
    __device__ int row(int index) const {
        return kFp8 ? pair % 2 * 8 + lane % 4 * 2 + index : lane / 4 + index * 8;
    }
    __device__ int scale_group() const { return kFp8 ? pair / 2 : pair / 8; }
    __device__ int column(int chunk, int word) const {
        if constexpr (kFp8) return pair / 2 * 64 + lane / 4 * 8 + word * 2;
        return pair / 8 * 256 + ((pair % 8 * 2 + chunk) * 2 + word / 2) * 8 + lane % 4 * 2;
    }
    // Whether this lane writes the rows' log-sum-exp.
    __device__ bool first_of_row() const {
        return kFp8 ? pair < 2 && lane < 4 : pair == 0 && lane % 4 == 0;
    }
};

// A lane's share of some splits, folded.
struct Folded {
    float maximum[2];
    float sum[2];
    float2 out[2][4];  // chunk, word; weighted by 2^(lse - maximum)

    __device__ Folded() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = minus_infinity();
            sum[r] = 0.0f;
#pragma unroll
            for (float2& word : out[r]) word = float2{};
        }
    }
};

template <bool kFp8>
class PairMerge {
    using Lane = PairLane<kFp8>;
    static constexpr int kLoads = kFp8 ? 4 : 8;  // splits whose numbers are on their way at once

  public:
    // pair: of all pairs of the item's strips.
    __device__ PairMerge(const AbsorbedParams& p, const Item& item, int pair)
        : p_(p), item_(item), strip_(pair / kStripPairs), at_{pair % kStripPairs} {}

    __device__ Folded fold_group(int group) const {
        const int first = group * kGroupSplits;
        const int count = min(item_.splits - first, kGroupSplits);
        Folded folded;
        float lse[kGroupSplits][2], factor[kGroupSplits][2];
#pragma unroll
        for (int s = 0; s < kGroupSplits; ++s)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int slot = slot_at(first + min(s, count - 1));
                lse[s][r] = __ldcg(lse_of(p_, slot, at_.row(r)));
                factor[s][r] = __ldcg(scale_of(p_, slot, at_.scale_group(), at_.row(r)));
            }
#pragma unroll
        for (int base = 0; base < kGroupSplits; base += kLoads) {
            uint4 value[kLoads][2];
#pragma unroll
            for (int s = 0; s < kLoads; ++s)
#pragma unroll
                for (int chunk = 0; chunk < 2; ++chunk)
                    value[s][chunk] = __ldcg(chunk_of(p_, slot_at(first + min(base + s, count - 1)),
                                                      at_.pair * 2 + chunk));
            if (base == 0) weigh(folded, count, lse, factor);
#pragma unroll
            for (int s = 0; s < kLoads; ++s)
#pragma unroll
                for (int chunk = 0; chunk < 2; ++chunk)
                    add(folded.out[chunk], chunk, factor[base + s], value[s][chunk]);
        }
        return folded;
    }

    // Groups without keys change nothing.
    __device__ static void fold(Folded& all, const Folded& group) {
        float before[2], after[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = fmaxf(all.maximum[r], group.maximum[r]);
            before[r] = all.maximum[r] == top ? 1.0f : exp2_fast(all.maximum[r] - top);
            after[r] = group.maximum[r] == top ? 1.0f : exp2_fast(group.maximum[r] - top);
            all.maximum[r] = top;
            all.sum[r] = all.sum[r] * before[r] + group.sum[r] * after[r];
        }
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const int r = Lane::row_of(chunk, w);
                float2& out = all.out[chunk][w];
                out.x = out.x * before[r] + group.out[chunk][w].x * after[r];
                out.y = out.y * before[r] + group.out[chunk][w].y * after[r];
            }
    }

    __device__ void write(const Folded& all) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = strip_ * kStripRows + at_.row(r);
            if (row >= item_.columns) continue;
            const long long packed = item_.packed_first + row;
            const float factor = all.sum[r] > 0.0f ? 1.0f / all.sum[r] : 0.0f;
#pragma unroll
            for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    if (Lane::row_of(chunk, w) != r) continue;
                    store_pair(p_.out, p_.out_dtype, packed * kLatent + at_.column(chunk, w),
                               all.out[chunk][w].x * factor, all.out[chunk][w].y * factor);
                }
            if (at_.first_of_row() && p_.lse != nullptr)
                p_.lse[packed] = all.sum[r] > 0.0f ? (all.maximum[r] + log2f(all.sum[r])) * kLn2
                                                   : minus_infinity();
        }
    }

  private:
    __device__ int slot_at(int split) const {
        return item_.base + split * ceil_div(item_.columns, kStripRows) + strip_;
    }

    // From scales to what each split's integers are multiplied with; 0 for splits without keys.
    __device__ static void weigh(Folded& folded, int count, float (&lse)[kGroupSplits][2],
                                 float (&factor)[kGroupSplits][2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = minus_infinity();
#pragma unroll
            for (int s = 0; s < kGroupSplits; ++s) {
                if (s >= count) lse[s][r] = minus_infinity();
                top = fmaxf(top, lse[s][r]);
            }
            folded.maximum[r] = top;
#pragma unroll
            for (int s = 0; s < kGroupSplits; ++s) {
                const bool some = lse[s][r] != minus_infinity();
                const float weight = some ? exp2_fast(lse[s][r] - top) : 0.0f;
                folded.sum[r] += weight;
                factor[s][r] = some ? weight * factor[s][r] : 0.0f;
            }
        }
    }
    // Integers are finite whatever lies there.
    __device__ static void add(float2 (&out)[4], int chunk, const float (&factor)[2],
                               const uint4& value) {
        const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const float2 pair = unpacked(words[w]);
            const float times = factor[Lane::row_of(chunk, w)];
            out[w].x = __fmaf_rn(times, pair.x, out[w].x);
            out[w].y = __fmaf_rn(times, pair.y, out[w].y);
        }
    }

    const AbsorbedParams& p_;
    const Item& item_;
    const int strip_;
    const Lane at_;
};

// Where groups that several warps folded meet: the keys' place, when no more keys will come.
inline constexpr int kFoldedPlaces = 48;
struct FoldedPlaces {
    float number[kFoldedPlaces][sizeof(Folded) / 4][32];
};

__device__ inline void wait_for_splits(const AbsorbedParams& p, const Item& item) {
    if (threadIdx.x % kOutputThreads == 0) {
        unsigned arrived = 0;
        while (true) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(arrived)
                         : "l"(&p.counters[item.base].arrived)
                         : "memory");
            if (arrived >= static_cast<unsigned>(item.splits)) break;
            __nanosleep(20);
        }
    }
    named_barrier(kOutputBarrier, kOutputThreads);
}

// The output warps, for an item that merges.
template <bool kFp8>
class Merge {
  public:
    __device__ Merge(const AbsorbedParams& p, const Item& item, FoldedPlaces& places)
        : p_(p),
          item_(item),
          places_(places),
          warp_(static_cast<int>(threadIdx.x) % kOutputThreads / 32),
          groups_(ceil_div(item.splits, kGroupSplits)) {
        const long long pairs = ceil_div(item.columns, kStripRows) * kStripPairs;
        begin_ = static_cast<int>(pairs * item.tile_begin / item.splits);
        end_ = static_cast<int>(pairs * item.tile_end / item.splits);
    }

    __device__ void run() {
        if ((item_.flags & kLocal) != 0) return by_warps();
        wait_for_splits(p_, item_);
        if (groups_ == 1 || groups_ > kFoldedPlaces)
            by_warps();
        else
            together();
        if (threadIdx.x % kOutputThreads != 0) return;
        // Who merges last leaves the counter as it was before the call.
        Counter& counter = p_.counters[item_.base];
        const auto mine = static_cast<unsigned>(item_.tile_end - item_.tile_begin);
        if (atomicAdd(&counter.merged, mine) + mine == static_cast<unsigned>(item_.splits))
            counter = Counter{};
    }

  private:
    // A warp takes all groups of its pairs.
    __device__ void by_warps() {
#pragma unroll 1
        for (int pair = begin_ + warp_; pair < end_; pair += kOutputWarps) {
            const PairMerge<kFp8> merge(p_, item_, pair);
            Folded all = merge.fold_group(0);
#pragma unroll 1
            for (int group = 1; group < groups_; ++group) merge.fold(all, merge.fold_group(group));
            merge.write(all);
        }
    }

    // Groups of as many pairs as there is room for are dealt to the warps.
    __device__ void together() {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int at_once = kFoldedPlaces / groups_;
#pragma unroll 1
        for (int first = begin_; first < end_; first += at_once) {
            const int count = min(end_ - first, at_once);
#pragma unroll 1
            for (int job = warp_; job < count * groups_; job += kOutputWarps) {
                const PairMerge<kFp8> merge(p_, item_, first + job / groups_);
                const Folded folded = merge.fold_group(job % groups_);
                const auto* from = reinterpret_cast<const float*>(&folded);
#pragma unroll
                for (int i = 0; i < static_cast<int>(sizeof(Folded) / 4); ++i)
                    places_.number[job][i][lane] = from[i];
            }
            named_barrier(kOutputBarrier, kOutputThreads);
#pragma unroll 1
            for (int pair = warp_; pair < count; pair += kOutputWarps) {
                Folded all = at(pair * groups_);
#pragma unroll 1
                for (int group = 1; group < groups_; ++group)
                    PairMerge<kFp8>::fold(all, at(pair * groups_ + group));
                PairMerge<kFp8>(p_, item_, first + pair).write(all);
            }
            named_barrier(kOutputBarrier, kOutputThreads);
        }
    }
    __device__ Folded at(int job) const {
        Folded folded;
        auto* to = reinterpret_cast<float*>(&folded);
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(Folded) / 4); ++i)
            to[i] = places_.number[job][i][threadIdx.x % 32];
        return folded;
    }

    const AbsorbedParams& p_;
    const Item& item_;
    FoldedPlaces& places_;
    const int warp_, groups_;
    int begin_, end_;
};

}  // namespace espalier::mla::cuda
