// SPDX-License-Identifier: Apache-2.0
// The absorbed kernel's entry and its launch, instantiated once per format and width in files of
// their own (they compile side by side).
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "mla/cuda/absorbed/hopper/fp8_output_role.cuh"
#include "mla/cuda/absorbed/hopper/fp8_score_role.cuh"
#include "mla/cuda/absorbed/hopper/invariant_copy.cuh"
#include "mla/cuda/absorbed/hopper/merge.cuh"
#include "mla/cuda/absorbed/hopper/output_role.cuh"
#include "mla/cuda/absorbed/hopper/score_role.cuh"

namespace espalier::mla::cuda {

__device__ inline void init_warps(Barrier* barrier, int warps) {
    init_barrier(barrier, warps * kArrivalsOfWarp);
}

template <KvFormat kFormat>
__device__ inline void init_barriers(SharedLayout<kFormat>& shared) {
    using T = Traits<kFormat>;
    for (int stage = 0; stage < T::kStages; ++stage) {
        init_warps(&shared.keys_full[stage], 1);
        init_warps(&shared.keys_free[stage], 8);
    }
    init_barrier(&shared.query_full, 1);
    init_warps(&shared.query_free, 4);
    for (int i = 0; i < T::kScorers; ++i) {
        init_warps(&shared.weights_full[i], 4);
        init_warps(&shared.weights_free[i], 8);
    }
    init_warps(&shared.scorers, 4 * T::kScorers);
    init_warps(&shared.final_full, 4 * T::kScorers);
    init_warps(&shared.final_free, 8);
    for (int i = 0; i < 2; ++i) {
        init_warps(&shared.item_full[i], 1);
        init_warps(&shared.item_free[i], 4 * T::kScorers + 8);
    }
    fence_barrier_init();
}

// Registers per thread, dealt by need: 512 threads start with 128 each, 640 with 96.
template <bool kFp8>
struct Registers {
    static constexpr int kCopy = kFp8 ? 48 : 80;
    static constexpr int kScore = kFp8 ? 104 : 96;
    static constexpr int kOutput = kFp8 ? 112 : 168;
    static constexpr int kStart = kFp8 ? 96 : 128;
    static_assert(kFp8 ? kCopy + 2 * kScore + 2 * kOutput <= 5 * kStart
                       : kCopy + kScore + 2 * kOutput <= 4 * kStart);
};

// kColumns: packed rows of an item, at most, that the kernel is made for.
// kOneToken: invariant, with rows of one token at most, none with a dense mask, on one rank.
template <KvFormat kFormat, int kColumns, bool kInvariant, bool kOneToken>
__global__ void __launch_bounds__(Traits<kFormat>::kThreads, 1)
    absorbed_kernel(const __grid_constant__ AbsorbedParams p) {
    extern __shared__ __align__(1024) std::byte memory[];
    auto& shared = *reinterpret_cast<SharedLayout<kFormat>*>(memory);
    using T = Traits<kFormat>;
    using R = Registers<T::kFp8>;
    // The copying warp reads its plan while another one prepares the barriers.
    if (threadIdx.x == 32) {
        init_barriers(shared);
        prefetch_map(&p.key_map);
        prefetch_map(T::kFp8 ? &p.rope_map : &p.query_map);
    }
    const bool early = kInvariant && p.early_keys;
    if (early)
        let_next_kernel_start();
    else
        wait_for_previous_kernel();
    if (threadIdx.x < 32) {
        if (early) see_settled_memory();
        look_ahead(p);
    }
    __syncthreads();
    if (!early) let_next_kernel_start();
    // The compiler must know that a warp has one role.
    const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (role == 0) {
        set_registers<R::kStart, R::kCopy>();
        if (threadIdx.x < 32) {
            if constexpr (kInvariant)
                InvariantCopier<kFormat, kOneToken>(p, shared, PartAhead(p)).run();
            else
                Copier<kFormat>(p, shared).run();
        }
    } else if (role <= T::kScorers) {
        set_registers<R::kStart, R::kScore>();
        if (early) wait_for_previous_kernel();
        if constexpr (T::kFp8)
            Fp8Scorer<kFormat, kColumns, kInvariant, kOneToken>(p, shared, role - 1).run();
        else
            Scorer<kFormat, kColumns, kInvariant, kOneToken>(p, shared).run();
        if (p.padding && role == 1)
            clear_padding(p, static_cast<long long>(blockIdx.x) * 128 + threadIdx.x % 128,
                          static_cast<long long>(gridDim.x) * 128);
    } else {
        set_registers<R::kStart, R::kOutput>();
        if (early) wait_for_previous_kernel();
        const auto output = [&] {
            if constexpr (T::kFp8)
                Fp8OutputHalf<kFormat, kColumns, kInvariant>(p, shared, role - 1 - T::kScorers)
                    .run();
            else
                OutputHalf<kFormat, kColumns, kInvariant>(p, shared, role - 2).run();
        };
        if constexpr (kInvariant) {
            output();
        } else {
            Merger<T::kRows> merger(p);
            output();
            // Nothing is on its way to the keys' place any more.
            static_assert(sizeof(MergePlaces) <= sizeof(shared.keys));
            merger.run(p, reinterpret_cast<MergePlaces&>(shared.keys));
        }
    }
}

template <KvFormat kFormat, int kColumns, bool kInvariant, bool kOneToken = false>
cudaError_t launch_kernel(const AbsorbedParams& p, cudaStream_t stream) {
    constexpr std::size_t kBytes = sizeof(SharedLayout<kFormat>);
    static_assert(kBytes <= 232448, "227 KB is what a block may have");
    // Cooperative: thread blocks wait for each other before they merge. Such a kernel begins when
    // all of its thread blocks have room, so where it is to begin early its caller sees to that.
    return try_launch(absorbed_kernel<kFormat, kColumns, kInvariant, kOneToken>,
                      {.grid = grid_of(std::int64_t{p.parts} * p.lanes),
                       .threads = Traits<kFormat>::kThreads,
                       .shared_bytes = kBytes,
                       .limit = SharedLimit::raised,
                       .cooperative = !p.early_keys},
                      stream, p);
}

template <KvFormat kFormat, int kColumns = Traits<kFormat>::kRows>
cudaError_t launch_format(const AbsorbedParams& p, cudaStream_t stream) {
    return p.invariant ? launch_kernel<kFormat, kColumns, true>(p, stream)
                       : launch_kernel<kFormat, kColumns, false>(p, stream);
}
// Rows of one token at most: as absorbed.cpp has found.
template <KvFormat kFormat, int kFew>
cudaError_t launch_one_token(const AbsorbedParams& p, cudaStream_t stream) {
    return p.query_rows <= kFew
               ? launch_kernel<kFormat, kFew, true, true>(p, stream)
               : launch_kernel<kFormat, Traits<kFormat>::kRows, true, true>(p, stream);
}
template <KvFormat kFormat>
cudaError_t launch_16_bit(const AbsorbedParams& p, cudaStream_t stream) {
    if (p.invariant && p.query_rows <= kFewRows)
        return launch_kernel<kFormat, kFewRows, true>(p, stream);
    return launch_format<kFormat>(p, stream);
}

}  // namespace espalier::mla::cuda
