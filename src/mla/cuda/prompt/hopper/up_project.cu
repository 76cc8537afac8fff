// SPDX-License-Identifier: Apache-2.0
// Keys and values of a group of heads from gathered latents: projected[head, key, output] =
// latent[key] · weight[output], one f32 chain over the 512 columns, times the key's scale, rounded
// to bf16. An element is the same whatever else is computed with it.
//
// A tile is 128 keys × 256 outputs. A copying warp brings 64 columns at a time; two warpgroups have
// 64 keys each and store their tile through shared memory.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/prompt/decompressed_params.hpp"

namespace espalier::mla::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kTileBlocks = 4;  // of 64 outputs
constexpr int kTileOutputs = kTileBlocks * 64;
constexpr int kSteps = static_cast<int>(kLatent) / 64;
constexpr int kThreads = 3 * 128;
constexpr int kCopyRegisters = 40;
constexpr int kMultiplyRegisters = 232;
constexpr int kStartRegisters = 168;

struct Shared {
    alignas(1024) std::byte latents[kStages][kProjectKeys * 128];
    alignas(1024) std::byte weights[kStages][kTileOutputs * 128];
    alignas(1024) std::byte tile[2][kTileBlocks][64 * 128];  // of a warpgroup, to be stored
    Barrier full[kStages];
    Barrier free[kStages];
};
static_assert(sizeof(Shared) <= 232448, "227 KB is what a block may have");

// A tile's place; all warps of a block go through the same ones.
struct Tile {
    std::int32_t key = 0;    // of scratch
    std::int32_t block = 0;  // of the group's outputs
};

// Calls work(tile) for the block's tiles: keys side by side, since they read the same weights.
template <typename Work>
__device__ void for_each_tile(const ProjectParams& p, const Work& work) {
    const int key_tiles = p.group.key_stride / kProjectKeys;
    const int columns = (p.block_count + kTileBlocks - 1) / kTileBlocks;
    const int items = key_tiles * p.group.count * columns;
    for (int item = static_cast<int>(blockIdx.x); item < items;
         item += static_cast<int>(gridDim.x)) {
        const int row = item / key_tiles % p.group.count;
        const int first = item % key_tiles * kProjectKeys;
        const std::int32_t keys = prompt_row(p.group.rows, p.group.first + row).keys;
        if (first >= padded_keys(keys, p.group.tile)) continue;
        work(
            Tile{row * p.group.key_stride + first, item / key_tiles / p.group.count * kTileBlocks});
    }
}

struct Ring {
    int index = 0;
    std::uint32_t phase = 0;
    __device__ void advance() {
        if (++index < kStages) return;
        index = 0;
        phase ^= 1;
    }
};

__device__ void copy(const ProjectParams& p, Shared& shared) {
    Ring ring;
    for_each_tile(p, [&](const Tile& tile) {
        for (int step = 0; step < kSteps; ++step) {
            wait(&shared.free[ring.index], ring.phase ^ 1);
            Barrier* full = &shared.full[ring.index];
            arrive_expecting(full, sizeof(shared.latents[0]) + sizeof(shared.weights[0]));
            copy_tensor_3d(shared.latents[ring.index], &p.latent_map, full, step * 64, tile.key, 0,
                           kEvictNormal);
            copy_tensor_3d(shared.weights[ring.index], &p.weight_map, full, step * 64,
                           (p.first_block + tile.block) * 64, 0, kEvictLast);
            ring.advance();
        }
    });
}

// 64 keys of a tile.
class Multiplier {
  public:
    __device__ Multiplier(const ProjectParams& p, Shared& shared, int group)
        : p_(p),
          shared_(shared),
          group_(group),
          warp_(static_cast<int>(threadIdx.x) / 32 % 4),
          lane_(static_cast<int>(threadIdx.x) % 32) {}

    __device__ void run() {
        for_each_tile(p_, [&](const Tile& tile) {
            float sums[2][64];
            multiply(sums);
            store(tile, sums);
        });
        if (issues()) wait_for_stores();
    }

  private:
    __device__ bool issues() const { return threadIdx.x % 128 == 0; }

    __device__ void multiply(float (&sums)[2][64]) {
        int previous = 0;
#pragma unroll 1
        for (int step = 0; step < kSteps; ++step) {
            wait(&shared_.full[ring_.index], ring_.phase);
            const std::uint64_t left =
                descriptor(shared_address(shared_.latents[ring_.index]) + group_ * 64 * 128);
            const std::uint64_t right = descriptor(shared_address(shared_.weights[ring_.index]));
            hold(sums[0]);
            hold(sums[1]);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int piece = 0; piece < 2; ++piece)
                    wgmma_shared<128>(sums[piece], left + (k * 32 >> 4),
                                      right + ((piece * 128 * 128 + k * 32) >> 4),
                                      step > 0 || k > 0);
            wgmma_commit();
            if (step > 0) {
                wgmma_wait<1>();
                arrive_as_warp(&shared_.free[previous]);
            }
            previous = ring_.index;
            ring_.advance();
        }
        wgmma_wait<0>();
        hold(sums[0]);
        hold(sums[1]);
        arrive_as_warp(&shared_.free[previous]);
    }

    // Held within bf16's finite range: a hidden key whose value overflowed would otherwise turn its
    // probability 0 into NaN.
    __device__ static std::uint32_t rounded(float low, float high) {
        constexpr float kMost = 0x1.fep127f;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(fminf(fmaxf(low, -kMost), kMost),
                                                          fminf(fmaxf(high, -kMost), kMost));
        return reinterpret_cast<const std::uint32_t&>(pair);
    }

    __device__ void store(const Tile& tile, float (&sums)[2][64]) {
        const int key = tile.key + group_ * 64 + warp_ * 16 + lane_ / 4;
        const float scale[2] = {p_.scale == nullptr ? p_.unit : p_.scale[key],
                                p_.scale == nullptr ? p_.unit : p_.scale[key + 8]};
        if (issues()) wait_for_store_sources();
        named_barrier(1 + group_, 128);  // the last tile has left
        // This lane's row of the four matrices of eight rows and columns.
        const int row = warp_ * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
#pragma unroll
        for (int pair = 0; pair < 16; ++pair) {
            const float* from = &sums[pair / 8][pair % 8 * 8];
            const int chunk = pair % 4 * 2 + lane_ / 16;
            store_matrices(shared_address(shared_.tile[group_][pair / 4]) +
                               static_cast<std::uint32_t>(row * 128 + (chunk ^ row % 8) * 16),
                           rounded(from[0] * scale[0], from[1] * scale[0]),
                           rounded(from[2] * scale[1], from[3] * scale[1]),
                           rounded(from[4] * scale[0], from[5] * scale[0]),
                           rounded(from[6] * scale[1], from[7] * scale[1]));
        }
        fence_async_proxy();
        named_barrier(1 + group_, 128);
        if (!issues()) return;
        for (int i = 0; i < kTileBlocks && tile.block + i < p_.block_count; ++i) {
            const int block = tile.block + i;
            store_tensor_3d(&p_.projected_map, shared_.tile[group_][i], block % p_.head_blocks * 64,
                            tile.key + group_ * 64, block / p_.head_blocks);
        }
        commit_stores();
    }

    const ProjectParams& p_;
    Shared& shared_;
    Ring ring_;
    int group_, warp_, lane_;
};

__global__ void __launch_bounds__(kThreads, 1)
    project_kernel(const __grid_constant__ ProjectParams p) {
    extern __shared__ __align__(1024) std::byte memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            init_barrier(&shared.full[stage], 1);
            init_barrier(&shared.free[stage], 8 * kArrivalsOfWarp);
        }
        fence_barrier_init();
        prefetch_map(&p.latent_map);
        prefetch_map(&p.weight_map);
    }
    wait_for_previous_kernel();
    __syncthreads();
    let_next_kernel_start();
    // The compiler must know that a warp has one role.
    const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (role == 0) {
        set_registers<kStartRegisters, kCopyRegisters>();
        if (threadIdx.x == 0) copy(p, shared);
    } else {
        set_registers<kStartRegisters, kMultiplyRegisters>();
        Multiplier(p, shared, role - 1).run();
    }
}

}  // namespace

cudaError_t launch_projection(const ProjectParams& p, int multiprocessors, cudaStream_t stream) {
    const std::int64_t columns = (p.block_count + kTileBlocks - 1) / kTileBlocks;
    const std::int64_t items = p.group.key_stride / kProjectKeys * p.group.count * columns;
    return try_launch(project_kernel,
                      {.grid = grid_of(std::min<std::int64_t>(items, multiprocessors)),
                       .threads = kThreads,
                       .shared_bytes = sizeof(Shared),
                       .limit = SharedLimit::raised},
                      stream, p);
}

}  // namespace espalier::mla::cuda
