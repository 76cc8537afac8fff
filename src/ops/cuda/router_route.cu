// SPDX-License-Identifier: Apache-2.0
// The router's product and the choice of up to 16 tokens in one kernel, behind their norm: for more
// tokens than norm_route.cu has room for. A block has a few experts, whose rows of the router are
// on their way before the norm has ended; a warp multiplies a token with some of them, in the order
// of linalg/cuda/plain.cu. Then blocks count their arrivals, and the last one routes all tokens: no
// block waits for another.
#include <algorithm>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/route_token.cuh"
#include "ops/cuda/router_rows.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kMostBlocks = 64;
constexpr std::int32_t kMostExperts = 512;
// With more, route() has a block for each (v2-lite, 32 tokens: a step of 8.72 ms, not 8.86;
// 16: 7.23, not 7.12).
constexpr std::int64_t kMostTokens = 16;
// Every block reads all of x: with more, the product of its own is faster (v3, 32 tokens: a step of
// 10.84 ms, not 10.75).
constexpr std::int64_t kMostInputs = 64 * 1024;

struct RouterRouteCall {
    Matrix x;
    const float* router;  // [experts, columns]
    RouteCall route;
    std::int32_t block_experts;
    std::uint32_t* arrived;  // 0 between kernels
};

// Experts of a lane, kPer, say how many registers routing takes, and so how many warps there are.
constexpr int threads_of(int per) { return per <= 2 ? 1024 : 512; }

// Shared memory: the block's rows of the router, and where these have been what routing takes.
std::size_t shared_bytes(const RouterRouteCall& call, int threads) {
    const std::int64_t routing = routing_bytes(call.route.rule.experts, threads);
    return static_cast<std::size_t>(
        std::max(4 * std::int64_t{call.block_experts} * call.x.cols, routing));
}

// The warp's products of token t with kTogether of the block's rows, `count` of which there are.
template <int kTogether>
__device__ void multiply(const RouterRouteCall& call, int t, const float* rows, int first,
                         int count) {
    constexpr int kAtOnce = kTogether == 1 ? 8 : 14;  // loads of x on their way together
    const float* x = row_of(call.x, t);
    const int cols = static_cast<int>(call.x.cols);
    float sum[kTogether] = {};
    for (int base = 4 * lane_id(); base < cols; base += kAtOnce * 128) {
        Floats<4> part[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int d = base + i * 128; d < cols)
                part[i] = *reinterpret_cast<const Floats<4>*>(x + d);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int d = base + i * 128; d < cols)
#pragma unroll
                for (int e = 0; e < kTogether; ++e) {
                    if (e >= count) break;
                    const auto row = *reinterpret_cast<const Floats<4>*>(rows + e * cols + d);
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        sum[e] = fmaf(part[i].value[k], row.value[k], sum[e]);
                }
    }
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum[e] += __shfl_xor_sync(kAllLanes, sum[e], step);
        if (lane_id() == 0 && e < count) row_of(call.route.logits, t)[first + e] = sum[e];
    }
}

template <int kPer>
__global__ void __launch_bounds__(threads_of(kPer)) router_route_kernel(RouterRouteCall call) {
    constexpr int kThreads = threads_of(kPer);
    constexpr int kTogether = kPer <= 2 ? 1 : 4;
    extern __shared__ __align__(16) float rows[];
    __shared__ bool last;
    const int cols = static_cast<int>(call.x.cols);
    const int first = static_cast<int>(blockIdx.x) * call.block_experts;
    const int count = min(call.block_experts, call.route.rule.experts - first);
    ask_floats<kThreads>(rows, call.router + std::int64_t{first} * cols, count * cols);
    wait_for_previous_kernel();
    let_next_kernel_start();
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    const auto tokens = static_cast<int>(call.x.rows);
    const int parts = (count + kTogether - 1) / kTogether;
    for (int i = warp_id(); i < parts * tokens; i += kThreads / 32) {
        const int e = i / tokens * kTogether;
        multiply<kTogether>(call, i % tokens, rows + e * cols, first + e, count - e);
    }
    __syncthreads();
    if (threadIdx.x == 0) last = arrive(call.arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) route_and_place<kPer>(call.route, reinterpret_cast<std::byte*>(rows));
}

}  // namespace

bool router_route(Stream stream, const Matrix& x, const RouterCall& router,
                  std::uint32_t* arrived) {
    if (x.rows < 1 || x.rows > kMostTokens || router.rule.experts > kMostExperts ||
        x.rows * router.rule.top_k > kFewChoices || x.rows * x.cols > kMostInputs || !in_fours(x))
        return false;
    const RouterRouteCall call{
        .x = x,
        .router = reinterpret_cast<const float*>(router.w.data),
        .route = {router.logits, router.bias, router.rule, router.row_of, router.plan},
        .block_experts = (router.rule.experts + kMostBlocks - 1) / kMostBlocks,
        .arrived = arrived};
    const auto blocks =
        static_cast<unsigned>((router.rule.experts + call.block_experts - 1) / call.block_experts);
    bool fits = true;
    with_lane_experts<kMostExperts>(router.rule.experts, [&](auto per) {
        constexpr int kThreads = threads_of(per.value);
        const LaunchShape shape{.grid = blocks,
                                .threads = kThreads,
                                .shared_bytes = shared_bytes(call, kThreads),
                                .limit = SharedLimit::whole};
        fits = shape.shared_bytes <= most_shared_bytes(stream);
        if (!fits) return;
        launch("router_route", router_route_kernel<per.value>, shape, stream, call);
    });
    return fits;
}

}  // namespace espalier::ops::cuda
