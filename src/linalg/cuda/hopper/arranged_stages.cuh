// SPDX-License-Identifier: Apache-2.0
// Products of prompts over arranged x (arranged.hpp): sizes, a block's memory, which tiles it has,
// and the warp that brings weights and x by bulk copies, as they are.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/memory.cuh"
#include "linalg/cuda/hopper/arranged_params.hpp"
#include "linalg/cuda/hopper/arranged_store.cuh"

namespace espalier::linalg::cuda {

template <WeightCode kCode_>
struct ArrangedConfig {
    static constexpr WeightCode kCode = kCode_;
    static constexpr bool kCodes = kCode != WeightCode::bf16;
    static constexpr bool kGroups = in_groups(kCode);  // a chain of sums for each 32 inputs,
    static constexpr bool kBlocks = in_blocks(kCode);  // for each 128
    static constexpr int kOutputs = kArrangedOutputs;
    static constexpr int kTokens = most_arranged_tokens(kCode);
    static constexpr int kHalves = stage_halves(kCode);
    static constexpr int kThreads = kArrangedThreads;
    // The producer's registers, of 168 at entry: three warpgroups share 504.
    static constexpr int kProducerRegisters = 24;
    static constexpr int kMultiplierRegisters = 240;
};

// Codes: of three sums per output registers have two, and of so many tokens the third.
inline constexpr int kHeldTokens = 96;

// A warpgroup's, one after the other.
union alignas(16) ArrangedSums {
    GatedMemory gated;
    // Codes: of the segments before, of the tokens beyond kHeldTokens.
    float4 totals[(most_arranged_tokens(WeightCode::e4m3) - kHeldTokens) / 8][128];
};

// A block's memory. Behind it lie the stages, where a swizzle begins, then experts' tiles.
struct alignas(1024) ArrangedMemory {
    ArrangedSums sums[2];  // warpgroups'
    std::uint64_t full[kMostArrangedStages];
    std::uint64_t free[kMostArrangedStages];
    int items[kMostArrangedStages];  // of a stage, the tile whose first it is; -1: none is left
    int listed;                      // experts' tiles
};
static_assert(sizeof(ArrangedMemory) == kArrangedMemoryBytes);
extern __shared__ ArrangedMemory arranged_memory[];

template <class C>
struct ArrangedShared {
    int count;  // of items

    // A block of 128 rows of weights, of the first product or the second.
    struct Rows {
        bool second;
        int block;
        int n;  // that the product has
    };
    __device__ static Rows rows(const ArrangedParams& params, int item) {
        const int block = item % params.row_blocks;
        return block < params.first_blocks
                   ? Rows{false, block, params.problem.n}
                   : Rows{true, block - params.first_blocks, params.problem.second.n};
    }

    // Constants for bf16, since the multiplier has no register to spare.
    __device__ static int slots(const ArrangedParams& params) {
        return C::kCodes ? params.slots : kBf16Slots;
    }
    __device__ static int stage_bytes(const ArrangedParams& params) {
        return C::kCodes ? params.stage_bytes : arranged_stage_bytes(C::kCode, C::kTokens, 0);
    }
    // Bytes of 64 inputs in a stage.
    __device__ static int half_input_bytes(const ArrangedParams& params) {
        return (C::kCodes ? params.tile_tokens : C::kTokens) * 128;
    }
    // Bytes of 16 outputs in a stage.
    __device__ static int tile_bytes(const ArrangedParams& params) {
        return C::kCodes ? C::kHalves * params.problem.half_bytes
                         : C::kHalves * code_bytes(C::kCode);
    }
    __device__ static std::uint32_t stage(const ArrangedParams& params, int slot) {
        return shared_address(arranged_memory + 1) +
               static_cast<std::uint32_t>(slot * stage_bytes(params));
    }
    __device__ static std::uint32_t full(int slot) {
        return shared_address(arranged_memory->full) + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ static std::uint32_t free(int slot) {
        return shared_address(arranged_memory->free) + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ static TokenTile* tiles(const ArrangedParams& params) {
        return reinterpret_cast<TokenTile*>(reinterpret_cast<std::byte*>(arranged_memory + 1) +
                                            slots(params) * stage_bytes(params));
    }
    __device__ static TokenTile tile(const ArrangedParams& params, int index) {
        return params.problem.indptr != nullptr
                   ? tiles(params)[index]
                   : dense_tile(params.problem, params.tile_tokens, index);
    }
};

template <class C>
struct ArrangedCursor {
    int slot = 0;
    std::uint32_t parity = 0;
    __device__ void advance(const ArrangedParams& params) {
        if (++slot < ArrangedShared<C>::slots(params)) return;
        slot = 0;
        parity ^= 1;
    }
};

// One warp: the first lanes ask for 64 inputs of x each, the others for 16 outputs each.
template <class C>
__device__ void bring_stages(const ArrangedParams& params, const ArrangedShared<C>& shared) {
    constexpr int kTiles = C::kOutputs / 16;
    const Problem& p = params.problem;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int half = shared.half_input_bytes(params), tile_bytes = shared.tile_bytes(params);
    const int stages = params.stages / C::kHalves;
    const bool inputs = lane < C::kHalves;
    ArrangedCursor<C> cursor;
    for (int item = static_cast<int>(blockIdx.x); item < shared.count;) {
        int next = 0;  // asked for now, needed at the end
        if (lane == 0) next = static_cast<int>(gridDim.x) + atomicAdd(params.next, 1);
        const TokenTile tile = shared.tile(params, item / params.row_blocks);
        const auto block = shared.rows(params, item);
        const int first = block.block * kTiles;
        const int tiles = min(kTiles, static_cast<int>(tiles_of(block.n)) - first);
        const int row_bytes = tile.count * 128;
        const bool brings = lane < C::kHalves + tiles;
        const int bytes = inputs ? row_bytes : tile_bytes;
        const std::uint32_t offset = static_cast<std::uint32_t>(
            inputs ? lane * half : C::kHalves * half + (lane - C::kHalves) * tile_bytes);
        const std::byte* from =
            inputs ? params.arranged + std::int64_t{tile.first} * params.stages * 128 +
                         lane * row_bytes
                   : (block.second ? p.second.weights : p.weights) + tile.group * p.matrix_bytes +
                         std::int64_t{first + lane - C::kHalves} * stages * tile_bytes;
        const int step = inputs ? C::kHalves * row_bytes : tile_bytes;
        for (int stage = 0; stage < stages; ++stage, from += step) {
            wait(shared.free(cursor.slot), cursor.parity ^ 1);
            if (lane == 0) {
                if (stage == 0) arranged_memory->items[cursor.slot] = item;
                arrive_expecting(
                    shared.full(cursor.slot),
                    static_cast<std::uint32_t>(C::kHalves * row_bytes + tiles * tile_bytes));
            }
            __syncwarp();
            if (brings)
                copy_bytes(shared.stage(params, cursor.slot) + offset, from,
                           static_cast<std::uint32_t>(bytes), shared.full(cursor.slot));
            cursor.advance(params);
        }
        item = __shfl_sync(~0u, next, 0);
    }
    if (lane != 0) return;
    wait(shared.free(cursor.slot), cursor.parity ^ 1);
    arranged_memory->items[cursor.slot] = -1;
    arrive(shared.full(cursor.slot));
}

// Sums of a warpgroup whose first output is `first`: sums 4j + 2h + i of a lane are token 8j +
// 2t + i and output g + 8h of the warp's 16.
template <int kTokens, int kSums>
__device__ __forceinline__ void store_arranged_item(const float (&sums)[kSums],
                                                    const ArrangedParams& params,
                                                    const TokenTile& tile, bool second, int first,
                                                    int group) {
    const Problem& p = params.problem;
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (second)
        store_all<kTokens>(sums, tile, first + warp * 16 + lane / 4,
                           {p.second.y_stride, 0, p.second.n}, p.second.y,
                           [](float* to, float sum) { *to = sum; });
    else if (params.y.data != nullptr)
        store_gated_arranged<kTokens>(sums, p, params.y, tile, first / kArrangedOutputs, group,
                                      arranged_memory->sums[group].gated);
    else if (p.gated)
        store_gated_pieces<kTokens>(sums, p, tile, (first + warp * 16) / 2,
                                    arranged_memory->sums[group].gated.sums[warp]);
    else if (p.query.cos_sin != nullptr)
        store_queries<kTokens>(sums, p, tile, first + warp * 16);
    else
        store_sums<kTokens>(sums, p, tile, first + warp * 16 + lane / 4);
}

}  // namespace espalier::linalg::cuda
