// SPDX-License-Identifier: Apache-2.0
// The end of a call: when all thread blocks have written their partial results, their output warps
// merge rows that were split and write zeros for rows without keys. A team of warps takes 128 value
// columns of one packed row, each warp every team-th split, and they meet in a fixed order. Empty
// splits change no bit, so neither does their number.
//
// Thread blocks wait for each other here; the launch is cooperative, so all of them are resident. A
// second kernel instead cost 4 to 6 µs per call: nothing of it fits beside the first one's registers.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

inline constexpr int kMergeThreads = 256;  // the output warps
inline constexpr int kMergeWarps = kMergeThreads / 32;
inline constexpr int kMergeBarrier = 2;  // named, of those
inline constexpr int kQuarters = 4;      // of the 512 value columns
inline constexpr int kAhead = 16;  // splits of a warp whose values are asked for before their weights are known

// Where the partial results of one packed row lie, as rows among all rows of partial results: the
// first split, those that all tokens share, and the token's own (invariant). Divisions are done
// once: they would cost more than the merge itself.
struct Partials {
    const float* values_at;
    const float2* stats_at;
    int splits;
    int shared;  // splits below it are shared by all tokens
    long long first, base, stride, own_base, own_stride;

    __device__ Partials(const AbsorbedParams& p, const MergeRow& row, int packed)
        : values_at(p.partial), stats_at(p.stats), splits(row.splits) {
        const int block = packed / p.width;
        const int column = packed % p.width;
        if (!p.invariant) {
            shared = splits;
            stride = static_cast<long long>(p.max_blocks) * 2 * p.width;
            base = row.first * stride + block * 2 * p.width + column;
            first = base + row.place * p.width;
            own_base = own_stride = 0;
            return;
        }
        shared = row.shared_splits;
        stride = static_cast<long long>(row.blocks) * p.width;
        base = static_cast<long long>(row.first + block) * p.width + column;
        const int head_blocks = (p.heads + p.width - 1) / p.width;
        const int token = packed / p.heads;
        const int head = packed - token * p.heads;
        own_stride = static_cast<long long>(head_blocks) * p.width;
        own_base = (static_cast<long long>(row.first) + shared * row.blocks) * p.width +
                   token * (splits - shared) * own_stride + head;
        first = shared > 0 ? base : own_base;
    }

    __device__ long long place(int s) const {
        if (s == 0) return first;
        return s < shared ? base + s * stride : own_base + (s - shared) * own_stride;
    }
    // Written by other multiprocessors: read past the L1.
    __device__ float2 stats(int s) const { return __ldcg(&stats_at[place(s)]); }
    __device__ float4 values(int s, int column) const {
        return __ldcg(reinterpret_cast<const float4*>(values_at + place(s) * kLatent + column));
    }
};

// A packed row so far: 4 of its columns per lane, and the maximum and sum that go with them.
struct MergedRow {
    float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
    float maximum = minus_infinity();
    float sum = 0.0f;
};

__device__ inline void add_weighted(float4& out, float weight, float4 value) {
    if (weight == 0.0f) return;  // a split without keys was perhaps never written
    out.x += weight * value.x;
    out.y += weight * value.y;
    out.z += weight * value.z;
    out.w += weight * value.w;
}

// One warp's share (every team-th) of splits first … first + 31. A lane reads one split's
// statistics; values are asked for before the weights are known.
__device__ inline void add_splits(MergedRow& row, const Partials& partials, int first, int team,
                                  int column) {
    const int lane = threadIdx.x % 32;
    const int end = min(partials.splits - first, 32);
    int s = static_cast<int>(threadIdx.x) / 32 % team;
    float4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
        if (s + i * team < end) ahead[i] = partials.values(first + s + i * team, column);
    float2 stats = {minus_infinity(), 0.0f};
    if (lane < end) stats = partials.stats(first + lane);
    float above = stats.x;
    for (int step = 16; step > 0; step /= 2)
        above = fmaxf(above, __shfl_xor_sync(~0u, above, step));
    above = fmaxf(above, row.maximum);
    const float shrink = row.maximum == above ? 1.0f : exp2_fast(row.maximum - above);
    const float weight = stats.x == minus_infinity() ? 0.0f : exp2_fast(stats.x - above);
    float sum = weight * stats.y;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    row.maximum = above;
    row.sum = row.sum * shrink + sum;
    row.out = {row.out.x * shrink, row.out.y * shrink, row.out.z * shrink, row.out.w * shrink};
#pragma unroll
    for (int i = 0; i < kAhead; ++i, s += team) {
        const float one = __shfl_sync(~0u, weight, s % 32);
        if (s < end) add_weighted(row.out, one, ahead[i]);
    }
#pragma unroll 1
    for (; s < end; s += team)
        add_weighted(row.out, __shfl_sync(~0u, weight, s),
                     partials.values(first + s, column));
}

__device__ inline void write_row(const AbsorbedParams& p, long long row, int column,
                                 const MergedRow& merged) {
    const float factor = merged.sum > 0.0f ? p.value_scale / merged.sum : 0.0f;
    const float4 out = merged.out;
    store_pair(p.out, p.out_dtype, row * kLatent + column, out.x * factor, out.y * factor);
    store_pair(p.out, p.out_dtype, row * kLatent + column + 2, out.z * factor, out.w * factor);
    if (column == 0 && p.lse != nullptr) p.lse[row] = natural_lse(merged.maximum, merged.sum);
}

// Tokens that belong to no row; `thread` of `threads` of the whole grid.
__device__ inline void clear_padding(const AbsorbedParams& p, long long thread, long long threads) {
    const long long first = static_cast<long long>(max(p.rows.q_indptr[p.rows.rows], 0)) * p.heads;
    const long long end = p.rows.token_end * p.heads;
#pragma unroll 1
    for (long long i = first * (kLatent / 2) + thread; i < end * (kLatent / 2); i += threads)
        store_pair(p.out, p.out_dtype, 2 * i, 0.0f, 0.0f);
    if (p.lse == nullptr) return;
#pragma unroll 1
    for (long long i = first + thread; i < end; i += threads) p.lse[i] = minus_infinity();
}

// Until every thread block of the grid has come here. The count goes up by one grid per call and is
// never reset but by the next plan.
__device__ inline void wait_for_grid(unsigned* arrived) {
    __threadfence();
    named_barrier(kMergeBarrier, kMergeThreads);
    if (threadIdx.x % kMergeThreads == 0) {
        unsigned before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(arrived)
                     : "memory");
        const unsigned target = (before / gridDim.x + 1) * gridDim.x;
        unsigned now;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        } while (static_cast<int>(now - target) < 0);
    }
    named_barrier(kMergeBarrier, kMergeThreads);
}

// A whole packed row by one warp, if it has few splits: all its loads are in flight at once.
inline constexpr int kFewSplits = 4;

__device__ inline void merge_few(const AbsorbedParams& p, const Partials& partials, long long row) {
    const int lane = threadIdx.x % 32;
    float4 values[kFewSplits][kQuarters];
    float2 stats[kFewSplits];
#pragma unroll
    for (int s = 0; s < kFewSplits; ++s) {
        stats[s] = {minus_infinity(), 0.0f};
        if (s >= partials.splits) continue;
        stats[s] = partials.stats(s);
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) values[s][i] = partials.values(s, i * 128 + lane * 4);
    }
    MergedRow merged[kQuarters];
    float maximum = minus_infinity();
#pragma unroll
    for (int s = 0; s < kFewSplits; ++s) maximum = fmaxf(maximum, stats[s].x);
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kFewSplits; ++s) {
        const float weight = stats[s].x == minus_infinity() ? 0.0f : exp2_fast(stats[s].x - maximum);
        sum += weight * stats[s].y;
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) add_weighted(merged[i].out, weight, values[s][i]);
    }
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) {
        merged[i].maximum = maximum;
        merged[i].sum = sum;
        write_row(p, row, i * 128 + lane * 4, merged[i]);
    }
}

// The output warps of all thread blocks; `sums` has room for a float4 of each of this block's.
__device__ inline void merge(const AbsorbedParams& p, float4* sums) {
    const int merges = p.partition->merges;
    if (merges == 0) return;
    wait_for_grid(&p.partition->arrived);
    const int warp = static_cast<int>(threadIdx.x) % kMergeThreads / 32;
    const int lane = threadIdx.x % 32;
    // The invariant partition has one way to merge: rounding must not follow the number of splits.
    if (!p.invariant && p.partition->most_splits <= kFewSplits) {
        const unsigned rows = merges * p.most_packed;
#pragma unroll 1
        for (unsigned work = blockIdx.x * kMergeWarps + warp; work < rows;
             work += gridDim.x * kMergeWarps) {
            const MergeRow row = p.merge_rows[work / p.most_packed];
            const int packed = static_cast<int>(work % p.most_packed);
            if (packed < row.tokens * p.heads)
                merge_few(p, Partials(p, row, packed),
                          static_cast<long long>(row.first_token) * p.heads + packed);
        }
        return;
    }
    const unsigned teams = kMergeWarps / p.team;
    const unsigned pieces = p.most_packed * kQuarters;  // of a row
    const unsigned works = merges * pieces;
#pragma unroll 1
    for (unsigned base = blockIdx.x * teams; base < works; base += gridDim.x * teams) {
        const unsigned work = base + warp / p.team;
        MergeRow row;
        if (work < works) row = p.merge_rows[work / pieces];
        const int packed = static_cast<int>(work % pieces / kQuarters);
        const bool busy = packed < row.tokens * p.heads;
        const int column = static_cast<int>(work % kQuarters) * 128 + lane * 4;
        MergedRow merged;
        if (busy) {
            const Partials partials(p, row, packed);
#pragma unroll 1
            for (int first = 0; first < partials.splits; first += 32)
                add_splits(merged, partials, first, p.team, column);
        }
        if (p.team > 1) {
            sums[warp * 32 + lane] = merged.out;
            named_barrier(kMergeBarrier, kMergeThreads);
            for (int w = 1; w < p.team && warp % p.team == 0; ++w)
                add_weighted(merged.out, 1.0f, sums[(warp + w) * 32 + lane]);
            named_barrier(kMergeBarrier, kMergeThreads);
        }
        if (busy && warp % p.team == 0)
            write_row(p, static_cast<long long>(row.first_token) * p.heads + packed, column, merged);
    }
}

}  // namespace espalier::mla::cuda
