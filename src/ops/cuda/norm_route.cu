// SPDX-License-Identifier: Apache-2.0
// From the end of attention to the experts' lists, for few tokens: residual += partial, its norm,
// the router's product and the choice are one kernel, because as three they wait for each other
// longer than they work.
//
// Every block adds and norms all tokens for itself, in the order of rows.cu, and multiplies them
// with the router's rows of its few experts, in the order of linalg/cuda/plain.cu: the bits are
// those of the three. The rows and the norm's weight are on their way before the kernel in front
// has ended. Then blocks count their arrivals, and the last one routes all tokens: no block waits
// for another. It also writes the residual, which nobody reads any more by then.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/route_token.cuh"
#include "ops/cuda/router_rows.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kThreads = 256;  // chains of a row's squares, too
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 128;
constexpr std::int64_t kMostTokens = 8;
constexpr std::int32_t kMostExperts = 512;
constexpr std::int64_t kMostRowBytes = 112 * 1024;  // of all tokens, in shared memory

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
    const std::int64_t routing = kWarps * TokenMemory::bytes(call.route.rule.experts);
    return static_cast<std::size_t>(4 * (call.residual.rows + 1) * cols +
                                    std::max(4 * call.block_experts * cols, routing));
}

// A thread has kChains neighbouring ones of a row's 256 chains of squares: chain i takes columns i,
// i + 256, …. So kChains tokens are added at once. kAtOnce: a chain's columns that are on their way
// together.
template <int kChains, int kAtOnce>
__device__ void add_row(const NormRouteCall& call, int t, float* sums, float* warp_sums) {
    using Part = Floats<kChains>;
    const int cols = static_cast<int>(call.residual.cols);
    const int first = static_cast<int>(threadIdx.x) % (kThreads / kChains) * kChains;
    const float* residual = row_of(call.residual, t);
    const float* partial = row_of(call.partial, t);
    float squares[kChains] = {};
    for (int base = first; base < cols; base += kAtOnce * kThreads) {
        Part part[2][kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int d = base + i * kThreads; d < cols) {
                part[0][i] = *reinterpret_cast<const Part*>(residual + d);
                part[1][i] = *reinterpret_cast<const Part*>(partial + d);
            }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int d = base + i * kThreads; d < cols) {
#pragma unroll
                for (int c = 0; c < kChains; ++c) {
                    float& sum = part[0][i].value[c];
                    sum += part[1][i].value[c];
                    squares[c] += sum * sum;
                }
                *reinterpret_cast<Part*>(sums + d) = part[0][i];
            }
    }
    // block_sum's tree: 32 chains, then the eight sums (factor_of).
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        float other[kChains];
#pragma unroll
        for (int c = 0; c < kChains; ++c)
            other[c] = step >= kChains ? __shfl_xor_sync(kAllLanes, squares[c], step / kChains)
                                       : squares[c ^ step];
#pragma unroll
        for (int c = 0; c < kChains; ++c) squares[c] += other[c];
    }
    if (first % 32 == 0) warp_sums[first / 32] = squares[0];
}

// What the row is multiplied with.
__device__ float factor_of(const float (&warp_sums)[kWarps], int cols, float epsilon) {
    float sum[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum[i] = warp_sums[i];
#pragma unroll
    for (int step = kWarps / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < step; ++i) sum[i] += sum[i + step];
    return 1.0f / sqrtf(sum[0] / static_cast<float>(cols) + epsilon);
}

// The warp's product of a normed row with a row of the router.
__device__ float multiply(const float* sums, const float* weight, const float* router, float factor,
                          int cols) {
    float sum = 0.0f;
#pragma unroll 8
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

// What every block has of all tokens.
struct Rows {
    const float* sums;    // [tokens, cols]
    const float* weight;  // [cols]: the norm's
    int tokens;
    int cols;
};

// The normed rows, of which every block writes a part; `threads` of its threads do.
__device__ void write_normed(const NormRouteCall& call, const Rows& rows,
                             const float (&warp_sums)[kMostTokens][kWarps], int thread,
                             int threads) {
    const int all = rows.tokens * rows.cols, blocks = static_cast<int>(gridDim.x);
    const int part = (all + blocks - 1) / blocks, begin = static_cast<int>(blockIdx.x) * part;
    for (int i = begin + thread; i < min(begin + part, all); i += threads) {
        const int t = i / rows.cols, d = i % rows.cols;
        const float factor = factor_of(warp_sums[t], rows.cols, call.norm.epsilon);
        const float value = (rows.sums[i] * factor) * rows.weight[d];
        store(call.norm.out, t, d, value);
        if (call.norm.exact.data != nullptr) store(call.norm.exact, t, d, value);
    }
}

__device__ void write_residual(const NormRouteCall& call, const Rows& rows, int thread,
                               int threads) {
    for (int i = 4 * thread; i < rows.tokens * rows.cols; i += 4 * threads)
        *reinterpret_cast<Floats<4>*>(row_of(call.residual, i / rows.cols) + i % rows.cols) =
            *reinterpret_cast<const Floats<4>*>(rows.sums + i);
}

template <int kChains, int kPer>
__global__ void __launch_bounds__(kThreads) norm_route_kernel(NormRouteCall call) {
    // Models of up to 64 experts have rows of about 2,048 columns, others of up to 7,168.
    constexpr int kAtOnce = kPer == 2 ? 8 : std::max(8, 28 / kChains);
    extern __shared__ __align__(16) float sums[];
    __shared__ float warp_sums[kMostTokens][kWarps];
    __shared__ bool last;
    const int tokens = kChains == 1 ? 1 : static_cast<int>(call.residual.rows);
    const int cols = static_cast<int>(call.residual.cols);
    float* weight = sums + tokens * cols;
    float* router = weight + cols;
    const int first = static_cast<int>(blockIdx.x) * call.block_experts;
    const int count = min(call.block_experts, call.route.rule.experts - first);
    let_next_kernel_start();
    ask_floats<kThreads>(router, call.router + std::int64_t{first} * cols, count * cols);
    ask_floats<kThreads>(weight, call.norm.weight, cols);
    if (call.route.bias != nullptr && threadIdx.x < count)  // for the last block
        asm volatile("prefetch.global.L2 [%0];" ::"l"(call.route.bias + first + threadIdx.x));
    wait_for_previous_kernel();
    for (int t = static_cast<int>(threadIdx.x) / (kThreads / kChains); t < tokens; t += kChains)
        add_row<kChains, kAtOnce>(call, t, sums + t * cols, warp_sums[t]);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    const Rows rows{sums, weight, tokens, cols};
    for (int i = warp_id(); i < count * tokens; i += kWarps) {
        const int e = i / tokens, t = i % tokens;
        const float logit = multiply(sums + t * cols, weight, router + e * cols,
                                     factor_of(warp_sums[t], cols, call.norm.epsilon), cols);
        if (lane_id() == 0) row_of(call.route.logits, t)[first + e] = logit;
    }
    __syncthreads();
    if (threadIdx.x == 0) last = arrive(call.arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (!last) return write_normed(call, rows, warp_sums, thread, kThreads);

    // Warps that have no token to route write the rows meanwhile.
    const int routing = tokens * 32;
    if (thread >= routing) {
        write_residual(call, rows, thread - routing, kThreads - routing);
        write_normed(call, rows, warp_sums, thread - routing, kThreads - routing);
    }
    route_and_place<kPer>(call.route, reinterpret_cast<std::byte*>(router));
    if (tokens < kWarps) return;
    write_residual(call, rows, thread, kThreads);
    write_normed(call, rows, warp_sums, thread, kThreads);
}

template <int kChains>
void launch_norm_route(Stream stream, const NormRouteCall& call) {
    const unsigned blocks = static_cast<unsigned>(
        (call.route.rule.experts + call.block_experts - 1) / call.block_experts);
    const SharedBytes shared{shared_bytes(call)};
    with_lane_experts<kMostExperts>(call.route.rule.experts, [&](auto per) {
        const auto kernel = norm_route_kernel<kChains, per.value>;
        allow_shared_memory("norm_route", kernel, shared);
        launch("norm_route", kernel, blocks, kThreads, shared, stream, call);
    });
}

}  // namespace

bool norm_route(Stream stream, const Matrix& partial, const Matrix& residual, const RowNorm& norm,
                const RouterCall& router, std::uint32_t* arrived) {
    const std::int64_t tokens = residual.rows, cols = residual.cols;
    if (tokens < 1 || tokens > kMostTokens || router.rule.experts > kMostExperts ||
        tokens * router.rule.top_k > kFewChoices || tokens * cols * 4 > kMostRowBytes ||
        !in_fours(partial) || !in_fours(residual) ||
        reinterpret_cast<std::uintptr_t>(norm.weight) % 16 != 0)
        return false;
    NormRouteCall call{
        .partial = partial,
        .residual = residual,
        .norm = norm,
        .router = reinterpret_cast<const float*>(router.w.data),
        .route = {router.logits, router.bias, router.rule, router.row_of, router.plan},
        .block_experts = (router.rule.experts + kMostBlocks - 1) / kMostBlocks,
        .arrived = arrived};
    constexpr std::size_t kMostSharedBytes = 224 * 1024;
    if (shared_bytes(call) > kMostSharedBytes) return false;
    if (tokens == 1)
        launch_norm_route<1>(stream, call);
    else if (tokens == 2)
        launch_norm_route<2>(stream, call);
    else
        launch_norm_route<4>(stream, call);
    return true;
}

}  // namespace espalier::ops::cuda
