// SPDX-License-Identifier: Apache-2.0
// What a lane merges: its share of a chunk (8 packed rows by 64 columns) of a quad of splits, of
// groups of quads, and their way to the output. Who merges which chunks is in invariant_merge.cuh.
#pragma once

#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "mla/cuda/absorbed/hopper/partial.cuh"

namespace espalier::mla::cuda {

// A lane's part of a chunk, in two parts of four words (two columns each): 16 columns of a row
// or, over FP8 codes, eight of two rows. With kParts = 1 a warp has half of a chunk's rows, and a
// lane one part of what the lane `lane` of a whole chunk has.
template <bool kFp8_, int kParts_ = 2>
struct ChunkLane {
    static constexpr bool kFp8 = kFp8_;
    static constexpr int kParts = kParts_;
    static constexpr int kRows = kFp8 ? kParts : 1;
    int strip, chunk, lane;
    int first_part = 0;
    __device__ static ChunkLane whole(int chunk, int lane) {
        return {chunk / kStripChunks, chunk % kStripChunks, lane};
    }
    __device__ static ChunkLane of_half(int chunk, int half, int lane) {
        static_assert(kParts == 1);
        const int strip = chunk / kStripChunks;
        chunk %= kStripChunks;
        if constexpr (kFp8) return {strip, chunk, lane, half};
        return {strip, chunk, half * 16 + lane % 16, lane / 16};
    }
    __device__ int row(int index) const {  // in the strip
        return chunk % 2 * 8 + (kFp8 ? lane % 4 * 2 + first_part + index : lane / 4);
    }
    __device__ static constexpr int row_of_part(int part) { return kFp8 ? part : 0; }
    __device__ int scale_group() const { return chunk / 2; }
    __device__ int column(int part, int word) const {
        if constexpr (kFp8) return chunk / 2 * 64 + lane / 4 * 8 + word * 2;
        return chunk / 2 * 64 + ((first_part + part) * 4 + word) * 8 + lane % 4 * 2;
    }
    // True if this lane is the first of the lanes that hold the same rows.
    __device__ bool first_of_row() const {
        return kFp8 ? lane < 4 : lane % 4 == 0 && (kParts == 2 || first_part == 0);
    }
    // Index of the lane's first 16 bytes in the chunk, in units of 16 bytes.
    __device__ int place() const { return lane + (kParts == 2 ? 0 : first_part * 32); }
};

// Two columns of a row so far, weighted as below.
struct MergedPair {
    float maximum = minus_infinity();
    float sum = 0.0f;
    float2 out = {};

    __device__ void append(const MergedPair& next) {
        if (next.maximum == minus_infinity()) return;
        const float top = fmaxf(maximum, next.maximum);
        const float mine = maximum == top ? 1.0f : exp2_fast(maximum - top);
        const float other = next.maximum == top ? 1.0f : exp2_fast(next.maximum - top);
        maximum = top;
        sum = __fmaf_rn(sum, mine, __fmul_rn(next.sum, other));
        out.x = __fmaf_rn(out.x, mine, __fmul_rn(next.out.x, other));
        out.y = __fmaf_rn(out.y, mine, __fmul_rn(next.out.y, other));
    }
};

// A lane's share so far, weighted by 2^(lse - maximum). Rounding is spelled out: these are the same
// bits wherever the compiler puts them.
template <typename Lane>
struct MergedChunk {
    static constexpr int kRows = Lane::kRows;
    float maximum[kRows];
    float sum[kRows];
    float2 out[Lane::kParts][4] = {};

    __device__ MergedChunk() {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            maximum[r] = minus_infinity();
            sum[r] = 0.0f;
        }
    }

    __device__ void append(const MergedChunk& next) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (next.maximum[r] == minus_infinity()) continue;
            const float top = fmaxf(maximum[r], next.maximum[r]);
            const float mine = maximum[r] == top ? 1.0f : exp2_fast(maximum[r] - top);
            const float other = next.maximum[r] == top ? 1.0f : exp2_fast(next.maximum[r] - top);
            maximum[r] = top;
            sum[r] = __fmaf_rn(sum[r], mine, __fmul_rn(next.sum[r], other));
#pragma unroll
            for (int i = 0; i < 4 * Lane::kParts; ++i) {
                if (Lane::row_of_part(i / 4) != r) continue;
                float2& to = out[i / 4][i % 4];
                const float2 from = next.out[i / 4][i % 4];
                to.x = __fmaf_rn(to.x, mine, __fmul_rn(from.x, other));
                to.y = __fmaf_rn(to.y, mine, __fmul_rn(from.y, other));
            }
        }
    }
};

// Up to four splits of a chunk, asked for at once. The whole warp.
template <typename Lane, bool kMarks>
class QuadMerge {
    static constexpr int kRows = Lane::kRows;
    static constexpr int kParts = Lane::kParts;

  public:
    __device__ QuadMerge(const AbsorbedParams& p, const Item& item, const Lane& at, int quad)
        : at_(at),
          count_(item.splits - quad * kQuad),
          step_(ceil_div(item.columns, kStripRows)),
          place_(p, item, item.base + quad * kQuad * step_ + at.strip, at.place()) {}

    __device__ void ask() {
        const uint4* chunk = place_.chunk(at_.chunk);
        const float2* row = place_.row(at_.scale_group(), at_.row(0));
#pragma unroll
        for (int s = 0; s < kQuad; ++s) {
#pragma unroll
            for (uint4& value : value_[s]) value = {};
#pragma unroll
            for (float2& own : rows_[s]) own = {minus_infinity(), 0.0f};
            if (s < count_) {
#pragma unroll
                for (int r = 0; r < kRows; ++r) rows_[s][r] = load(row + r);
#pragma unroll
                for (int part = 0; part < kParts; ++part) value_[s][part] = load(chunk + part * 32);
            }
            chunk += step_ * (kStripChunks * kChunkBytes / 16);
            row += step_ * kStripScales;
            asm volatile("" : "+l"(chunk), "+l"(row));
        }
    }
    // True if all partial results were there; their place is then cleared for the next call.
    __device__ bool there() const {
        bool all = true;
#pragma unroll
        for (int s = 0; s < kQuad; ++s) {
            bool own = true;
#pragma unroll
            for (const uint4& value : value_[s]) own = own && value.x != 0;
#pragma unroll
            for (const float2& row : rows_[s]) own = own && row.y != 0.0f;
            all = all && (own || s >= count_);
        }
        return __all_sync(~0u, all);
    }
    __device__ void clear_place() const {
        uint4* chunk = place_.chunk(at_.chunk);
        float2* row = place_.row(at_.scale_group(), at_.row(0));
#pragma unroll 1
        for (int s = 0; s < min(count_, kQuad); ++s) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) chunk[part * 32] = uint4{};
            if (at_.first_of_row()) {
#pragma unroll
                for (int r = 0; r < kRows; ++r) row[r] = float2{};
            }
            chunk += step_ * (kStripChunks * kChunkBytes / 16);
            row += step_ * kStripScales;
        }
    }

    __device__ MergedChunk<Lane> merged() {
        MergedChunk<Lane> merged;
        weigh(merged);
#pragma unroll
        for (int s = 0; s < kQuad; ++s)
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const uint4 value = value_[s][part];
                const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
                const float weight = rows_[s][Lane::row_of_part(part)].y;
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const float2 pair = unpacked(words[w]);
                    float2& to = merged.out[part][w];
                    to.x = __fmaf_rn(weight, pair.x, to.x);
                    to.y = __fmaf_rn(weight, pair.y, to.y);
                }
            }
        return merged;
    }

  private:
    template <typename T>
    __device__ static T load(const T* from) {
        if constexpr (kMarks) return load_at_once(from);
        return __ldcg(from);
    }
    // From here on rows_ has factors. A split without keys is left out, whatever lies there.
    __device__ void weigh(MergedChunk<Lane>& merged) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (const auto& row : rows_) merged.maximum[r] = fmaxf(merged.maximum[r], row[r].x);
#pragma unroll
            for (auto& row : rows_) {
                const bool some = row[r].x != minus_infinity();
                const float weight = some ? exp2_fast(row[r].x - merged.maximum[r]) : 0.0f;
                merged.sum[r] = __fadd_rn(merged.sum[r], weight);
                row[r].y = some ? __fmul_rn(weight, row[r].y) : 0.0f;
            }
        }
    }

    const Lane& at_;
    const int count_, step_;
    const PartialPlace<kMarks> place_;
    float2 rows_[kQuad][kRows];  // log-sum-exp, scale
    uint4 value_[kQuad][kParts];
};

template <typename Lane>
__device__ inline void write_chunk(const AbsorbedParams& p, const Item& item, const Lane& at,
                                   const MergedChunk<Lane>& merged) {
    constexpr int kRows = Lane::kRows;
    float factor[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float sum = merged.sum[r];
        factor[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
        const int row = at.strip * kStripRows + at.row(r);
        if (at.chunk < 2 && at.first_of_row() && p.lse != nullptr && row < item.columns)
            p.lse[item.packed_first + row] =
                sum > 0.0f ? (merged.maximum[r] + log2f(sum)) * kLn2 : minus_infinity();
    }
#pragma unroll
    for (int i = 0; i < 4 * Lane::kParts; ++i) {
        const int r = Lane::row_of_part(i / 4);
        const int row = at.strip * kStripRows + at.row(r);
        if (row >= item.columns) continue;
        const float2 pair = merged.out[i / 4][i % 4];
        store_pair(
            p.out, p.out_dtype,
            static_cast<long long>(item.packed_first + row) * kLatent + at.column(i / 4, i % 4),
            pair.x * factor[r], pair.y * factor[r]);
    }
}

// One pair of a chunk.
template <bool kFp8>
__device__ inline void write_pair(const AbsorbedParams& p, const Item& item,
                                  const ChunkLane<kFp8>& at, int pair, const MergedPair& merged) {
    const int r = ChunkLane<kFp8>::row_of_part(pair / 4);
    const int row = at.strip * kStripRows + at.row(r);
    if (row >= item.columns) return;
    const float sum = merged.sum;
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    store_pair(
        p.out, p.out_dtype,
        static_cast<long long>(item.packed_first + row) * kLatent + at.column(pair / 4, pair % 4),
        merged.out.x * factor, merged.out.y * factor);
    if (at.chunk < 2 && pair % (8 / ChunkLane<kFp8>::kRows) == 0 && at.first_of_row() &&
        p.lse != nullptr)
        p.lse[item.packed_first + row] =
            sum > 0.0f ? (merged.maximum + log2f(sum)) * kLn2 : minus_infinity();
}

}  // namespace espalier::mla::cuda
