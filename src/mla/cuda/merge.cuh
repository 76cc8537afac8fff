// SPDX-License-Identifier: Apache-2.0
// The end of a call: when all thread blocks have written their partial results, their output warps
// merge rows that were split and write zeros for rows without keys. A warp takes a packed row or a
// quarter of one, or a team of eight warps does, every eighth split each, where rows are few. They
// meet in a fixed order; empty splits change no bit, so neither does their number.
//
// Thread blocks wait for each other here; the launch is cooperative, so all of them are resident. A
// second kernel instead cost up to 5 µs more per call: nothing of it fits beside the first one's
// registers. Code is cold when a short call comes here, so there is little of it.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

inline constexpr int kMergeThreads = kOutputThreads;
inline constexpr int kMergeWarps = kMergeThreads / 32;
inline constexpr int kInFlight =
    16;  // loads of four columns per lane that are on their way at once

// Where the partial results of one packed row lie, as rows among all rows of partial results: the
// first split, those that all tokens share, and the token's own (invariant).
template <int kRows>
struct Partials {
    int splits = 0;
    int shared = 0;  // splits below it are shared by all tokens
    int first = 0, base = 0, stride = 0, own_base = 0, own_stride = 0;

    __device__ Partials(const AbsorbedParams& p, const MergeRow& row, int packed)
        : splits(row.splits), shared(row.splits) {
        const int block = packed / kRows;
        const int column = packed % kRows;
        if (!p.invariant) {
            stride = p.max_blocks * 2 * kRows;
            base = row.first * stride + block * 2 * kRows + column;
            first = base + row.place * kRows;
            return;
        }
        shared = row.shared_splits;
        stride = row.blocks * kRows;
        base = (row.first + block) * kRows + column;
        const int token = packed / p.heads;
        const int head = packed - token * p.heads;
        own_stride = blocks_for(p, p.heads) * kRows;
        own_base = (row.first + shared * row.blocks) * kRows +
                   token * (splits - shared) * own_stride + head;
        first = shared > 0 ? base : own_base;
    }
    __device__ int place(int s) const {
        if (s == 0) return first;
        return s < shared ? base + s * stride : own_base + (s - shared) * own_stride;
    }
};

// A packed row (four quarters of 128 columns) or a quarter of one so far, four columns of a quarter
// per lane, weighted by 2^(lse - maximum), and the sum of weights.
template <int kQuarters>
struct Merged {
    float4 out[kQuarters] = {};
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

// Takes up to 32 splits into the maximum and the sum, one per lane by its log-sum-exp; returns this
// lane's weight.
template <int kQuarters>
__device__ inline float take_weights(Merged<kQuarters>& merged, float lse) {
    float above = lse;
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2)
        above = fmaxf(above, __shfl_xor_sync(~0u, above, step));
    above = fmaxf(above, merged.maximum);
    const float shrink = merged.maximum == above ? 1.0f : exp2_fast(merged.maximum - above);
    const float weight = lse == minus_infinity() ? 0.0f : exp2_fast(lse - above);
    float sum = weight;
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    merged.maximum = above;
    merged.sum = merged.sum * shrink + sum;
#pragma unroll
    for (float4& out : merged.out)
        out = {out.x * shrink, out.y * shrink, out.z * shrink, out.w * shrink};
    return weight;
}

// One warp's share (every team-th) of splits first … first + 31. What other multiprocessors wrote
// is read past the L1; values are on their way before the weights are known.
template <int kRows, int kQuarters>
__device__ inline void add_splits(Merged<kQuarters>& merged, const AbsorbedParams& p,
                                  const Partials<kRows>& partials, int quarter, int first) {
    constexpr int kAhead = kInFlight / kQuarters;  // splits
    const int lane = threadIdx.x % 32;
    const int end = min(partials.splits - first, 32);
    float lse = minus_infinity();
    if (lane < end) lse = __ldcg(&p.partial_lse[partials.place(first + lane)]);
    const int begin = static_cast<int>(threadIdx.x) / 32 % p.team;
    float weight = 0.0f;
    int s = begin;
    do {
        float4 values[kAhead][kQuarters];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (s + i * p.team >= end) continue;
            const auto* from = reinterpret_cast<const float4*>(
                p.partial +
                static_cast<long long>(partials.place(first + s + i * p.team)) * kLatent);
#pragma unroll
            for (int q = 0; q < kQuarters; ++q)
                values[i][q] = __ldcg(from + (quarter + q) * 32 + lane);
        }
        if (s == begin) weight = take_weights(merged, lse);
#pragma unroll
        for (int i = 0; i < kAhead; ++i, s += p.team) {
            const float one = __shfl_sync(~0u, weight, s % 32);
            if (s >= end) continue;
#pragma unroll
            for (int q = 0; q < kQuarters; ++q) add_weighted(merged.out[q], one, values[i][q]);
        }
    } while (s < end);
}

template <int kQuarters>
__device__ inline void write_merged(const AbsorbedParams& p, long long row, int quarter,
                                    const Merged<kQuarters>& merged) {
    const int lane = threadIdx.x % 32;
    const float factor = merged.sum > 0.0f ? 1.0f / merged.sum : 0.0f;
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
        const float4 out = merged.out[q];
        store_quad(p.out, p.out_dtype, row * kLatent + (quarter + q) * 128 + lane * 4,
                   float4{out.x * factor, out.y * factor, out.z * factor, out.w * factor});
    }
    if (lane == 0 && quarter == 0 && p.lse != nullptr)
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

// Until every thread block of the grid has come here. The count goes up by one grid per call and is
// never reset but by the next plan.
__device__ inline void wait_for_grid(unsigned* arrived) {
    named_barrier(kOutputBarrier, kMergeThreads);
    if (threadIdx.x % kMergeThreads == 0) {
        unsigned before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(arrived)
                     : "memory");
        const unsigned target = (before / gridDim.x + 1) * gridDim.x;
        unsigned now;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(now)
                         : "l"(arrived)
                         : "memory");
        } while (static_cast<int>(now - target) < 0);
    }
    named_barrier(kOutputBarrier, kMergeThreads);
}

// Units of kQuarters quarters of a packed row.
template <int kRows, int kQuarters>
__device__ inline void merge_units(const AbsorbedParams& p, int merges, float4* sums) {
    constexpr int kUnits = 4 / kQuarters;  // to a row
    const int warp = static_cast<int>(threadIdx.x) % kMergeThreads / 32;
    const int lane = threadIdx.x % 32;
    const int teams = p.team > 1 ? 1 : kMergeWarps;
    const unsigned works = static_cast<unsigned>(merges) * p.most_packed * kUnits;
    // All warps of a block go round equally often: a team meets at barriers.
#pragma unroll 1
    for (unsigned base = blockIdx.x * teams; base < works; base += gridDim.x * teams) {
        const unsigned work = base + warp % teams;
        if (work >= works) continue;  // never a team
        const int quarter = static_cast<int>(work % kUnits);
        const MergeRow row = p.merge_rows[work / kUnits / p.most_packed];
        const int packed = static_cast<int>(work / kUnits % p.most_packed);
        if (packed >= row.tokens * p.heads) continue;  // the same for a whole team
        const Partials<kRows> partials(p, row, packed);
        Merged<kQuarters> merged;
#pragma unroll 1
        for (int first = 0; first < partials.splits; first += 32)
            add_splits(merged, p, partials, quarter, first);
        if (p.team > 1) {
#pragma unroll
            for (int q = 0; q < kQuarters; ++q)
                sums[(warp * kQuarters + q) * 32 + lane] = merged.out[q];
            named_barrier(kOutputBarrier, kMergeThreads);
#pragma unroll 1
            for (int w = 1; w < kMergeWarps && warp == 0; ++w)
#pragma unroll
                for (int q = 0; q < kQuarters; ++q)
                    add_weighted(merged.out[q], 1.0f, sums[(w * kQuarters + q) * 32 + lane]);
            named_barrier(kOutputBarrier, kMergeThreads);
        }
        if (p.team == 1 || warp == 0)
            write_merged(p, static_cast<long long>(row.first_token) * p.heads + packed, quarter,
                         merged);
    }
}

// The output warps of all thread blocks; `sums` has room for 2 KB of each warp.
template <int kRows>
__device__ inline void merge(const AbsorbedParams& p, float4* sums) {
    const int merges = p.partition->merges;
    if (merges == 0) return;
    wait_for_grid(&p.partition->arrived);
    if (p.merge_quarters)
        merge_units<kRows, 1>(p, merges, sums);
    else
        merge_units<kRows, 4>(p, merges, sums);
}

}  // namespace espalier::mla::cuda
