// SPDX-License-Identifier: Apache-2.0
// WeightLayout::fragments: weights in the order in which tensor cores take their left operand.
//
// bf16, e4m3: a matrix [n, k] is cut into chunks of 16 outputs × 128 inputs, padded with zeros:
//   [n / 16][k / 128][chunk]
// A chunk is eight steps of 16 inputs, each the left operand of one mma.m16n8k16: lane l = 4g + t
// holds outputs g and g + 8. Which 16 inputs make a step is chosen so that the other operand is one
// 16-byte load of eight consecutive inputs for two steps: of the 32 inputs of steps 2j and 2j + 1,
// lane t has 8t … 8t + 7, the first four in step 2j.
//   bf16   [step][lane][8]: (g, 0..1) (g+8, 0..1) (g, 2..3) (g+8, 2..3), inputs of the lane's four
//   e4m3   [step pair][lane][2 steps][4 pairs of codes]: a pair is the codes of outputs g and g + 8
//          at one input, its bits dealt so that each code is two or four integer operations from
//          bf16 (join_codes, widen)
// WeightLayout::gated_fragments, bf16: a tile of 16 outputs is eight of the gate (the matrix's
// first half) and the same eight of up, so that the lane that has the sum of one has the other's.
//
// e4m3 scales are f32 [n / 16][k / 128], or [n / 16][k / 128][16] where 16 outputs do not share
// one.
//
// f32, f16: rows [n][k], k padded to a multiple of four with zeros.
//
// k is also cut into segments, a function of the shape alone: each is one chain of sums, and the
// segments' sums are added in ascending order, whichever kernel computes them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linalg/weight.hpp"

namespace espalier::linalg::cuda {

inline constexpr std::int64_t kTileOutputs = 16;
inline constexpr std::int64_t kChunkInputs = 128;
inline constexpr int kMostSegments = 16;
inline constexpr int kMostSegmentChunks = 32;
inline constexpr std::int64_t kMostInputs = kMostSegments * kMostSegmentChunks * kChunkInputs;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t tiles_of(std::int64_t n) { return divide_up(n, kTileOutputs); }
constexpr std::int64_t chunks_of(std::int64_t k) { return divide_up(k, kChunkInputs); }
constexpr bool in_fragments(WeightCode code) { return facts_of(code).input == DType::bf16; }
constexpr std::int64_t padded_row(std::int64_t k) { return divide_up(k, 4) * 4; }

// Row `output` of gated_fragments in the matrix that joins gate and up.
constexpr std::int64_t gated_row(std::int64_t output, std::int64_t n) {
    return output % 16 / 8 * (n / 2) + output / 16 * 8 + output % 8;
}

struct Segments {
    int count = 0;
    int chunks = 0;  // of each; the last may have fewer
};

// One warp per segment reads a row of chunks: eight are enough to keep memory busy; a long row of a
// weight with few outputs is cut finer (V3's q_a, 1536 × 7168: 14 segments beat 8 by 20 %).
constexpr Segments segments_of(std::int64_t n, std::int64_t k) {
    const std::int64_t chunks = chunks_of(k);
    if (chunks <= 11) return {static_cast<int>(chunks), 1};
    const std::int64_t wanted = tiles_of(n) < 264 && chunks >= 32 ? kMostSegments : 8;
    const std::int64_t most = std::max(wanted, divide_up(chunks, kMostSegmentChunks));
    const std::int64_t each = divide_up(chunks, most);
    return {static_cast<int>(divide_up(chunks, each)), static_cast<int>(each)};
}

// The codes of outputs g and g + 8 in 16 bits: the first as S...EEEEMMM...., the second in the
// holes.
constexpr std::uint32_t join_codes(std::uint32_t first, std::uint32_t second) {
    return (first & 0x80u) << 8 | (first & 0x7fu) << 4 | (second & 0x80u) << 4 |
           (second & 0x70u) << 8 | (second & 0x0fu);
}

}  // namespace espalier::linalg::cuda
