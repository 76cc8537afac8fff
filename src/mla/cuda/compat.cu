// SPDX-License-Identifier: Apache-2.0
// Builds the rows of a compatible decode call on the device: a block per (sequence, token).
#include "mla/compat.hpp"
#include "mla/cuda/launch.hpp"

namespace espalier::mla::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    build_rows_kernel(const __grid_constant__ CompatCall call, const CompatRows rows) {
    const auto sequence = static_cast<std::int32_t>(blockIdx.x) / call.q_len;
    const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % call.q_len;
    if (i == 0 && threadIdx.x == 0) build_sequence(call, rows, sequence);
    if (combines(call)) build_mask(call, rows, sequence, i, threadIdx.x, kThreads);
}

}  // namespace

Expected<void> build_compat_rows(OpContext& context, const CompatCall& call,
                                 const CompatRows& rows) {
    const auto tokens = static_cast<unsigned>(call.batch * call.q_len);  // below 2^31: checked
    context.order.forget();
    build_rows_kernel<<<tokens, kThreads, 0, stream_of(context)>>>(call, rows);
    return launched("the rows of a compatible decode call");
}

}  // namespace espalier::mla::cuda
