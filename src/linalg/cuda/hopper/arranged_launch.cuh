// SPDX-License-Identifier: Apache-2.0
// Products of prompts over arranged x: the kernel of a weight format, and launching it.
#pragma once

#include <type_traits>

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/kernel_order.cuh"
#include "linalg/cuda/hopper/arranged.cuh"
#include "linalg/cuda/hopper/arranged_codes.cuh"

namespace espalier::linalg::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    arranged_kernel(const __grid_constant__ ArrangedParams params) {
    const Problem& p = params.problem;
    ArrangedShared<C> shared;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < shared.slots(params); ++slot) {
            init_barrier(shared.full(slot), 1);
            init_barrier(shared.free(slot), 8 * kArrivalsOfWarp);  // the multipliers'
        }
        fence_barrier_init();
    }
    // x was arranged by the kernel in front, behind everything before it.
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (params.y.next != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *params.y.next = 0;
    if (p.indptr != nullptr && threadIdx.x < 32) {
        const int count =
            list_expert_tiles(p, params.tile_tokens, shared.tiles(params), params.token_tiles);
        if (threadIdx.x == 0) arranged_memory->listed = count;
    }
    __syncthreads();
    shared.count =
        (p.indptr != nullptr ? arranged_memory->listed : params.token_tiles) * params.row_blocks;
    if (threadIdx.x < 128) {
        keep_registers<C::kProducerRegisters>();
        if (threadIdx.x < 32) bring_stages(params, shared);
    } else {
        take_registers<C::kMultiplierRegisters>();
        using Multiplier = std::conditional_t<C::kCodes, CodesMultiplier<C>, ArrangedMultiplier>;
        Multiplier(params, shared, static_cast<int>(threadIdx.x) / 128 - 1).run();
    }
}

template <WeightCode kCode>
void multiply_arranged(Stream stream, const ArrangedParams& params, const LaunchShape& shape) {
    launch("a product", arranged_kernel<ArrangedConfig<kCode>>, shape, stream, params);
}

}  // namespace espalier::linalg::cuda
