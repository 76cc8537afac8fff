// SPDX-License-Identifier: Apache-2.0
// The router's choice (route_token.cuh), then pairs find their places, expert by expert, tokens
// ascending. Few tokens have a block each, and the block that comes last places them; for many the
// places are a kernel of their own, with a block for each expert, and no order of blocks shows.
#include <algorithm>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/route_token.cuh"
#include "ops/cuda/router_rows.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kFewThreads = 256;   // of a block that routes one token
constexpr int kManyThreads = 128;  // of one that routes as many as it has warps
constexpr int kPairThreads = 512;
static_assert(kFewThreads >= kFewChoices);

template <int kPer>
__global__ void __launch_bounds__(kManyThreads) route_many(RouteCall call) {
    begin_kernel();
    extern __shared__ __align__(16) std::byte memory[];
    const std::int64_t first = std::int64_t{blockIdx.x} * (kManyThreads / 32);
    route_tokens<kPer>(call, first, min(first + kManyThreads / 32, call.logits.rows), memory);
}

template <int kPer>
__global__ void __launch_bounds__(kFewThreads) route_few(RouteCall call, std::uint32_t* arrived) {
    begin_kernel();
    extern __shared__ __align__(16) std::byte memory[];
    __shared__ bool last;
    route_tokens<kPer>(call, blockIdx.x, std::int64_t{blockIdx.x} + 1, memory);
    if (gridDim.x == 1) return;
    if (threadIdx.x == 0) last = arrive(arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) place_choices(call, memory);
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
           const std::int32_t* row_of, const ExpertPlan& plan, std::uint32_t* arrived) {
    const std::int64_t choices = logits.rows * rule.top_k;
    const bool few = choices <= kFewChoices;
    const int threads = few ? kFewThreads : kManyThreads;
    const std::int64_t tokens = few ? 1 : threads / 32;  // of a block
    const auto blocks = static_cast<unsigned>((logits.rows + tokens - 1) / tokens);
    const LaunchShape shape{
        .grid = blocks,
        .threads = threads,
        .shared_bytes = static_cast<std::size_t>(routing_bytes(rule.experts, threads)),
        .limit = SharedLimit::whole};
    const RouteCall call{logits, bias, rule, row_of, plan};
    with_lane_experts<kMaxExperts>(rule.experts, [&](auto per) {
        if (few) {
            launch("route", route_few<per.value>, shape, stream, call, arrived);
        } else {
            launch("route", route_many<per.value>, shape, stream, call);
        }
    });
    if (few) return;
    launch("the places of pairs", place_pairs, static_cast<unsigned>(rule.experts), kPairThreads,
           stream, choices, rule.top_k, rule.experts, plan);
}

}  // namespace espalier::ops::cuda
