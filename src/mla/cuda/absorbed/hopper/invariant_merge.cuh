// SPDX-License-Identifier: Apache-2.0
// Merges the splits of a block of packed rows as soon as all are there. Four in ascending order
// make a quad; one quad, or two where splits are long and many, make a group (short calls want more
// warps at work, long ones fewer groups); groups follow one another in ascending order. Every part
// that computed some of the splits merges that share of the chunks, so no part waits for a whole
// grid.
//
// A warp takes a group of a chunk (8 packed rows by 64 columns) and asks for all of it at once,
// again and again if its block's partial results say themselves when they are there. Where other
// parts have splits too, keys are done with: their place in shared memory is where a block's warps
// bring their groups together. Where all splits are this part's, the next row's keys may be there,
// and a warp goes through all groups itself. So it does where there is but one quad; of two, a warp
// takes both of half a chunk, which is as much work, and again no warp waits for another.
#pragma once

#include "base/cuda/memory.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/absorbed/hopper/merged_chunk.cuh"

namespace espalier::mla::cuda {

inline constexpr int kOutputWarps = kOutputThreads / 32;

// Meeting place of groups in shared memory, word by word for all lanes of a warp. Maxima,
// sums, then the columns in pairs.
template <bool kFp8>
class GroupPlaces {
    static constexpr int kRows = ChunkLane<kFp8>::kRows;
    static constexpr int kWords = 20;
    static_assert(kWords * 4 >= sizeof(MergedChunk<ChunkLane<kFp8>>));

  public:
    static constexpr int kCount = Traits<KvFormat::bf16>::kTileBytes * 2 / (kWords * 128);
    static_assert(Traits<KvFormat::fp8_token>::kTileBytes * 4 >= kCount * kWords * 128);

    __device__ explicit GroupPlaces(std::byte* room)
        : words_(reinterpret_cast<float*>(room) + threadIdx.x % 32) {}
    __device__ void put(int place, const MergedChunk<ChunkLane<kFp8>>& merged) {
        float* words = words_ + place * kWords * 32;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            words[r * 32] = merged.maximum[r];
            words[(kRows + r) * 32] = merged.sum[r];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            words[(2 * kRows + 2 * i) * 32] = merged.out[i / 4][i % 4].x;
            words[(2 * kRows + 2 * i + 1) * 32] = merged.out[i / 4][i % 4].y;
        }
    }
    __device__ MergedChunk<ChunkLane<kFp8>> get(int place) const {
        const float* words = words_ + place * kWords * 32;
        MergedChunk<ChunkLane<kFp8>> merged;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            merged.maximum[r] = words[r * 32];
            merged.sum[r] = words[(kRows + r) * 32];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            merged.out[i / 4][i % 4] = {words[(2 * kRows + 2 * i) * 32],
                                        words[(2 * kRows + 2 * i + 1) * 32]};
        return merged;
    }
    // Pair `pair` of columns of the part at `place`.
    __device__ MergedPair get(int place, int pair) const {
        const float* words = words_ + place * kWords * 32;
        const int r = ChunkLane<kFp8>::row_of_part(pair / 4);
        const float* own = words + (2 * kRows + 2 * pair) * 32;
        return {words[r * 32], words[(kRows + r) * 32], {own[0], own[32]}};
    }

  private:
    float* words_;
};

// Chunks tile_begin … tile_end - 1 of a block, by the output warps.
template <bool kFp8, bool kMarks>
class ChunkMerger {
    using Lane = ChunkLane<kFp8>;
    using Merged = MergedChunk<Lane>;

  public:
    __device__ ChunkMerger(const AbsorbedParams& p, const Item& item)
        : p_(p),
          item_(item),
          thread_(found_here(static_cast<int>(threadIdx.x) % kOutputThreads)),
          warp_(thread_ / 32),
          quads_(item.split_tiles),
          groups_(item.run),
          marked_(kMarks && (item.flags & kMarked) != 0) {}

    // Up to two quads: a warp takes both of every eighth half of a chunk.
    __device__ void two_quads() const {
        using Half = ChunkLane<kFp8, 1>;
#pragma unroll 1
        for (int half = 2 * item_.tile_begin + warp_; half < 2 * item_.tile_end;
             half += kOutputWarps) {
            const Half at = Half::of_half(half / 2, half % 2, thread_ % 32);
            QuadMerge<Half, kMarks> first(p_, item_, at, 0);
            QuadMerge<Half, kMarks> second(p_, item_, at, 1);
            do {
                first.ask();
                second.ask();
            } while (marked_ && !(first.there() && second.there()));
            if (marked_) {
                first.clear_place();
                second.clear_place();
            }
            MergedChunk<Half> both = first.merged();
            both.append(second.merged());
            write_chunk(p_, item_, at, both);
        }
    }

    // Alone, a warp takes every eighth chunk. Together they take a group of a chunk each, as many
    // chunks at a time as there is room for. There is one place from which a group is merged: its
    // code is long.
    __device__ void run(bool together, GroupPlaces<kFp8> places) const {
#pragma unroll 1
        for (int first = item_.tile_begin; first < item_.tile_end;) {
            int chunk = together ? 0 : warp_, group = together ? warp_ : 0, place = warp_;
            const auto next_chunk = [&] {
                for (; group >= groups_; group -= groups_) ++chunk;
                return first + chunk < item_.tile_end &&
                       (!together || (chunk + 1) * groups_ <= Places::kCount);
            };
            Merged all;        // alone
            bool met = false;  // all warps are done with the keys, or with the chunks before
#pragma unroll 1
            while (next_chunk()) {
                const Lane at = lane_of(first + chunk);
                const Merged merged = merged_group(at, group);
                if (!together) {
                    all.append(merged);
                    if (++group < groups_) continue;
                    write_chunk(p_, item_, at, all);
                    all = Merged();
                    group = 0;
                    chunk += kOutputWarps;
                    continue;
                }
                if (!met) named_barrier(kOutputBarrier, kOutputThreads);
                met = true;
                places.put(place, merged);
                group += kOutputWarps;
                place += kOutputWarps;
            }
            if (!together) return;
            if (!met) named_barrier(kOutputBarrier, kOutputThreads);
            named_barrier(kOutputBarrier, kOutputThreads);
            if (kMarks && item_.tile_end - item_.tile_begin <= kFewChunks)
                first = append_pairs(places, first);
            else
                first = append_chunks(places, first);
        }
    }

    // Merges as one of `warps` warps that do not synchronise with each other.
    __device__ void alone(int warp, int warps) const {
#pragma unroll 1
        for (int chunk = item_.tile_begin + warp; chunk < item_.tile_end; chunk += warps) {
            const Lane at = lane_of(chunk);
            Merged all;
#pragma unroll 1
            for (int group = 0; group < groups_; ++group) all.append(merged_group(at, group));
            write_chunk(p_, item_, at, all);
        }
    }

  private:
    using Places = GroupPlaces<kFp8>;
    // Up to this many chunks are appended by all warps, each of which weighs all groups: 9.7 µs
    // instead of 10.2 at 1 × 1,024 in a chain, but eight of them 2 µs more.
    static constexpr int kFewChunks = 2;

    // The groups of a chunk, by a warp, or one of eight pairs of each lane's columns of all chunks.
    // Returns the first chunk for which there was no room.
    __device__ int append_chunks(const Places& places, int first) const {
        int place = 0, turn = warp_;
#pragma unroll 1
        for (; first < item_.tile_end && place + groups_ <= Places::kCount; ++first, --turn) {
            if (turn == 0) {
                Merged all;
#pragma unroll 1
                for (int group = 0; group < groups_; ++group) all.append(places.get(place + group));
                write_chunk(p_, item_, lane_of(first), all);
                turn = kOutputWarps;
            }
            place += groups_;
        }
        return first;
    }
    __device__ int append_pairs(const Places& places, int first) const {
        static_assert(kOutputWarps == 8);
        int place = 0;
#pragma unroll 1
        for (; first < item_.tile_end && place + groups_ <= Places::kCount; ++first) {
            MergedPair all;
#pragma unroll 1
            for (int group = 0; group < groups_; ++group) all.append(places.get(place++, warp_));
            write_pair<kFp8>(p_, item_, lane_of(first), warp_, all);
        }
        return first;
    }

    // All quads are asked for before the first is looked at.
    __device__ Merged merged_group(const Lane& at, int group) const {
        QuadMerge<Lane, kMarks> first(p_, item_, at, group * quads_);
        if constexpr (!kFp8) {
            if (quads_ == 2) {
                QuadMerge<Lane, kMarks> second(p_, item_, at, group * 2 + 1);
                do {
                    first.ask();
                    second.ask();
                } while (marked_ && !(first.there() && second.there()));
                if (marked_) {
                    first.clear_place();
                    second.clear_place();
                }
                Merged both = first.merged();
                both.append(second.merged());
                return both;
            }
        }
        do {
            first.ask();
        } while (marked_ && !first.there());
        if (marked_) first.clear_place();
        return first.merged();
    }
    __device__ Lane lane_of(int chunk) const { return Lane::whole(chunk, thread_ % 32); }
    // Not moved to where the sums of the output need all registers, nor what follows from it.
    __device__ static int found_here(int value) {
        asm volatile("" : "+r"(value));
        return value;
    }

    const AbsorbedParams& p_;
    const Item& item_;
    const int thread_, warp_, quads_, groups_;
    const bool marked_;
};

__device__ inline void wait_for_splits(const Counter& counter, Counter before) {
    while ((load_acquire(&counter) ^ before) < kAllArrived) {
    }
}

// Over FP8 codes, where this part has computed all splits of a block and has nothing else to do:
// the output warps and, from number kOutputWarps on, the scoring ones. (Before another block those
// go on with its queries and scores: 2 % slower at R = 64 if they do not.)
__device__ inline bool all_merge(const AbsorbedParams& p) {
    return p.part_plans[blockIdx.x].left == 0;
}
__device__ inline void merge_with_all(const AbsorbedParams& p, const Item& item, int first_warp) {
    named_barrier(kMergeBarrier, 2 * kOutputThreads);
    const int warp = static_cast<int>(threadIdx.x) % kOutputThreads / 32;
    ChunkMerger<true, false>(p, item).alone(first_warp + warp, 2 * kOutputWarps);
}

// The output warps, for an item that merges.
template <bool kFp8, bool kMarks, bool kHelped = false, typename Shared>
__device__ inline void merge_share(const AbsorbedParams& p, const Item& item, Shared& shared) {
    const ChunkMerger<kFp8, kMarks> merger(p, item);
    const bool local = (item.flags & kLocal) != 0;
    if (kHelped && local && all_merge(p)) return merge_with_all(p, item, 0);
    if (!local && (!kMarks || (item.flags & kMarked) == 0)) {
        if (threadIdx.x % kOutputThreads == 0)
            wait_for_splits(p.counters[item.base], shared.counted[(item.flags & kSecond) != 0]);
        named_barrier(kOutputBarrier, kOutputThreads);
    }
    if (!local && item.splits > kQuad && item.splits <= 2 * kQuad) return merger.two_quads();
    merger.run(!local && item.run > 1 && item.run <= GroupPlaces<kFp8>::kCount,
               GroupPlaces<kFp8>(shared.keys[0]));
}

}  // namespace espalier::mla::cuda
