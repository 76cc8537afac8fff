// SPDX-License-Identifier: Apache-2.0
// The end of a call: when all thread blocks have written their partial results, their output warps
// merge rows that were split and write zeros for rows without keys. A warp takes strips of packed
// rows: quarters, or sixteenths where rows are few; then its four groups of eight lanes take splits
// by turns. All partial results that a warp's share of shared memory has room for are on their way
// at once. (The flexible partition; the invariant one merges block by block: invariant_merge.cuh.)
//
// Thread blocks wait for each other here; the launch is cooperative, so all of them are resident. A
// second kernel instead cost up to 5 µs more per call: nothing of it fits beside the first one's
// registers.
#pragma once

#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/absorbed/hopper/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

inline constexpr int kMergeThreads = kOutputThreads;
inline constexpr int kMergeWarps = kMergeThreads / 32;

// Indices of one packed row's partial results among all rows of partial results.
template <int kRows>
struct Partials {
    int splits = 0;
    int first = 0, base = 0, stride = 0;

    Partials() = default;
    __device__ Partials(const AbsorbedParams& p, const MergeRow& row, int packed)
        : splits(row.splits) {
        stride = p.max_blocks * 2 * kRows;
        base = row.first * stride + packed / kRows * 2 * kRows + packed % kRows;
        first = base + row.place * kRows;
    }
    // Another lane's.
    __device__ Partials of_lane(int lane) const {
        Partials other;
        other.splits = __shfl_sync(~0u, splits, lane);
        other.first = __shfl_sync(~0u, first, lane);
        other.base = __shfl_sync(~0u, base, lane);
        other.stride = __shfl_sync(~0u, stride, lane);
        return other;
    }
    __device__ int place(int s) const { return s == 0 ? first : base + s * stride; }
};

// Layout of a warp over strips: groups of lanes, four columns to a lane. A number, not a type: one
// copy of the code is enough to be kept near.
struct StripShape {
    int shift;  // 2^this lanes to a group: 32 or 8. (Divisions took most of the merge's time.)
    __device__ int lanes() const { return 1 << shift; }
    // The groups take splits by turns: split of a turn, and how many turns there are.
    __device__ int split(int turn) const { return (turn << (5 - shift)) + group(); }
    __device__ int turns(int splits) const { return (splits + (31 >> shift)) >> (5 - shift); }
    __device__ int columns() const { return 4 << shift; }
    __device__ int shift_of_row() const { return 7 - shift; }  // 2^this strips
    __device__ int group() const { return (static_cast<int>(threadIdx.x) & 31) >> shift; }
    __device__ int column() const { return (static_cast<int>(threadIdx.x) & (lanes() - 1)) * 4; }
};

// Places where splits wait for their turn: their columns, and before them their log-sum-exps.
inline constexpr int kMergePlaces = 1088;  // of 32 columns: 140 KB
struct MergePlaces {
    float lse[kMergePlaces];
    float value[kMergePlaces * 32];  // or a quarter as many places of 128 columns
};
inline constexpr int kSplitsAtOnce = 32;  // that are weighted together
static_assert(kMergePlaces / 4 / kMergeWarps >= kSplitsAtOnce);

// A strip so far: of a group's splits, weighted by 2^(lse - maximum).
struct Merged {
    float4 out = {};
    float maximum = minus_infinity();
    float sum = 0.0f;  // of all weights
};

// A split without keys was perhaps never written: it is left out, whatever lies there. (By choice,
// not by branch, so that loads need not wait for weights.)
__device__ inline void add_weighted(float4& out, float weight, float4 value) {
    const bool some = weight != 0.0f;
    out.x = some ? out.x + weight * value.x : out.x;
    out.y = some ? out.y + weight * value.y : out.y;
    out.z = some ? out.z + weight * value.z : out.z;
    out.w = some ? out.w + weight * value.w : out.w;
}

// Takes up to 32 splits into the maximum and the sum, one per lane by its log-sum-exp; returns this
// lane's weight.
__device__ inline float weigh(Merged& merged, const MergePlaces& places, int at, int count) {
    const int lane = threadIdx.x % 32;
    const float lse = lane < count ? places.lse[at + lane] : minus_infinity();
    float top = fmaxf(merged.maximum, lse);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    const float shrink = merged.maximum == top ? 1.0f : exp2_fast(merged.maximum - top);
    const float weight = lse == minus_infinity() ? 0.0f : exp2_fast(lse - top);
    float sum = weight;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    float4& out = merged.out;
    out = {out.x * shrink, out.y * shrink, out.z * shrink, out.w * shrink};
    merged.sum = merged.sum * shrink + sum;
    merged.maximum = top;
    return weight;
}

// All of this is latency, of one warp on its scheduler: no branches, four turns at a time.
__device__ inline void add_splits(float4& out, float weight, StripShape shape,
                                  const MergePlaces& places, int at, int count) {
    const float* value = places.value + at * shape.columns() + shape.column();
#pragma unroll 1
    for (int turn = 0; turn < shape.turns(count); turn += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int s = shape.split(turn + i);
            float4 one = {};
            if (s < count) one = *reinterpret_cast<const float4*>(value + s * shape.columns());
            add_weighted(out, __shfl_sync(~0u, weight, s), one);
        }
    }
}

__device__ inline void write_merged(const AbsorbedParams& p, StripShape shape, long long row,
                                    int strip, const Merged& merged) {
    float4 out = merged.out;
#pragma unroll 1
    for (int lanes = shape.lanes(); lanes < 32; lanes *= 2) {
        out.x += __shfl_xor_sync(~0u, out.x, lanes);
        out.y += __shfl_xor_sync(~0u, out.y, lanes);
        out.z += __shfl_xor_sync(~0u, out.z, lanes);
        out.w += __shfl_xor_sync(~0u, out.w, lanes);
    }
    if (shape.group() != 0) return;
    const float factor = merged.sum > 0.0f ? 1.0f / merged.sum : 0.0f;
    store_quad(p.out, p.out_dtype, row * kLatent + strip * shape.columns() + shape.column(),
               float4{out.x * factor, out.y * factor, out.z * factor, out.w * factor});
    if (shape.column() == 0 && strip == 0 && p.lse != nullptr)
        p.lse[row] =
            merged.sum > 0.0f ? (merged.maximum + log2f(merged.sum)) * kLn2 : minus_infinity();
}

// Tokens that belong to no row; `thread` of `threads` of the whole grid.
__device__ inline void clear_padding(const AbsorbedParams& p, long long thread, long long threads) {
    const long long first = static_cast<long long>(max(p.rows.q_indptr[p.rows.rows], 0)) * p.heads;
    const long long end = p.rows.token_end * p.heads;
#pragma unroll 1
    for (long long i = first * (kLatent / 4) + thread; i < end * (kLatent / 4); i += threads)
        store_quad(p.out, p.out_dtype, 4 * i, float4{});
    if (p.lse == nullptr) return;
#pragma unroll 1
    for (long long i = first + thread; i < end; i += threads) p.lse[i] = minus_infinity();
}

// Until every thread block of the grid has come here. The count goes back to zero with the last of
// them; those of the next call come when this one has ended.
__device__ inline void wait_for_grid(unsigned* arrived) {
    named_barrier(kOutputBarrier, kMergeThreads);
    if (threadIdx.x % kMergeThreads == 0) {
        unsigned before;
        asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(arrived), "r"(gridDim.x - 1)
                     : "memory");
        bool all = before == gridDim.x - 1;
        while (!all) {
            unsigned now;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(now)
                         : "l"(arrived)
                         : "memory");
            all = now == 0;
            if (!all) __nanosleep(40);  // hundreds of blocks poll one address
        }
    }
    named_barrier(kOutputBarrier, kMergeThreads);
}

// Asks for `count` splits of a strip. What other multiprocessors wrote is read past the L1.
template <int kRows>
__device__ inline void request(const AbsorbedParams& p, const Partials<kRows>& partials,
                               StripShape shape, int strip, int first, int count,
                               MergePlaces& places, int at) {
    const int lane = threadIdx.x % 32;
    const int mine = partials.place(first + lane);
    if (lane < count) copy_4_async(&places.lse[at + lane], &p.partial_lse[mine]);
    const float* from = p.partial + strip * shape.columns() + shape.column();
    float* to = places.value + at * shape.columns() + shape.column();
#pragma unroll 1
    for (int turn = 0; turn < shape.turns(count); turn += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int s = shape.split(turn + i);
            const int place = __shfl_sync(~0u, mine, s);
            if (s < count)
                copy_16_async(to + s * shape.columns(),
                              from + static_cast<long long>(place) * kLatent);
        }
    }
}

// A warp's share of the strips, 32 at a time, one known to each lane; steps of up to kSplitsAtOnce
// splits. The output warps of the whole grid.
template <int kRows>
class Merger {
  public:
    // Made early, where there is time. Four strips to a thread block keep memory busy.
    __device__ explicit Merger(const AbsorbedParams& p)
        : warp_(static_cast<int>(threadIdx.x) % kMergeThreads / 32) {
        const auto rows = static_cast<std::uint64_t>(p.partition->merges) * p.most_packed;
        shape_.shift = rows >= gridDim.x ? 5 : 3;
        const std::uint64_t strips = rows << shape_.shift_of_row();
        begin_ = strips * blockIdx.x / gridDim.x;
        count_ = static_cast<int>(strips * (blockIdx.x + 1) / gridDim.x - begin_);
        each_ = ceil_div(count_, kMergeWarps);
        busy_ = rows == 0 ? -1 : ceil_div(count_, max(each_, 1));
        share_ = (kMergePlaces >> (shape_.shift - 3)) / max(busy_, 1);
        find(p, 0);
    }

    __device__ void run(const AbsorbedParams& p, MergePlaces& places) {
        if (busy_ < 0) return;
        wait_for_grid(&p.partition->arrived);
        if (warp_ >= busy_) return;
#pragma unroll 1
        for (int base = 32;; base += 32) {
            merge_known(p, places);
            if (base >= each_) return;
            find(p, base);
        }
    }

  private:
    // This lane's strip of the next 32; unused ones (of rows with fewer tokens) have no row.
    __device__ void find(const AbsorbedParams& p, int base) {
        row_ = -1;
        const int place = base + static_cast<int>(threadIdx.x) % 32;
        const int mine = warp_ * each_ + place;
        if (place >= each_ || mine >= count_) return;
        strip_ = static_cast<int>(begin_ + mine) & ((1 << shape_.shift_of_row()) - 1);
        const auto packed_row = static_cast<unsigned>((begin_ + mine) >> shape_.shift_of_row());
        const unsigned index = packed_row / p.most_packed;
        const int packed = static_cast<int>(packed_row - index * p.most_packed);
        const MergeRow& merge = p.merge_rows[index];
        if (packed >= merge.tokens * p.heads) return;
        row_ = merge.first_token * p.heads + packed;
        partials_ = Partials<kRows>(p, merge, packed);
    }

    // A place in the warp's list: which lane's strip, and from which split on.
    struct Step {
        unsigned left;  // lanes, this one and those to come
        int first = 0;
        __device__ int lane() const { return __ffs(static_cast<int>(left)) - 1; }
        __device__ bool advance(int splits) {  // true: that was the strip's last
            first += kSplitsAtOnce;
            if (first < splits) return false;
            left &= left - 1;
            first = 0;
            return true;
        }
    };

    // Asks for as many splits as there is room for, merges them, and so on.
    __device__ void merge_known(const AbsorbedParams& p, MergePlaces& places) {
        Step asked{__ballot_sync(~0u, row_ >= 0)};
        Step taken = asked;
        Merged merged;
        float weight = 0.0f;
        int weighed = -1;  // the row that these are of; its other strips need them again
#pragma unroll 1
        while (taken.left != 0) {
            int at = warp_ * share_;
            const int end = at + share_;
#pragma unroll 1
            while (asked.left != 0) {
                const Partials<kRows> partials = partials_.of_lane(asked.lane());
                const int count = min(partials.splits - asked.first, kSplitsAtOnce);
                if (at + count > end) break;
                request(p, partials, shape_, __shfl_sync(~0u, strip_, asked.lane()), asked.first,
                        count, places, at);
                at += count;
                asked.advance(partials.splits);
            }
            wait_for_async_copies();
            __syncwarp();
            at = warp_ * share_;
#pragma unroll 1
            while (taken.left != asked.left || taken.first != asked.first) {
                const int lane = taken.lane();
                const int row = __shfl_sync(~0u, row_, lane);
                const int splits = __shfl_sync(~0u, partials_.splits, lane);
                const int count = min(splits - taken.first, kSplitsAtOnce);
                if (taken.first > 0 || row != weighed || splits > kSplitsAtOnce) {
                    if (taken.first == 0) merged = Merged{};
                    weight = weigh(merged, places, at, count);
                    weighed = row;
                }
                add_splits(merged.out, weight, shape_, places, at, count);
                at += count;
                if (!taken.advance(splits)) continue;
                write_merged(p, shape_, row, __shfl_sync(~0u, strip_, lane), merged);
                merged.out = {};
            }
            __syncwarp();
        }
    }

    int warp_, busy_;
    int count_, each_;  // strips of this thread block, and of each of its warps
    int share_;         // places
    StripShape shape_;
    std::uint64_t begin_;
    int row_, strip_;  // of the output
    Partials<kRows> partials_;
};

}  // namespace espalier::mla::cuda
