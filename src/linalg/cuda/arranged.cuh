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
    int* next = nullptr;   // tile that nobody has begun
    int row_blocks = 0;    // of both products, where there is a second
    int first_blocks = 0;  // of the first
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
    GatedMemory gated[2];   // warpgroups'
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
        const ArrangedShared::Rows block = shared.rows(params, item);
        const int first = block.block * kTiles;
        const int tiles = min(kTiles, static_cast<int>(tiles_of(block.n)) - first);
        const int rows = padded_rows(tile);
        const bool brings = lane <= tiles;
        const std::uint32_t bytes =
            static_cast<std::uint32_t>(lane == 0 ? rows * 128 : C::kTileBytes);
        const std::uint32_t offset =
            static_cast<std::uint32_t>(lane == 0 ? 0 : C::kInputBytes + (lane - 1) * C::kTileBytes);
        const std::byte* from =
            lane == 0
                ? params.arranged + arranged_row(tile) * params.stages * 128
                : (block.second ? p.second.weights : p.weights) + tile.group * p.matrix_bytes +
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

    // A tile's sums are stored while the tensor cores have the next one's first stages: what they
    // add to is not what is stored.
    __device__ void run() {
        int stored = -1;  // the tile whose sums are to be stored
        while (true) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            const int item = *static_cast<volatile int*>(arranged_memory->items + cursor_.slot);
            const int lead = cursor_.slot;
            TokenTile tile{};
            if (item >= 0) tile = shared_.tile(params_, item / params_.row_blocks);
            lead_item(item >= 0);
            if (stored >= 0) store_item(stored);
            if (item < 0) break;
            const ArrangedShared::Rows rows = shared_.rows(params_, item);
            stored = first_output(rows) < rows.n ? item : -1;
            if (stored >= 0)
                multiply_item<C::kTokens>(tile, lead);
            else
                pass_item(lead);
        }
        wgmma_wait<0>();
    }

  private:
    static constexpr int kLead = 2;  // stages; no segment has fewer

    __device__ int first_output(const ArrangedShared::Rows& rows) const {
        return rows.block * C::kOutputs + group_ * 64;
    }

    __device__ void store_item(int item) {
        const TokenTile tile = shared_.tile(params_, item / params_.row_blocks);
        const ArrangedShared::Rows rows = shared_.rows(params_, item);
        const int first = first_output(rows);
        const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (rows.second)
            store_all<C::kTokens>(total_, tile, first + warp * 16 + lane / 4,
                                  {p_.second.y_stride, 0, p_.second.n}, p_.second.y,
                                  [](float* to, float sum) { *to = sum; });
        else if (params_.y.data != nullptr)
            store_gated_arranged<C::kTokens>(total_, p_, params_.y, tile, first / C::kOutputs,
                                             group_, arranged_memory->gated[group_]);
        else if (p_.gated)
            store_gated_pieces<C::kTokens>(total_, p_, tile, (first + warp * 16) / 2,
                                           arranged_memory->gated[group_].sums[warp]);
        else if (p_.query.cos_sin != nullptr)
            store_queries<C::kTokens>(total_, p_, tile, first + warp * 16);
        else
            store_sums<C::kTokens>(total_, p_, tile, first + warp * 16 + lane / 4);
    }

    // All columns, whichever the tile has: others are never stored. Without a tile the numbers are
    // what was left there, and nobody waits for them.
    __device__ void lead_item(bool there) {
#pragma unroll
        for (int stage = 0; stage < kLead; ++stage, cursor_.advance()) {
            if (stage > 0 && there) wait(shared_.full(cursor_.slot), cursor_.parity);
            multiply_stage<C::kTokens>(stage > 0);
        }
    }

    // These outputs do not exist.
    __device__ void pass_item(int lead) {
        wgmma_wait<0>();
        hold(block_);
        release(lead);
        release((lead + 1) % C::kStages);
        for (int stage = kLead; stage < params_.stages; ++stage, cursor_.advance()) {
            wait(shared_.full(cursor_.slot), cursor_.parity);
            release(cursor_.slot);
        }
    }

    // By the smallest multiple of 16 tokens that the tile fits in. lead: the slot of the first
    // stage.
    template <int kTokens>
    __device__ void multiply_item(const TokenTile& tile, int lead) {
        if constexpr (kTokens > 16)
            if (tile.count <= kTokens - 16) return multiply_item<kTokens - 16>(tile, lead);
        const int segment = 2 * params_.segments.chunks;
        // -0 + x has the bits of x. (With a first segment that is stored, not added, the compiler
        // moves every sum twice a segment, and 192 tokens have no registers for that.)
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) total_[i] = -0.0f;
        wgmma_wait<1>();
        release(lead);
        int previous = (lead + 1) % C::kStages;
        int stage = kLead;
        for (int first = 0; first < params_.stages; first += segment, stage = 0) {
            const int count = min(segment, params_.stages - first);
            for (; stage < count; ++stage) {
                wait(shared_.full(cursor_.slot), cursor_.parity);
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
