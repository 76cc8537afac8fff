// SPDX-License-Identifier: Apache-2.0
// Products of prompts, bf16: both operands of the tensor cores lie in shared memory, where bulk
// copies bring them as they are, weights by fragments.hpp and x by arranged.hpp. One warp asks for
// them; no other instruction moves an operand.
//
// A tile is 128 outputs × up to 192 tokens. One block per multiprocessor takes tiles as it gets
// through them: experts' last tiles are smaller, and cost less. Two multiplying warpgroups have 64
// outputs each and two sums per output: the segment's, which the tensor cores add to, and that of
// the segments before. Sums and bits are those of many_tokens.cuh.
#pragma once

#include "linalg/cuda/arrange.cuh"
#include "linalg/cuda/arranged_store.cuh"
#include "linalg/cuda/many_store.cuh"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/wgmma.cuh"

namespace espalier::linalg::cuda {

struct ArrangedParams {
    Problem problem;
    Segments segments;
    const std::byte* arranged = nullptr;
    int* next = nullptr;  // tile that nobody has begun
    int row_blocks = 0;
    int tile_tokens = 0;
    int token_tiles = 0;  // of experts: at most
    int stages = 0;       // of 64 inputs
    ArrangedY y = {};     // gated products alone
};

struct ArrangedConfig {
    static constexpr int kOutputs = 128;
    static constexpr int kTokens = kArrangedTokens;
    static constexpr int kInputBytes = kTokens * 128;
    static constexpr int kTileBytes = code_bytes(WeightCode::bf16);  // 16 outputs of a stage
    static constexpr int kStageBytes = kInputBytes + kOutputs / 16 * kTileBytes;
    static constexpr int kStages = 5;
    static constexpr int kThreads = 384;
    // Of 168 at entry: three warpgroups share 504.
    static constexpr int kProducerRegisters = 24;
    static constexpr int kMultiplierRegisters = 240;
};

// A block's memory; swizzles begin at multiples of 1,024.
struct alignas(1024) ArrangedMemory {
    using C = ArrangedConfig;
    std::byte stages[C::kStages][C::kStageBytes];
    std::uint64_t full[C::kStages];
    std::uint64_t free[C::kStages];
    float gated[8][kGatedFloats];       // warps'
    std::byte turned[2][kTurnedBytes];  // warpgroups'
    int items[C::kStages];  // of a stage, the tile whose first it is; -1: there is none left
    int listed;             // experts' tiles, which lie behind

    static constexpr std::size_t bytes(std::size_t tiles) {
        return sizeof(ArrangedMemory) + tiles * sizeof(TokenTile);
    }
};
extern __shared__ ArrangedMemory arranged_memory[];

struct ArrangedShared {
    using C = ArrangedConfig;

    int count;  // of items

    __device__ static std::uint32_t stage(int slot) {
        return shared_address(arranged_memory->stages[0]) +
               static_cast<std::uint32_t>(slot * C::kStageBytes);
    }
    __device__ static std::uint32_t full(int slot) {
        return shared_address(arranged_memory->full) + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ static std::uint32_t free(int slot) {
        return shared_address(arranged_memory->free) + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ static TokenTile* tiles() {
        return reinterpret_cast<TokenTile*>(arranged_memory + 1);
    }
    __device__ static TokenTile tile(const ArrangedParams& params, int index) {
        return params.problem.indptr != nullptr
                   ? tiles()[index]
                   : dense_tile(params.problem, params.tile_tokens, index);
    }
};

struct ArrangedCursor {
    int slot = 0;
    std::uint32_t parity = 0;
    __device__ void advance() {
        if (++slot < ArrangedConfig::kStages) return;
        slot = 0;
        parity ^= 1;
    }
};

// One warp: lane 0 asks for x, the others for 16 outputs each.
__device__ inline void bring_stages(const ArrangedParams& params, const ArrangedShared& shared) {
    using C = ArrangedConfig;
    constexpr int kTiles = C::kOutputs / 16;
    const Problem& p = params.problem;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ArrangedCursor cursor;
    for (int item = static_cast<int>(blockIdx.x); item < shared.count;) {
        int next = 0;  // asked for now, needed at the end
        if (lane == 0) next = static_cast<int>(gridDim.x) + atomicAdd(params.next, 1);
        const TokenTile tile = shared.tile(params, item / params.row_blocks);
        const int first = item % params.row_blocks * kTiles;
        const int tiles = min(kTiles, static_cast<int>(tiles_of(p.n)) - first);
        const int rows = padded_rows(tile);
        const bool brings = lane <= tiles;
        const std::uint32_t bytes =
            static_cast<std::uint32_t>(lane == 0 ? rows * 128 : C::kTileBytes);
        const std::uint32_t offset =
            static_cast<std::uint32_t>(lane == 0 ? 0 : C::kInputBytes + (lane - 1) * C::kTileBytes);
        const std::byte* from =
            lane == 0 ? params.arranged + arranged_row(tile) * params.stages * 128
                      : p.weights + tile.group * p.matrix_bytes +
                            std::int64_t{first + lane - 1} * params.stages * C::kTileBytes;
        for (int stage = 0; stage < params.stages; ++stage, from += bytes) {
            wait(shared.free(cursor.slot), cursor.parity ^ 1);
            if (lane == 0) {
                if (stage == 0) arranged_memory->items[cursor.slot] = item;
                arrive_expecting(shared.full(cursor.slot),
                                 static_cast<std::uint32_t>(rows * 128 + tiles * C::kTileBytes));
            }
            __syncwarp();
            if (brings)
                copy_bytes(shared.stage(cursor.slot) + offset, from, bytes,
                           shared.full(cursor.slot));
            cursor.advance();
        }
        item = __shfl_sync(~0u, next, 0);
    }
    if (lane != 0) return;
    wait(shared.free(cursor.slot), cursor.parity ^ 1);
    arranged_memory->items[cursor.slot] = -1;
    arrive(shared.full(cursor.slot));
}

class ArrangedMultiplier {
    using C = ArrangedConfig;

  public:
    __device__ ArrangedMultiplier(const ArrangedParams& params, const ArrangedShared& shared,
                                  int group)
        : params_(params), p_(params.problem), shared_(shared), group_(group) {}

    __device__ void run() {
        while (true) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            const int item = *static_cast<volatile int*>(arranged_memory->items + cursor_.slot);
            if (item < 0) return;
            const TokenTile tile = shared_.tile(params_, item / params_.row_blocks);
            const int first = item % params_.row_blocks * C::kOutputs + group_ * 64;
            multiply_and_store<C::kTokens>(tile, first);
        }
    }

  private:
    // By the smallest multiple of 32 tokens that the tile fits in.
    template <int kTokens>
    __device__ void multiply_and_store(const TokenTile& tile, int first) {
        if constexpr (kTokens > 32)
            if (tile.count <= kTokens - 32) return multiply_and_store<kTokens - 32>(tile, first);
        if (first >= p_.n) return pass_item();
        multiply_item<kTokens>();
        const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (params_.y.data != nullptr)
            store_gated_arranged<kTokens>(total_, p_, params_.y, tile, first / C::kOutputs, group_,
                                          arranged_memory->gated + group_ * 4,
                                          arranged_memory->turned[group_]);
        else if (p_.gated)
            store_gated_pieces<kTokens>(total_, p_, tile, (first + warp * 16) / 2,
                                        arranged_memory->gated[group_ * 4 + warp]);
        else
            store_sums<kTokens>(total_, p_, tile, first + warp * 16 + lane / 4);
    }

    // These outputs do not exist.
    __device__ void pass_item() {
        for (int stage = 0; stage < params_.stages; ++stage, cursor_.advance()) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            release(cursor_.slot);
        }
    }

    template <int kTokens>
    __device__ void multiply_item() {
        const int segment = 2 * params_.segments.chunks;
        // -0 + x has the bits of x. (With a first segment that is stored, not added, the compiler
        // moves every sum twice a segment, and 192 tokens have no registers for that.)
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) total_[i] = -0.0f;
        for (int first = 0; first < params_.stages; first += segment) {
            const int count = min(segment, params_.stages - first);
            int previous = 0;
            for (int stage = 0; stage < count; ++stage) {
                multiply_stage<kTokens>(stage > 0);
                wgmma_wait<1>();
                if (stage > 0) release(previous);
                previous = cursor_.slot;
                cursor_.advance();
            }
            wgmma_wait<0>();
            hold(block_);
            release(previous);
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) total_[i] = __fadd_rn(total_[i], block_[i]);
        }
    }

    template <int kTokens>
    __device__ void multiply_stage(bool add) {
        wait(shared_.full(cursor_.slot), cursor_.parity);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        const std::uint64_t right = swizzled_operand(base);
        const std::uint64_t left = matrices_operand(
            base + static_cast<std::uint32_t>(C::kInputBytes + group_ * 4 * C::kTileBytes));
        hold(block_);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            wgmma_shared<kTokens>(block_, left + static_cast<unsigned>(16 * i),
                                  right + static_cast<unsigned>(2 * i), add || i > 0);
        wgmma_commit();
    }

    __device__ void release(int slot) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(shared_.free(slot));
    }

    const ArrangedParams& params_;
    const Problem& p_;
    const ArrangedShared& shared_;
    ArrangedCursor cursor_;
    int group_;
    float block_[C::kTokens / 2];  // what the tensor cores add to: the segment's sums
    float total_[C::kTokens / 2];  // of the segments before
};

__global__ void __launch_bounds__(ArrangedConfig::kThreads, 1)
    arranged_kernel(const __grid_constant__ ArrangedParams params) {
    using C = ArrangedConfig;
    const Problem& p = params.problem;
    ArrangedShared shared;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < C::kStages; ++slot) {
            init_barrier(shared.full(slot), 1);
            init_barrier(shared.free(slot), 8);  // the multipliers'
        }
        fence_barrier_init();
    }
    // x was arranged by the kernel in front, behind everything before it.
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (params.y.next != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *params.y.next = 0;
    if (p.indptr != nullptr && threadIdx.x < 32) {
        const int count =
            list_expert_tiles(p, params.tile_tokens, shared.tiles(), params.token_tiles);
        if (threadIdx.x == 0) arranged_memory->listed = count;
    }
    __syncthreads();
    shared.count =
        (p.indptr != nullptr ? arranged_memory->listed : params.token_tiles) * params.row_blocks;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kProducerRegisters));
        if (threadIdx.x < 32) bring_stages(params, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kMultiplierRegisters));
        ArrangedMultiplier(params, shared, static_cast<int>(threadIdx.x) / 128 - 1).run();
    }
}

}  // namespace espalier::linalg::cuda
