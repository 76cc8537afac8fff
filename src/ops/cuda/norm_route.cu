// SPDX-License-Identifier: Apache-2.0
// From the end of attention to the experts' lists, for few tokens: residual += partial, its norm,
// the router's product and the choice are one kernel, because as three they wait for each other
// longer than they work.
//
// Every block adds and norms all tokens for itself, in the order of rows.cu, and multiplies them
// with the router's rows of its few experts, in the order of linalg/cuda/plain.cu: the bits are
// those of the three. The rows and the norm's weight are on their way before the kernel in front
// has ended. Then blocks count their arrivals, and the last one routes all tokens: no block waits
// for another. It also writes the residual, which no kernel reads any more by then.
#include <algorithm>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/block.cuh"
#include "ops/cuda/route_token.cuh"
#include "ops/cuda/router_rows.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kThreads = 256;  // chains of a row's squares, too
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 128;
constexpr std::int64_t kMostTokens = 8;
constexpr std::int32_t kMostExperts = 512;
// Limit for all tokens: every block adds them. With more, a norm apart and router_route are faster
// (v2-lite, eight tokens, 64 KB: a step of 5.22 ms, not 5.30; four, 32 KB: 3.72 and 3.73).
constexpr std::int64_t kMostRowBytes = 60 * 1024;

struct NormRouteCall {
    Matrix partial;
    Matrix residual;
    RowNorm norm;
    const float* router;  // [experts, columns]
    RouteCall route;
    std::int32_t block_experts;
    std::uint32_t* arrived;  // 0 between kernels
};

// Shared memory: [tokens][cols] sums, [cols] the norm's weight, [block_experts][cols] the router's.
// What routing takes lies where the router's rows have been.
std::size_t shared_bytes(const NormRouteCall& call) {
    const std::int64_t cols = call.residual.cols;
    const std::int64_t routing = routing_bytes(call.route.rule.experts, kThreads);
    return static_cast<std::size_t>(4 * (call.residual.rows + 1) * cols +
                                    std::max(4 * call.block_experts * cols, routing));
}

// Residual and partial of all tokens, whose rows lie one behind the other.
__device__ void add_rows(const NormRouteCall& call, int count, float* sums) {
    constexpr int kAtOnce = 8;  // loads of each that are on their way together
    const auto* residual = reinterpret_cast<const float*>(call.residual.data);
    const auto* partial = reinterpret_cast<const float*>(call.partial.data);
#pragma unroll 1
    for (int base = 4 * static_cast<int>(threadIdx.x); base < count;
         base += 4 * kAtOnce * kThreads) {
        Floats<4> part[2][kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int at = base + 4 * i * kThreads; at < count) {
                part[0][i] = *reinterpret_cast<const Floats<4>*>(residual + at);
                part[1][i] = *reinterpret_cast<const Floats<4>*>(partial + at);
            }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int at = base + 4 * i * kThreads; at < count) {
#pragma unroll
                for (int c = 0; c < 4; ++c) part[0][i].value[c] += part[1][i].value[c];
                *reinterpret_cast<Floats<4>*>(sums + at) = part[0][i];
            }
    }
}

// Sums of a row: block_sum's tree of the squares of 32 chains for each warp; chain i takes columns
// i, i + 256, …. The eight sums are factor_of's. kTokens are added at once.
template <int kTokens>
__device__ void sum_squares(const float* sums, int tokens, int cols,
                            float (&warp_sums)[kMostTokens][kWarps]) {
#pragma unroll 1
    for (int first = 0; first < tokens; first += kTokens) {
        float squares[kTokens] = {};
#pragma unroll 4
        for (int d = static_cast<int>(threadIdx.x); d < cols; d += kThreads)
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const float sum = sums[min(first + t, tokens - 1) * cols + d];
                squares[t] += sum * sum;
            }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
                squares[t] += __shfl_xor_sync(kAllLanes, squares[t], step);
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
            if (lane_id() == 0 && first + t < tokens) warp_sums[first + t][warp_id()] = squares[t];
    }
}

// Factor of the row.
__device__ float factor_of(const float (&warp_sums)[kWarps], int cols, float epsilon) {
    return 1.0f / sqrtf(sum_of_warps(warp_sums) / static_cast<float>(cols) + epsilon);
}

// The warp's product of a normed row with a row of the router.
__device__ float multiply(const float* sums, const float* weight, const float* router, float factor,
                          int cols) {
    float sum = 0.0f;
#pragma unroll 4
    for (int d = 4 * lane_id(); d < cols; d += 128) {
        const auto x = *reinterpret_cast<const Floats<4>*>(sums + d);
        const auto w = *reinterpret_cast<const Floats<4>*>(weight + d);
        const auto r = *reinterpret_cast<const Floats<4>*>(router + d);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = fmaf((x.value[i] * factor) * w.value[i], r.value[i], sum);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
}

// The normed rows, of which every block writes a part.
__device__ void write_normed(const NormRouteCall& call, const float* sums, const float* weight,
                             const float (&factors)[kMostTokens]) {
    const auto cols = static_cast<int>(call.residual.cols);
    const int all = static_cast<int>(call.residual.rows) * cols;
    const int blocks = static_cast<int>(gridDim.x), part = (all + blocks - 1) / blocks;
    const int begin = static_cast<int>(blockIdx.x) * part, end = min(begin + part, all);
#pragma unroll 1
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
        const int t = i / cols, d = i % cols;
        const float value = (sums[i] * factors[t]) * weight[d];
        store(call.norm.out, t, d, value);
        if (call.norm.exact.data != nullptr) store(call.norm.exact, t, d, value);
    }
}

template <int kTokens, int kPer>
__global__ void __launch_bounds__(kThreads) norm_route_kernel(NormRouteCall call) {
    extern __shared__ __align__(16) float sums[];
    __shared__ float warp_sums[kMostTokens][kWarps], factors[kMostTokens];
    __shared__ bool last;
    const int tokens = kTokens == 1 ? 1 : static_cast<int>(call.residual.rows);
    const int cols = static_cast<int>(call.residual.cols);
    const auto thread = static_cast<int>(threadIdx.x);
    float* weight = sums + tokens * cols;
    float* router = weight + cols;
    const int first = static_cast<int>(blockIdx.x) * call.block_experts;
    const int count = min(call.block_experts, call.route.rule.experts - first);
    let_next_kernel_start();
    ask_floats<kThreads>(router, call.router + std::int64_t{first} * cols, count * cols);
    ask_floats<kThreads>(weight, call.norm.weight, cols);
    if (call.route.bias != nullptr && thread < count)  // for the last block
        asm volatile("prefetch.global.L2 [%0];" ::"l"(call.route.bias + first + thread));
    wait_for_previous_kernel();
    add_rows(call, tokens * cols, sums);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    sum_squares<kTokens>(sums, tokens, cols, warp_sums);
    __syncthreads();
    if (thread < tokens) factors[thread] = factor_of(warp_sums[thread], cols, call.norm.epsilon);
    __syncthreads();
#pragma unroll 1
    for (int i = warp_id(); i < count * tokens; i += kWarps) {
        const int e = i / tokens, t = i % tokens;
        const float logit = multiply(sums + t * cols, weight, router + e * cols, factors[t], cols);
        if (lane_id() == 0) row_of(call.route.logits, t)[first + e] = logit;
    }
    __syncthreads();
    if (thread == 0) last = arrive(call.arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) {
        route_and_place<kPer>(call.route, reinterpret_cast<std::byte*>(router));
        auto* residual = reinterpret_cast<float*>(call.residual.data);
#pragma unroll 1
        for (int i = 4 * thread; i < tokens * cols; i += 4 * kThreads)
            *reinterpret_cast<Floats<4>*>(residual + i) =
                *reinterpret_cast<const Floats<4>*>(sums + i);
    }
    write_normed(call, sums, weight, factors);
}

template <int kTokens>
void launch_norm_route(Stream stream, const NormRouteCall& call) {
    const unsigned blocks = static_cast<unsigned>(
        (call.route.rule.experts + call.block_experts - 1) / call.block_experts);
    const LaunchShape shape{.grid = blocks,
                            .threads = kThreads,
                            .shared_bytes = shared_bytes(call),
                            .limit = SharedLimit::whole};
    with_lane_experts<kMostExperts>(call.route.rule.experts, [&](auto per) {
        launch("norm_route", norm_route_kernel<kTokens, per.value>, shape, stream, call);
    });
}

}  // namespace

bool norm_route(Stream stream, const Matrix& partial, const Matrix& residual, const RowNorm& norm,
                const RouterCall& router, std::uint32_t* arrived) {
    const std::int64_t tokens = residual.rows, cols = residual.cols;
    if (tokens < 1 || tokens > kMostTokens || router.rule.experts > kMostExperts ||
        tokens * router.rule.top_k > kFewChoices || tokens * cols * 4 > kMostRowBytes ||
        !in_fours(partial) || !in_fours(residual) || partial.stride != cols ||
        residual.stride != cols || reinterpret_cast<std::uintptr_t>(norm.weight) % 16 != 0)
        return false;
    NormRouteCall call{
        .partial = partial,
        .residual = residual,
        .norm = norm,
        .router = reinterpret_cast<const float*>(router.w.data),
        .route = {router.logits, router.bias, router.rule, router.row_of, router.plan},
        .block_experts = (router.rule.experts + kMostBlocks - 1) / kMostBlocks,
        .arrived = arrived};
    if (shared_bytes(call) > most_shared_bytes(stream)) return false;
    if (tokens == 1)
        launch_norm_route<1>(stream, call);
    else
        launch_norm_route<4>(stream, call);
    return true;
}

}  // namespace espalier::ops::cuda
