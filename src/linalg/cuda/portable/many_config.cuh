// SPDX-License-Identifier: Apache-2.0
// The portable kernel for many tokens (many_tokens.cuh): its sizes, and what it is launched with.
#pragma once

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda::portable {

struct ManyParams {
    Problem problem;
    LaunchGrant grant;
    Segments segments;
    int row_tiles = 0;    // of 16 outputs of a group, those of a second product included
    int row_blocks = 0;   // of them
    int token_tiles = 0;  // of all groups; of experts: at most
    int stages = 0;       // 2, 3 or 4
    int stage_bytes = 0;
};

// kColumns: warps side by side over tokens, 32 to each.
template <WeightCode kCode_, int kColumns_>
struct ManyConfig {
    static constexpr WeightCode kCode = kCode_;
    static constexpr bool kCodes = kCode != WeightCode::bf16;
    static constexpr bool kGroups = in_groups(kCode);  // a chain of sums for each 32 inputs,
    static constexpr bool kBlocks = in_blocks(kCode);  // for each 128
    static constexpr int kRows = 4;                    // warps side by side over outputs,
    static constexpr int kRowTiles = 2;                // tiles of 16 to each
    static constexpr int kBlockTiles = kRows * kRowTiles;
    static constexpr int kColumns = kColumns_;
    static constexpr int kTokenTiles = 4;  // of 8 tokens, of a warp
    static constexpr int kWarpTokens = 8 * kTokenTiles;
    static constexpr int kTokens = kWarpTokens * kColumns;
    static constexpr int kWarps = kRows * kColumns;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kInputBytes = kTokens * 128;  // 64 inputs
    // Blocks of a multiprocessor, by registers: 128 of a thread; of codes in blocks, which have
    // three sums of an output, twice as many.
    static constexpr int kResident = kBlocks ? 2 / kColumns : 4 / kColumns;
    static_assert(kResident > 0);
};

}  // namespace espalier::linalg::cuda::portable
