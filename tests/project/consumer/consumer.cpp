// SPDX-License-Identifier: Apache-2.0
// A stranger's program: links the installed attention library and attends to three keys.
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/cpu_device.hpp"
#include "mla/contract.hpp"

int main() {
    using namespace espalier;
    CpuDevice device(1);
    auto kernels = mla::make_cpu_kernels(best_cpu_variant());
    Arena arena(*device.allocate(kernels->scratch_bytes(
        {.heads = 1, .rows = 1, .tokens = 1, .max_q_len = 1, .max_kv_len = 64})));
    OpContext context{device, arena};

    std::vector<float> page(64 * mla::kKey, 1.0f), query(mla::kKey, 0.0f), out(mla::kLatent, 0.0f);
    float lse = 0;
    const std::int32_t q_indptr[] = {0, 1}, kv_len[] = {3}, table[] = {0};
    const mla::MaskKind mask[] = {mla::MaskKind::causal};
    mla::AbsorbedCall call;
    call.rows.rows = 1;
    call.rows.token_end = 1;
    call.rows.q_indptr = q_indptr;
    call.rows.kv_len = kv_len;
    call.rows.block_table = table;
    call.rows.block_stride = 1;
    call.rows.mask = mask;
    call.rows.max_q_len = 1;
    call.rows.max_kv_len = 64;
    call.heads = 1;
    call.q = reinterpret_cast<std::byte*>(query.data());
    call.q_dtype = DType::f32;
    call.kv = {reinterpret_cast<std::byte*>(page.data()),
               mla::KvFormat::f32,
               64,
               64 * mla::kKey * 4,
               1,
               1.0f};
    call.scale = 1.0f;
    call.out = reinterpret_cast<std::byte*>(out.data());
    call.out_dtype = DType::f32;
    call.lse = &lse;
    const auto done = kernels->absorbed(context, call);
    if (!done) {
        std::printf("%s\n", done.error().message.c_str());
        return 1;
    }
    std::printf("attended to %.0f keys\n", std::exp(lse));
    return out[0] == 1.0f ? 0 : 1;
}
