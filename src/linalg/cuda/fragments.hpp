// SPDX-License-Identifier: Apache-2.0
// WeightLayout::fragments: weights in the order in which tensor cores take them.
//
// bf16 and codes: a matrix [n, k] is cut into chunks of 16 outputs × 128 inputs, padded with zeros:
//   [n / 16][k / 128][2 halves of 64 inputs]
// A half is four steps of 16 inputs, each the left operand of one mma.m16n8k16: lane l = 4g + t
// holds outputs g and g + 8. Which 16 inputs make a step is chosen so that the other operand is one
// 16-byte load of eight consecutive inputs for two steps: of the 32 inputs of steps 2j and 2j + 1,
// lane t has 8t … 8t + 7, the first four in step 2j. A step's registers are (g, 0..1) (g+8, 0..1)
// (g, 2..3) (g+8, 2..3), inputs of the lane's four.
//   bf16   [g, g+8][step][0..1, 2..3][8 outputs][8 inputs]: matrices of 8 × 8 as ldmatrix reads
//          them
//   e4m3   [step pair][lane][2 steps][4 pairs of codes]: a pair is the codes of outputs g and g + 8
//          at one input, its bits dealt so that each code is two or four integer operations from
//          bf16 (join_codes, widen)
//   int8   [step pair][lane][2 steps][2 words]: four codes, those of outputs g and g + 8 beside
//          each other, the second input in the upper half
//   int4   [step pair][lane][2 steps], a word each: code + 8 of register r in bits 4r of both
//          halves
//   e2m1   likewise, the bits of register r dealt (deal_e2m1)
// Behind the codes of a half lie its scales, so that one copy brings both:
//   int8, int4   [groups][8 g][g, g+8] of bf16 or f32; 64 inputs have one group or two
//   e2m1         [step pair][8 g][t / 2][g, g+8] of e4m3 without its sign, which the codes have
// WeightLayout::gated_fragments: a tile of 16 outputs is eight of the gate (the matrix's first
// half) and the same eight of up, so that the lane that has the sum of one has the other's.
//
// Scales apart, e4m3's and those of e2m1's matrices: f32 [n / 16][k / 128][2], of outputs 0 … 7 and
// 8 … 15, or [16] where eight outputs do not share one.
//
// f32, f16: rows [n][k], k padded to a multiple of four with zeros.
//
// k is also cut into segments, a function of the shape alone (linalg/segments.hpp).
#pragma once

#include <cstdint>

#include "linalg/segments.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg::cuda {

inline constexpr int kMostSplitSegments = 4;  // that a block of a cluster has, of many tokens
inline constexpr std::int64_t kMostInputs = kMostSegments * kMostSegmentChunks * kChunkInputs;

constexpr bool in_fragments(WeightCode code) { return facts_of(code).input == DType::bf16; }
constexpr std::int64_t padded_row(std::int64_t k) { return divide_up(k, 4) * 4; }

// Integer codes: a chain of sums for each 32 inputs, times their scale.
constexpr bool in_groups(WeightCode code) {
    return code == WeightCode::int8 || code == WeightCode::int4;
}
// Codes that are multiplied by a scale for 128 inputs.
constexpr bool in_blocks(WeightCode code) {
    return code == WeightCode::e4m3 || code == WeightCode::e2m1;
}
// Bytes of 16 outputs and 64 inputs.
constexpr int code_bytes(WeightCode code) { return 16 * 64 * facts_of(code).bits / 8; }
constexpr int most_scale_bytes(WeightCode code) {
    return in_groups(code) ? 2 * 16 * 4 : code == WeightCode::e2m1 ? 4 * 16 : 0;
}
// Groups of inputs with scales of their own in half a chunk.
constexpr int groups_of_half(const WeightFormat& packed) { return packed.group_k == 32 ? 2 : 1; }
constexpr int half_bytes(const WeightFormat& packed) {
    const int scales =
        in_groups(packed.code)
            ? groups_of_half(packed) * 16 * static_cast<int>(bytes_of(dtype_of(packed.scale)))
            : most_scale_bytes(packed.code);
    return code_bytes(packed.code) + scales;
}

// Row `output` of gated_fragments in the matrix that joins gate and up.
constexpr std::int64_t gated_row(std::int64_t output, std::int64_t n) {
    return output % 16 / 8 * (n / 2) + output / 16 * 8 + output % 8;
}

// The codes of outputs g and g + 8 in 16 bits: the first as S...EEEEMMM...., the second in the
// holes.
constexpr std::uint32_t join_codes(std::uint32_t first, std::uint32_t second) {
    return (first & 0x80u) << 8 | (first & 0x7fu) << 4 | (second & 0x80u) << 4 |
           (second & 0x70u) << 8 | (second & 0x0fu);
}

// An e2m1 code of register r as its word has it, in the lower half: sign, exponent and mantissa lie
// 3r places below those of bf16; those of register 3 where there is room.
constexpr std::uint32_t deal_e2m1(std::uint32_t code, int r) {
    const std::uint32_t sign = code >> 3 & 1u, rest = code & 7u;
    if (r < 3) return (sign << 15 | rest << 6) >> 3 * r;
    return sign << 14 | (rest >> 2) << 13 | (rest & 3u) << 10;
}
// The matrix's scale is stored times 2⁸, because codes are widened to 2⁻⁸ of their number.
inline constexpr float kE2m1Factor = 256.0f;

}  // namespace espalier::linalg::cuda
