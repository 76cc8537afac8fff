// SPDX-License-Identifier: Apache-2.0
// The kernel for many tokens (many_tokens.cuh): its sizes, and which stage of which tile is where.
#pragma once

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct ManyParams {
    Problem problem;
    LaunchGrant grant;
    Segments segments;
    int row_blocks = 0;        // of a group, those of a second product included
    int first_row_blocks = 0;  // without them
    int token_tiles = 0;       // of all groups; of experts: at most
    bool passing = false;      // weights are read by one tile of tokens, most of experts' are
    int split = 1;             // blocks of a cluster that share an item's segments
    int own = 0;               // segments that each of them has at most
};

// kSplit: the blocks of a cluster have some of an item's segments each (many_split.cuh).
template <WeightCode kCode_, int kTokens_, int kCluster_, bool kSplit_ = false>
struct ManyConfig {
    static constexpr WeightCode kCode = kCode_;
    static constexpr bool kCodes = kCode != WeightCode::bf16;
    static constexpr bool kGroups = in_groups(kCode);  // a chain of sums for each 32 inputs,
    static constexpr bool kBlocks = in_blocks(kCode);  // for each 128
    static constexpr int kOutputs = 128;
    static constexpr int kTokens = kTokens_;
    // Blocks with tokens of their own that share a tile's weights: each reads a part for all.
    static constexpr int kCluster = kCluster_;
    static constexpr bool kSplit = kSplit_;
    static constexpr bool kSecond = kTokens < 128;  // serves a second product of the same x
    // A producing warp brings 32 tokens. The four of them share a stage, or each pair has every
    // second, or each warp every fourth: what a stage costs a warp hardly depends on its tokens.
    static constexpr int kStageWarps = kTokens / 32;
    static constexpr int kStageStep = 4 / kStageWarps;
    static constexpr int kInputBytes = kTokens * 128;  // 64 inputs
    // Bytes of 16 outputs in a stage, at most; stages begin where a swizzle does.
    static constexpr int kWeightBytes = code_bytes(kCode) + most_scale_bytes(kCode);
    static constexpr int kStageBytes =
        (kInputBytes + kOutputs / 16 * kWeightBytes + 1023) / 1024 * 1024;
    static constexpr int kSumBytes = kOutputs * kTokens * 4;  // of a segment
    // Bytes of the sums before the last segment's: one total of codes, or those of each segment.
    static constexpr int kTotalBytes = kSplit   ? (kMostSplitSegments - 1) * kSumBytes
                                       : kCodes ? kSumBytes
                                                : 0;
    // About 200 KB.
    static constexpr int kStages = kSplit ? std::min(10, (222 * 1024 - kTotalBytes) / kStageBytes)
                                   : kTokens == 128 ? (kCode == WeightCode::int8 ? 5 : 6)
                                   : kTokens == 64  ? (kCodes ? 10 : 8)
                                                    : 10;
    static constexpr int kThreads = 384;
    // The producer's registers, of 168 at entry: three warpgroups share 504.
    static constexpr int kProducerRegisters = kTokens == 128 ? 136 : 160;
    static constexpr int kMultiplierRegisters = kTokens == 128 ? 184 : 168;
    static constexpr int kBarrierBytes = (2 * kStages * 8 + 127) / 128 * 128;

    static constexpr std::size_t shared_bytes(int token_tiles) {
        return 1024 + kStages * kStageBytes + kTotalBytes + kBarrierBytes +
               static_cast<std::size_t>(token_tiles) * sizeof(TokenTile);
    }
};

// Addresses of a block's stages and barriers, and its tiles.
template <class C>
struct ManyShared {
    std::uint32_t stages;
    std::uint32_t totals;
    std::uint32_t barriers;
    TokenTile* tiles;
    int items;
    int rank;    // of the block in its cluster
    int first;   // item of the cluster
    int stride;  // from one to its next
    // The block's part of k.
    int first_chunk;
    int chunks;

    __device__ std::uint32_t stage(int slot) const {
        return stages + static_cast<std::uint32_t>(slot * C::kStageBytes);
    }
    __device__ std::uint32_t full(int slot) const {
        return barriers + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ std::uint32_t free(int slot) const {
        return barriers + static_cast<std::uint32_t>(8 * (C::kStages + slot));
    }
    // The cluster's tokens.
    __device__ TokenTile tile(const Problem& p, int index) const {
        return p.indptr != nullptr ? tiles[index] : dense_tile(p, C::kTokens * C::kCluster, index);
    }
};

template <class C>
struct StageCursor {
    int slot = 0;
    std::uint32_t parity = 0;
    __device__ void advance(int step = 1) {
        slot += step;
        if (slot >= C::kStages) {
            slot -= C::kStages;
            parity ^= 1;
        }
    }
};

// A stage of an item, in the order in which a block goes through both. An item has two at least.
struct ItemStage {
    int item;
    int stage;
    template <int kStep>
    __device__ void advance(int stages, int stride) {
        static_assert(kStep <= 4);
        stage += kStep;
        carry(stages, stride);
        if constexpr (kStep > 2) carry(stages, stride);
    }

  private:
    __device__ void carry(int stages, int stride) {
        if (stage < stages) return;
        stage -= stages;
        item += stride;
    }
};

}  // namespace espalier::linalg::cuda
