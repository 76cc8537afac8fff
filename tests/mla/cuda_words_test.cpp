// SPDX-License-Identifier: Apache-2.0
// What CUDA refuses by looking at host words alone: the …_words halves of the checks must hold
// without reading an array, and CUDA's own limits are named.
#include <gtest/gtest.h>

#include "base/cpu_device.hpp"
#include "mla/checks.hpp"

namespace espalier::mla {
namespace {

// An address that no test may read: words are all that is looked at.
template <typename T>
T* elsewhere(std::uintptr_t address = 0x1000) {
    return reinterpret_cast<T*>(address);
}

KvPages pages(KvFormat format) {
    return {elsewhere<std::byte>(), format, 64, page_stride_bytes(format, 64), 10, 1.0f};
}

AbsorbedCall device_call() {
    AbsorbedCall call;
    call.rows.rows = 3;
    call.rows.token_end = 7;
    call.rows.q_indptr = call.rows.kv_len = call.rows.block_table = elsewhere<std::int32_t>();
    call.rows.mask = elsewhere<MaskKind>();
    call.rows.block_stride = 4;
    call.rows.max_q_len = 4;
    call.rows.max_kv_len = 256;
    call.heads = 2;
    call.q = call.out = elsewhere<std::byte>();
    call.kv = pages(KvFormat::bf16);
    return call;
}

template <typename Check, typename Call>
std::string refusal(Check check, const Call& call) {
    const Expected<void> done = check(call);
    return done ? "" : done.error().message;
}

TEST(MlaWords, ArraysAreNotRead) {
    EXPECT_EQ(refusal(check_absorbed_arguments, device_call()), "");
    DecompressedCall prompt;
    prompt.rows = device_call().rows;
    prompt.heads = 2;
    prompt.q = prompt.out = elsewhere<std::byte>();
    prompt.kv = pages(KvFormat::fp8_token);
    EXPECT_EQ(refusal(check_decompressed_arguments, prompt),
              "up_key holds 0 matrices [0, 0], wanted are 2 of [128, 512]");
    prompt.up_key = {.format = {.code = WeightCode::bf16},
                     .layout = linalg::WeightLayout::rows,
                     .count = 2,
                     .n = kNope,
                     .k = kLatent,
                     .matrix_bytes = 2 * kNope * kLatent * 2,
                     .data = elsewhere<std::byte>()};
    prompt.up_value = prompt.up_key;
    EXPECT_EQ(refusal(check_decompressed_arguments, prompt), "");
    AppendCall append;
    append.tokens = 3;
    append.latent = append.rope = elsewhere<float>();
    append.slot = elsewhere<std::int64_t>();
    append.kv = pages(KvFormat::fp16);
    EXPECT_EQ(refusal(check_append_arguments, append), "");
    const CompactCall compact{2, elsewhere<std::int64_t>(), elsewhere<std::int64_t>(), append.kv};
    EXPECT_EQ(refusal(check_compact_arguments, compact), "");
}

TEST(MlaWords, CapacitiesBelowZeroAreRefused) {
    for (const int which : {0, 1, 2, 3}) {
        AbsorbedCall call = device_call();
        if (which == 0) call.rows.token_end = -1;
        if (which == 1) call.rows.max_q_len = -1;
        if (which == 2) call.rows.max_kv_len = -1;
        if (which == 3) call.rows.block_stride = -1;
        EXPECT_NE(refusal(check_absorbed_arguments, call).find("-1"), std::string::npos) << which;
    }
    AbsorbedCall call = device_call();
    call.rows.custom_mask_len = 5;
    EXPECT_NE(refusal(check_absorbed_arguments, call).find("5 bytes at no address"),
              std::string::npos);
}

TEST(MlaWords, CudaNamesItsLimits) {
    EXPECT_TRUE(check_cuda_pages(pages(KvFormat::fp8_tensor)));
    EXPECT_NE(refusal(check_cuda_pages, pages(KvFormat::f32)).find("f32 cache on CUDA"),
              std::string::npos);
    KvPages kv = pages(KvFormat::bf16);
    kv.data = elsewhere<std::byte>(0x1008);
    EXPECT_NE(refusal(check_cuda_pages, kv).find("first page lies 8 bytes behind"),
              std::string::npos);
    kv = pages(KvFormat::bf16);
    kv.page_stride += 8;
    EXPECT_NE(refusal(check_cuda_pages, kv).find("no multiple of 16"), std::string::npos);
    EXPECT_TRUE(check_cuda_address(elsewhere<std::byte>(), "q"));
    const Expected<void> odd = check_cuda_address(elsewhere<std::byte>(0x1002), "out");
    ASSERT_FALSE(odd);
    EXPECT_NE(odd.error().message.find("out lies 2 bytes behind"), std::string::npos);
}

// Tokens of a call are counted, not rows that are all as long as the longest.
TEST(MlaWords, CudaCountsTilesByTokens) {
    AbsorbedCall call = device_call();
    call.invariant = true;
    call.heads = 128;
    call.rows.rows = 128;
    call.rows.token_end = call.rows.max_q_len = 256;
    call.rows.max_kv_len = 163840;
    EXPECT_EQ(refusal(check_cuda_capacities, call), "");
    call.rows.token_end = 65536;  // 4 blocks × 5,154 tiles each
    EXPECT_EQ(refusal(check_cuda_capacities, call), "");
    call.rows.token_end = 131072;
    EXPECT_NE(refusal(check_cuda_capacities, call).find("too many tiles"), std::string::npos);
    call.invariant = false;  // where rows are what counts
    EXPECT_EQ(refusal(check_cuda_capacities, call), "");
    call.heads = 1;
    call.rows.max_q_len = 1;
    call.rows.token_end = call.rows.rows = 1 << 20;
    EXPECT_NE(refusal(check_cuda_capacities, call).find("too many tiles"), std::string::npos);
}

// On what is no Hopper GPU the factory says what is missing; on one it works (tests labelled gpu).
TEST(MlaWords, CudaKernelsOfAnotherDeviceAreRefusedByName) {
    CpuDevice device(1);
    const auto kernels = make_cuda_kernels(device);
    ASSERT_FALSE(kernels);
    EXPECT_NE(kernels.error().message.find("CUDA"), std::string::npos);
}

}  // namespace
}  // namespace espalier::mla
