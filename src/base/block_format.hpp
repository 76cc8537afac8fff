// SPDX-License-Identifier: Apache-2.0
// Block formats of GGUF files: a run of weights as codes, scales and minima in one piece of bytes.
// Unpacking gives codes, and a scale and a zero point for each group, whose numbers are exactly
// those that ggml defines: code · scale is exact in f32 in every format here (11 bits of an f16
// times at most 7 of a scale and 6 of a code), so that a zero point is the only rounding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/weight_format.hpp"

namespace espalier {

enum class BlockCode : std::uint8_t { none, q8_0, q4_0, q5_0, iq4_nl, iq4_xs, q6_k, q4_k, q5_k };

struct BlockFacts {
    std::string_view name;
    std::int32_t weights = 0;  // of one block
    std::int32_t bytes = 0;
    WeightFormat format = {};  // of the codes and scales that a block is unpacked to
};

constexpr WeightFormat with_zero_points(WeightFormat format) {
    format.zero_points = true;
    return format;
}

inline constexpr std::int32_t kMostBlockWeights = 256;
inline constexpr std::int32_t kMostBlockGroups = 16;

inline constexpr std::array kBlocks = {
    BlockFacts{.name = "none"},
    BlockFacts{"Q8_0", 32, 34, grouped(WeightCode::int8, 32, ScaleType::f32)},
    BlockFacts{"Q4_0", 32, 18, grouped(WeightCode::int4, 32, ScaleType::f32)},
    // Codes of five bits and numbers of a table of eight are held in eight.
    BlockFacts{"Q5_0", 32, 22, grouped(WeightCode::int8, 32, ScaleType::f32)},
    BlockFacts{"IQ4_NL", 32, 18, grouped(WeightCode::int8, 32, ScaleType::f32)},
    BlockFacts{"IQ4_XS", 256, 136, grouped(WeightCode::int8, 32, ScaleType::f32)},
    BlockFacts{"Q6_K", 256, 210, grouped(WeightCode::int8, 16, ScaleType::f32)},
    // Codes from zero, and a minimum for each group.
    BlockFacts{"Q4_K", 256, 144, with_zero_points(grouped(WeightCode::int4, 32, ScaleType::f32))},
    BlockFacts{"Q5_K", 256, 176, with_zero_points(grouped(WeightCode::int8, 32, ScaleType::f32))},
};

constexpr const BlockFacts& facts_of(BlockCode code) {
    return kBlocks[static_cast<std::size_t>(code)];
}
// `none` where no block format is called so.
BlockCode block_of(std::string_view name);

// One block: a code for each weight, a scale and, where the format has them, a zero point for each
// group of them. A weight is code · scale + zero point.
struct BlockNumbers {
    std::array<std::int8_t, kMostBlockWeights> codes;
    std::array<float, kMostBlockGroups> scales;
    std::array<float, kMostBlockGroups> zeros;
};
void unpack_block(BlockCode code, const std::byte* block, BlockNumbers& to);

// Consecutive blocks as f32: weights is a multiple of a block's.
void widen_blocks(BlockCode code, const std::byte* blocks, std::int64_t weights, float* to);

}  // namespace espalier
