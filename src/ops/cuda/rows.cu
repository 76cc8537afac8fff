// SPDX-License-Identifier: Apache-2.0
// Sums and norms of rows. A block for a row: thread i has columns i, i + 256, …, adds their squares
// in this order, then the threads' sums go through a fixed tree. So a row's bits depend on nothing
// but the row, and whatever is added to it first is added column by column, as if by itself.
#include <cmath>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "ops/cuda/addends.cuh"
#include "ops/cuda/block.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/prompt_rows.hpp"
#include "ops/cuda/spread_rows.hpp"

namespace espalier::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Terms added to columns d, d + 256, … (those below cols). Ascending expert ids, the shared
// expert last.
template <int kColumns>
__device__ void find_sums(const Addends& add, const Choices& choices, std::int64_t t,
                          std::int64_t d, std::int64_t cols, float (&sum)[kColumns]) {
    constexpr int kAtOnce = kColumns > 8 ? 2 : kTogether;
    const auto load = [&](const float* row, float(&to)[kColumns]) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
            to[i] = d + i * kThreads < cols ? row[d + i * kThreads] : 0.0f;
    };
    if (add.partial.data != nullptr) return load(row_of(add.partial, t), sum);
    float shared[kColumns];
    if (add.shared.data != nullptr) load(row_of(add.shared, t), shared);
#pragma unroll
    for (float& one : sum) one = 0.0f;
    for (std::int32_t first = 0; first < add.top_k; first += kAtOnce) {
        float value[kAtOnce][kColumns];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (choices.pair[first + i] >= 0)
                load(row_of(add.expert_out, choices.pair[first + i]), value[i]);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (choices.pair[first + i] >= 0)
#pragma unroll
                for (int c = 0; c < kColumns; ++c)
                    sum[c] += choices.weight[first + i] * value[i][c];
    }
    if (add.shared.data != nullptr)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum[c] += shared[c];
}

// The norm of row t of x, after what is to be added has been. Columns of the first
// kHeld rounds stay in registers; longer rows read the others again.
template <int kHeld, bool kAdds>
__global__ void __launch_bounds__(kThreads) norm_kernel(Addends add, Matrix x, RowNorm norm) {
    __shared__ float sums[kThreads / 32];
    __shared__ Choices choices;
    const std::int64_t t = blockIdx.x;
    const std::int64_t first = threadIdx.x;
    const auto each = [&](const auto& use) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
            if (first + i * kThreads < x.cols) use(i, first + i * kThreads);
    };
    let_next_kernel_start();
    float weight[kHeld], held[kHeld];
    each([&](int i, std::int64_t d) { weight[i] = __ldg(norm.weight + d); });
    if (kAdds && add.plan_ahead) load_choices(add, t, choices);
    wait_for_previous_kernel();
    float* row = row_of(x, t);
    each([&](int i, std::int64_t d) { held[i] = row[d]; });
    if constexpr (kAdds) {
        if (add.top_k > 0 && !add.plan_ahead) load_choices(add, t, choices);
        float added[kHeld];
        find_sums(add, choices, t, first, x.cols, added);
        each([&](int i, std::int64_t d) { row[d] = held[i] = held[i] + added[i]; });
    }
    float squares = 0.0f;
    each([&](int i, std::int64_t) { squares += held[i] * held[i]; });
    for (std::int64_t d = first + kHeld * kThreads; d < x.cols; d += kThreads) {
        if constexpr (kAdds) {
            float added[1];
            find_sums(add, choices, t, d, x.cols, added);
            row[d] += added[0];
        }
        squares += row[d] * row[d];
    }
    squares = block_sum<kThreads>(squares, sums);
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(x.cols) + norm.epsilon);
    const auto put = [&](std::int64_t d, float value) {
        store(norm.out, t, d, value);
        if (norm.exact.data != nullptr) store(norm.exact, t, d, value);
    };
    each([&](int i, std::int64_t d) { put(d, (held[i] * factor) * weight[i]); });
    for (std::int64_t d = first + kHeld * kThreads; d < x.cols; d += kThreads)
        put(d, (row[d] * factor) * norm.weight[d]);
}

template <bool kAdds>
void launch_norm(const char* what, Stream stream, const Addends& add, const Matrix& x,
                 const RowNorm& norm) {
    if (x.rows == 0 || spread_norm(what, stream, add, x, norm)) return;
    const auto rows = static_cast<unsigned>(x.rows);
    if (x.cols <= 8 * kThreads)
        launch(what, norm_kernel<8, kAdds>, rows, kThreads, stream, add, x, norm);
    else
        launch(what, norm_kernel<28, kAdds>, rows, kThreads, stream, add, x, norm);
}

}  // namespace

void rms_norm(Stream stream, const Matrix& x, const RowNorm& norm) {
    launch_norm<false>("rms_norm", stream, {}, x, norm);
}

void reduce_add_norm(Stream stream, const Matrix& partial, const Matrix& residual,
                     const RowNorm& norm) {
    if (prompt_reduce_add_norm(stream, partial, residual, norm)) return;
    Addends add{};
    add.partial = partial;
    launch_norm<true>("reduce_add_norm", stream, add, residual, norm);
}

void combine_add_norm(Stream stream, const Matrix& expert_out, std::int32_t top_k,
                      const ExpertPlan& plan, const Matrix& shared, const Matrix& residual,
                      const RowNorm& norm, const LaunchGrant& grant) {
    if (prompt_combine_add_norm(stream, expert_out, top_k, plan, shared, residual, norm)) return;
    Addends add{};
    add.expert_out = expert_out;
    add.plan = plan;
    add.top_k = top_k;
    add.shared = shared;
    add.plan_ahead = grant.ahead;
    launch_norm<true>("combine_add_norm", stream, add, residual, norm);
}

}  // namespace espalier::ops::cuda
