// SPDX-License-Identifier: Apache-2.0
// Products of many tokens over x that a kernel of its own has arranged before: for prompts.
#pragma once

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

// Of a tile. Codes have three sums per output, not two; at 128 INT8's do not fit in registers.
constexpr int most_arranged_tokens(WeightCode code) {
    return code == WeightCode::bf16 ? kArrangedTokens : code == WeightCode::int8 ? 96 : 128;
}

inline std::size_t arranged_bytes(std::int64_t rows, std::int64_t k) {
    return kArrangedHeader + static_cast<std::size_t>(rows * chunks_of(k) * kChunkInputs * 2);
}

// Whether arranging pays: enough tokens, enough scratch memory.
bool arranges(const Problem& p, const Scratch& scratch);
void arranged_tokens(cudaStream_t stream, const Problem& p, const Scratch& scratch);

// A gated product and the product of what it gives, which goes to `between` as it is arranged there
// and nowhere else: gated.y is not written. For experts both have the rows of one routing.
bool arranges_pair(const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between);
void arranged_pair(cudaStream_t stream, const Problem& gated, const Scratch& scratch,
                   const Problem& down, const Scratch& between);

}  // namespace espalier::linalg::cuda
