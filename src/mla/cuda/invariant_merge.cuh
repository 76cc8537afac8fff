// SPDX-License-Identifier: Apache-2.0
// Merges the splits of a block of packed rows, in ascending order, as soon as all are there. Every
// part that computed some of the splits merges that share of the chunks, so nobody waits for a
// whole grid. A warp takes a chunk: 16 packed rows by 16 columns, or 4 rows of 64 (FP8), and eight
// splits at a time, all of them asked for at once.
#pragma once

#include "mla/cuda/partial.cuh"

namespace espalier::mla::cuda {

inline constexpr int kOutputWarps = kOutputThreads / 32;

// What a lane has of a chunk: words 0 … 3 of two columns each, word w of row w % kRows.
template <bool kFp8>
struct ChunkLane {
    static constexpr int kRows = kFp8 ? 1 : 2;
    int chunk;  // of its slot
    int lane = static_cast<int>(threadIdx.x) % 32;
    // In the strip.
    __device__ int row(int index) const {
        if constexpr (kFp8) return chunk % 4 / 2 * 8 + lane % 4 * 2 + chunk % 2;
        return lane / 4 + index * 8;
    }
    __device__ int scale_group() const { return kFp8 ? chunk / 4 : chunk / 16; }
    __device__ int column(int word) const {
        if constexpr (kFp8) return chunk / 4 * 64 + lane / 4 * 8 + word * 2;
        return chunk / 16 * 256 + (chunk % 16 * 2 + word / 2) * 8 + lane % 4 * 2;
    }
    // Whether this lane writes the rows' log-sum-exp.
    __device__ bool first_of_row() const {
        return kFp8 ? chunk < 4 && lane < 4 : chunk == 0 && lane % 4 == 0;
    }
};

template <bool kFp8>
class ChunkMerge {
    using Lane = ChunkLane<kFp8>;
    static constexpr int kRows = Lane::kRows;
    static constexpr int kAtOnce = 8;

  public:
    __device__ ChunkMerge(const AbsorbedParams& p, const Item& item, int strip, int chunk)
        : p_(p), item_(item), strip_(strip), at_{chunk} {
#pragma unroll
        for (float& maximum : maximum_) maximum = minus_infinity();
#pragma unroll 1
        for (int first = 0; first < item.splits; first += kAtOnce) add(first);
        write();
    }

  private:
    __device__ void add(int first) {
        const int step = ceil_div(item_.columns, kStripRows);
        const int count = min(item_.splits - first, kAtOnce);
        float lse[kAtOnce][kRows], scale[kAtOnce][kRows];
        uint4 value[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            const int slot = item_.base + (first + min(s, count - 1)) * step + strip_;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                lse[s][r] = __ldcg(lse_of(p_, slot, at_.row(r)));
                scale[s][r] = __ldcg(scale_of(p_, slot, at_.scale_group(), at_.row(r)));
            }
            value[s] = __ldcg(chunk_of(p_, slot, at_.chunk));
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            float top = maximum_[r];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                if (s >= count) lse[s][r] = minus_infinity();
                top = fmaxf(top, lse[s][r]);
            }
            const float shrink = maximum_[r] == top ? 1.0f : exp2_fast(maximum_[r] - top);
            maximum_[r] = top;
            sum_[r] *= shrink;
#pragma unroll
            for (int w = r; w < 4; w += kRows) {
                out_[w].x *= shrink;
                out_[w].y *= shrink;
            }
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                // A split without keys is left out, whatever lies there.
                if (lse[s][r] == minus_infinity()) continue;
                const float weight = exp2_fast(lse[s][r] - top);
                sum_[r] += weight;
                const float factor = weight * scale[s][r];
                const std::uint32_t words[4] = {value[s].x, value[s].y, value[s].z, value[s].w};
#pragma unroll
                for (int w = r; w < 4; w += kRows) {
                    const float2 pair = unpacked(words[w]);
                    out_[w].x = __fmaf_rn(factor, pair.x, out_[w].x);
                    out_[w].y = __fmaf_rn(factor, pair.y, out_[w].y);
                }
            }
        }
    }

    __device__ void write() const {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int row = strip_ * kStripRows + at_.row(r);
            if (row >= item_.columns) continue;
            const long long packed = item_.packed_first + row;
            const float factor = sum_[r] > 0.0f ? 1.0f / sum_[r] : 0.0f;
#pragma unroll
            for (int w = r; w < 4; w += kRows)
                store_pair(p_.out, p_.out_dtype, packed * kLatent + at_.column(w),
                           out_[w].x * factor, out_[w].y * factor);
            if (at_.first_of_row() && p_.lse != nullptr)
                p_.lse[packed] =
                    sum_[r] > 0.0f ? (maximum_[r] + log2f(sum_[r])) * kLn2 : minus_infinity();
        }
    }

    const AbsorbedParams& p_;
    const Item& item_;
    const int strip_;
    const Lane at_;
    float maximum_[kRows];
    float sum_[kRows] = {};
    float2 out_[4] = {};
};

// The output warps, for an item that merges.
template <bool kFp8>
__device__ inline void merge_share(const AbsorbedParams& p, const Item& item) {
    const int thread = static_cast<int>(threadIdx.x) % kOutputThreads;
    const bool local = (item.flags & kLocal) != 0;
    Counter& counter = p.counters[item.base];
    if (!local) {
        if (thread == 0) {
            unsigned arrived = 0;
            while (true) {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                             : "=r"(arrived)
                             : "l"(&counter.arrived)
                             : "memory");
                if (arrived >= static_cast<unsigned>(item.splits)) break;
                __nanosleep(20);
            }
        }
        named_barrier(kOutputBarrier, kOutputThreads);
    }
    const long long chunks = ceil_div(item.columns, kStripRows) * kStripChunks;
    const int end = static_cast<int>(chunks * item.tile_end / item.splits);
#pragma unroll 1
    for (int chunk = static_cast<int>(chunks * item.tile_begin / item.splits) + thread / 32;
         chunk < end; chunk += kOutputWarps)
        ChunkMerge<kFp8>(p, item, chunk / kStripChunks, chunk % kStripChunks);
    if (local || thread != 0) return;
    // Who merges last leaves the counter as it was before the call.
    const auto mine = static_cast<unsigned>(item.tile_end - item.tile_begin);
    if (atomicAdd(&counter.merged, mine) + mine == static_cast<unsigned>(item.splits))
        counter = Counter{};
}

}  // namespace espalier::mla::cuda
