// SPDX-License-Identifier: Apache-2.0
// The result of one split, in 16 bits: integers times a power of two that suits the largest of a
// row's columns, 2^-16 of which is the error. Always, also where a split is a row's only one and
// goes straight to the output: whether it meets others must not show. (fp16 would overflow on bf16
// values, and its 11 bits cost an fp16 cache 3 dB of signal over noise.)
//
// Where they wait for the merge, 16 packed rows are 16 chunks of eight rows and 64 columns, each a
// warp's: twice 16 bytes per lane, and a log-sum-exp and a scale per row.
//
// Partial results say themselves that they are there: the first word of 16 bytes is never zero, nor
// is a scale. Where a call has few, they lie in the plan (Item's kMarked), which the plan clears,
// and so does every merge behind it: nothing is counted, and what is read is read once. Elsewhere
// their place may have held anything, and a counter tells.
#pragma once

#include "base/cuda/memory.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/absorbed/hopper/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

// An integer of 16 bits as the end of a float's mantissa.
inline constexpr float kIntegers = 8388608.0f + 32768.0f;

struct RowScale {
    float scale = 1.0f;    // makes integers of sums: brings the largest below 2^15 - 1/2
    float inverse = 1.0f;  // and makes numbers of integers: a power of two
    // Scale of sums to be multiplied with `factor`. The power of two and the factor together are
    // a finite number, also where all sums are zero.
    __device__ RowScale(float largest_sum, float factor) {
        const float largest = largest_sum * factor;
        const int exponent = (__float_as_int(largest * (1.0f + 0x1p-15f)) >> 23) - 127;
        const int room = 126 - max((__float_as_int(factor) >> 23) - 126, 0);
        const int shift = min(14 - exponent, room);
        scale = power_of_two(shift) * factor;
        inverse = power_of_two(-shift);
    }
    __device__ static float rounded(float scale, float inverse, float sum) {
        return (__fmaf_rn(sum, scale, kIntegers) - kIntegers) * inverse;
    }
    // Never zero, as long as sums are finite: the largest is 2^15 - 1.
    __device__ static std::uint32_t packed(float scale, float low, float high) {
        return __byte_perm(__float_as_uint(__fmaf_rn(low, scale, kIntegers)),
                           __float_as_uint(__fmaf_rn(high, scale, kIntegers)), 0x5410);
    }
};

// Two integers of a word.
__device__ __forceinline__ float2 unpacked(std::uint32_t word) {
    return {__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7410)) - kIntegers,
            __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7432)) - kIntegers};
}

// A slot of an item's block. kMarks: it may be one of the plan's.
template <bool kMarks>
class PartialPlace {
  public:
    __device__ PartialPlace(const AbsorbedParams& p, const Item& item, int slot, int lane) {
        const bool marked = kMarks && (item.flags & kMarked) != 0;
        chunks_ = (marked ? p.marked : reinterpret_cast<uint4*>(p.partial)) +
                  static_cast<long long>(slot) * kStripChunks * (kChunkBytes / 16) + lane;
        rows_ =
            (marked ? p.marked_rows : p.partial_rows) + static_cast<long long>(slot) * kStripScales;
    }
    // This lane's first 16 bytes; the others lie 32 further on.
    __device__ uint4* chunk(int chunk) const { return chunks_ + chunk * (kChunkBytes / 16); }
    // Row of 64 columns, of which there are eight groups.
    __device__ float2* row(int group, int row) const { return rows_ + group * kStripRows + row; }

  private:
    uint4* chunks_;
    float2* rows_;
};

// Sums that overflowed make zeros: no merge may wait for them.
__device__ __forceinline__ void store_codes(uint4* to, uint4 codes) {
    codes.x = max(codes.x, 1u);
    store_to_stay(to, codes);
}

// Count of an item's block by others, before this thread block counts its own. One thread,
// where a split begins: it has nothing else to do before the keys are there. (At the last item of a
// tree's split, whose keys are soon there, it would be waited for.)
template <typename Shared>
__device__ inline void look_at_counter(const AbsorbedParams& p, const Item& item, Shared& shared) {
    if ((item.flags & (kStarts | kLocal | kMarked)) != kStarts) return;
    shared.counted[(item.flags & kSecond) != 0] = load_relaxed(&p.counters[item.base]);
}
// The output warps' word that partial results are there: they have all stored them.
__device__ inline void count_partials(const AbsorbedParams& p, const Item& item) {
    if (item.arrivals == 0 || (item.flags & kMarked) != 0) return;
    named_barrier(kOutputBarrier, kOutputThreads);
    if ((item.flags & kLocal) != 0 || threadIdx.x % kOutputThreads != 0) return;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&p.counters[item.base]),
                 "r"(item.arrivals)
                 : "memory");
}

}  // namespace espalier::mla::cuda
