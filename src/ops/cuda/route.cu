// SPDX-License-Identifier: Apache-2.0
// The router's choice, a warp for a token (route_token.cuh). Then pairs find their places, expert
// by expert, tokens ascending. For few tokens one block does both; for many the places are a kernel
// of their own, with a block for each expert, and no order of blocks shows.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/route_token.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kMostWarps = 16;
constexpr int kPairThreads = 512;
constexpr std::int64_t kWarpsBytes = 44 * 1024;  // of shared memory for the warps' tokens

template <int kPer>
__global__ void route_tokens(RouteCall call) {
    begin_kernel();
    extern __shared__ __align__(16) std::byte warps[];
    const auto experts = call.rule.experts;
    const TokenMemory memory(warps + warp_id() * TokenMemory::bytes(experts), experts);
    const std::int64_t t = std::int64_t{blockIdx.x} * (blockDim.x / 32) + warp_id();
    if (t < call.logits.rows) TokenRouter<kPer>(call, memory).run(t, false);
}

template <int kPer>
__global__ void __launch_bounds__(kMostWarps * 32) route_few(RouteCall call) {
    begin_kernel();
    extern __shared__ __align__(16) std::byte warps[];
    route_and_place<kPer>(call, warps);
}

// A block for each expert, a warp for each part of the choices: it counts the expert's in front of
// its part, then places its own, and waits for the others once.
__global__ void place_pairs(std::int64_t choices, std::int32_t top_k, std::int32_t experts,
                            ExpertPlan plan) {
    begin_kernel();
    constexpr int kAtOnce = 8;  // loads of a lane that are on their way together
    __shared__ std::int32_t sums[kPairThreads / 32];
    __shared__ std::int32_t found[kPairThreads / 32];
    const auto expert = static_cast<std::int32_t>(blockIdx.x);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::int64_t part = (choices + kPairThreads - 1) / kPairThreads * 32;
    const std::int64_t begin = warp * part, end = min(choices, begin + part);
    std::int32_t chosen[kAtOnce];
    const auto load = [&](std::int64_t first) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const std::int64_t at = first + i * 32 + lane;
            chosen[i] = at < end ? plan.expert[at] : -1;
        }
    };
    std::int32_t before = 0, own = 0;
    for (std::int64_t first = begin; first < end; first += kAtOnce * 32) {
        load(first);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            before += chosen[i] >= 0 && chosen[i] < expert ? 1 : 0;
            own += chosen[i] == expert ? 1 : 0;
        }
    }
    own = __reduce_add_sync(kAllLanes, own);
    if (lane == 0) found[warp] = own;
    std::int32_t next = block_sum<kPairThreads>(before, sums);
    __syncthreads();
    if (threadIdx.x == 0) plan.indptr[expert] = next;
    std::int32_t after = next;
    for (unsigned w = 0; w < kPairThreads / 32; ++w) {
        if (w < warp) next += found[w];
        after += found[w];
    }
    if (threadIdx.x == 0 && expert + 1 == experts) plan.indptr[experts] = after;
    for (std::int64_t first = begin; first < end; first += kAtOnce * 32) {
        load(first);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const unsigned lanes = __ballot_sync(kAllLanes, chosen[i] == expert);
            const std::int32_t pair = next + __popc(lanes & ((1u << lane) - 1));
            if (chosen[i] == expert) {
                const std::int64_t at = first + i * 32 + lane;
                plan.source_token[pair] = static_cast<std::int32_t>(at / top_k);
                plan.pair_of[at] = pair;
            }
            next += __popc(lanes);
        }
    }
}

}  // namespace

void route(Stream stream, const Matrix& logits, const float* bias, const RouterRule& rule,
           const std::int32_t* row_of, const ExpertPlan& plan) {
    const std::int64_t bytes = TokenMemory::bytes(rule.experts);
    static_assert(2 * TokenMemory::bytes(kMaxExperts) <= kWarpsBytes);
    const std::int64_t choices = logits.rows * rule.top_k;
    const RouteCall call{logits, bias, rule, row_of, plan};
    if (choices <= kFewChoices) {
        const std::int64_t warps = std::min<std::int64_t>(kMostWarps, kWarpsBytes / bytes);
        return with_lane_experts<kMaxExperts>(rule.experts, [&](auto per) {
            launch("route", route_few<per.value>, 1u, static_cast<int>(32 * warps),
                   SharedBytes{static_cast<std::size_t>(warps * bytes)}, stream, call);
        });
    }
    const std::int64_t warps = std::min<std::int64_t>(4, kWarpsBytes / bytes);
    with_lane_experts<kMaxExperts>(rule.experts, [&](auto per) {
        launch("route", route_tokens<per.value>,
               static_cast<unsigned>((logits.rows + warps - 1) / warps),
               static_cast<int>(32 * warps), SharedBytes{static_cast<std::size_t>(warps * bytes)},
               stream, call);
    });
    launch("the places of pairs", place_pairs, static_cast<unsigned>(rule.experts), kPairThreads,
           stream, choices, rule.top_k, rule.experts, plan);
}

}  // namespace espalier::ops::cuda
