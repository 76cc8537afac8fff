// SPDX-License-Identifier: Apache-2.0
// Cut of a product's inputs into segments: each is one chain of sums, and the segments' sums are
// added in ascending order, whichever kernel or rank computes them. The cut is a property of the
// whole weight and travels with each part of it (WeightView::segments).
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier::linalg {

inline constexpr std::int64_t kTileOutputs = 16;
inline constexpr std::int64_t kChunkInputs = 128;
inline constexpr int kMostSegments = 16;
inline constexpr int kMostSegmentChunks = 32;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t tiles_of(std::int64_t n) { return divide_up(n, kTileOutputs); }
constexpr std::int64_t chunks_of(std::int64_t k) { return divide_up(k, kChunkInputs); }

struct Segments {
    int count = 0;
    int chunks = 0;  // of each; the last may have fewer
};

// One warp per segment reads a row of chunks: eight are enough to keep memory busy; a long row of a
// weight with few outputs is cut finer (V3's q_a, 1536 × 7168: 14 segments beat 8 by 20 %). Up to
// 22 chunks have two a segment: V2-Lite's shared expert (k = 2816) has as many segments as the
// experts (1408), with which it shares a launch.
constexpr Segments segments_of(std::int64_t n, std::int64_t k) {
    const std::int64_t chunks = chunks_of(k);
    if (chunks <= 11) return {static_cast<int>(chunks), 1};
    if (chunks <= 22) return {static_cast<int>(divide_up(chunks, 2)), 2};
    const std::int64_t wanted = tiles_of(n) < 264 && chunks >= 32 ? kMostSegments : 8;
    const std::int64_t most = std::max(wanted, divide_up(chunks, kMostSegmentChunks));
    const std::int64_t each = divide_up(chunks, most);
    return {static_cast<int>(divide_up(chunks, each)), static_cast<int>(each)};
}

// Segments of a weight that may be a part of a larger one, cut at segment borders.
struct InputSegments {
    std::int32_t count = 1;   // of this weight's inputs
    std::int32_t first = 0;   // among those of the whole weight
    std::int32_t whole = 1;   // of the whole weight
    std::int64_t inputs = 0;  // of each, the whole weight's last may have fewer; 0: all

    bool operator==(const InputSegments&) const = default;
};

constexpr InputSegments input_segments(std::int64_t n, std::int64_t k) {
    const Segments cut = segments_of(n, k);
    return {cut.count, 0, cut.count, cut.chunks * kChunkInputs};
}

// The same of a weight whose inputs are the outputs of `heads` heads, `width` columns each:
// segments of whole heads where their widths allow it. Of the possible numbers of segments, at most
// the shape's own, the one that most powers of two divide, then the largest: 20 heads of 256
// columns have 4.
constexpr InputSegments head_segments(std::int64_t n, std::int64_t heads, std::int64_t width) {
    const InputSegments plain = input_segments(n, heads * width);
    if (plain.inputs % width == 0 && heads % (plain.inputs / width) == 0) return plain;
    if (width % kChunkInputs != 0) return plain;
    const auto twos = [](std::int64_t count) { return count & -count; };
    std::int64_t best = 1;
    for (std::int64_t count = 2; count <= std::min<std::int64_t>(heads, plain.count); ++count)
        if (heads % count == 0 && twos(count) >= twos(best)) best = count;
    return {static_cast<std::int32_t>(best), 0, static_cast<std::int32_t>(best),
            heads / best * width};
}

// A run of things that are dealt to ranks in order.
struct Part {
    std::int64_t first = 0;
    std::int64_t count = 0;
};
// Rank r's of `whole`, almost equally many each: none on some where ranks are more.
constexpr Part part_of(std::int64_t whole, int rank, int ranks) {
    const std::int64_t first = whole * rank / ranks;
    return {first, whole * (rank + 1) / ranks - first};
}
// Segments of a whole weight that a rank has.
constexpr InputSegments part_of(const InputSegments& whole, int rank, int ranks) {
    const Part part = part_of(std::int64_t{whole.whole}, rank, ranks);
    return {static_cast<std::int32_t>(part.count), static_cast<std::int32_t>(part.first),
            whole.whole, whole.inputs};
}

// Rank r's outputs of a weight whose n outputs are dealt in tiles.
constexpr Part outputs_of(std::int64_t n, int rank, int ranks) {
    const Part tiles = part_of(tiles_of(n), rank, ranks);
    const std::int64_t first = std::min(n, tiles.first * kTileOutputs);
    return {first, std::min(n, (tiles.first + tiles.count) * kTileOutputs) - first};
}
// Inputs that a part's segments have, of the whole weight's k.
constexpr Part inputs_of(const InputSegments& part, std::int64_t k) {
    const std::int64_t first = std::min(k, part.first * part.inputs);
    return {first, std::min(k, (part.first + part.count) * part.inputs) - first};
}

}  // namespace espalier::linalg
