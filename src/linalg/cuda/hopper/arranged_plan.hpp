// SPDX-License-Identifier: Apache-2.0
// Products of many tokens over x that a kernel of its own has arranged before, for prompts: whether
// that pays, and the sizes of tiles and stages. Pure: a function of the problem and of the device's
// facts.
#pragma once

#include <algorithm>

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/problem.hpp"
#include "linalg/cuda/product.hpp"

namespace espalier::linalg::cuda {

// Arranged x, in scratch memory: first a header with the number of the next tile to be computed,
// then tiles of up to 192 rows of one group, each stored as [64 inputs][row][128 bytes], which is
// what shared memory takes: inputs in the order of fragments.hpp's steps, 16-byte units of a row
// swizzled by its place in the tile.
inline constexpr std::size_t kArrangedHeader = 128;
inline constexpr int kArrangedTokens = 192;

// Most tokens of a tile. Codes have three sums per output; at 128 INT8's do not fit in registers.
constexpr int most_arranged_tokens(WeightCode code) {
    return code == WeightCode::bf16 ? kArrangedTokens : code == WeightCode::int8 ? 96 : 128;
}

inline std::size_t arranged_bytes(std::int64_t rows, std::int64_t k) {
    return kArrangedHeader + static_cast<std::size_t>(rows * chunks_of(k) * kChunkInputs * 2);
}

inline constexpr int kArrangedOutputs = 128;
inline constexpr int kArrangedThreads = 384;
inline constexpr std::size_t kArrangedMemoryBytes = 17 * 1024;  // barriers, and for gated products
inline constexpr int kMostArrangedStages = 16;

// A stage has 64 inputs; of codes 128, which have a scale in common.
constexpr int stage_halves(WeightCode code) { return code == WeightCode::bf16 ? 1 : 2; }

// half_bytes: of 16 outputs and 64 inputs of codes. bf16: a constant, because every tile's first
// stages are multiplied as if it had all tokens.
constexpr int arranged_stage_bytes(WeightCode code, int tile_tokens, int half_bytes) {
    if (code == WeightCode::bf16)
        return kArrangedTokens * 128 + kArrangedOutputs / 16 * code_bytes(code);
    const int bytes = stage_halves(code) * (tile_tokens * 128 + kArrangedOutputs / 16 * half_bytes);
    return (bytes + 1023) / 1024 * 1024;
}
inline constexpr int kBf16Slots = 5;  // beside which lists of tiles have room
constexpr int arranged_slots(WeightCode code, int tile_tokens, int half_bytes,
                             std::size_t block_bytes, std::size_t listed_bytes) {
    if (code == WeightCode::bf16) return kBf16Slots;
    const std::size_t room = block_bytes - kArrangedMemoryBytes - listed_bytes;
    const int bytes = arranged_stage_bytes(code, tile_tokens, half_bytes);
    return std::min(kMostArrangedStages, static_cast<int>(room / static_cast<std::size_t>(bytes)));
}

struct ArrangedPlan {
    int tile_tokens = 0;
    int slots = 0;  // stages that shared memory holds at once
    int stage_bytes = 0;
    std::size_t shared_bytes = 0;

    bool operator==(const ArrangedPlan&) const = default;
};
ArrangedPlan arranged_plan(const Problem& p, const DeviceFacts& facts);

// True if arranging pays: enough tokens, enough scratch memory.
bool arranges(const Problem& p, const Scratch& scratch, const DeviceFacts& facts);
// A gated product and the product of what it gives, which goes to `between` as it is arranged there
// and nowhere else: gated.y is not written. For experts both have the rows of one routing.
bool arranges_pair(const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between, const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
