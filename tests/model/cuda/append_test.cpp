// SPDX-License-Identifier: Apache-2.0
// Norm, rope and append in one kernel leave the bytes of the operations it is made of.
#include <limits>
#include <random>

#include "mla/raw_append.hpp"
#include "ops/cuda/gpu.hpp"

namespace espalier::model {
namespace {

using mla::KvFormat;
using ops::OnGpu;

TEST(AppendRaw, GivesTheBytesOfSplitLatentThenAppend) {
    constexpr std::int64_t kTokens = 150, kStride = mla::kKey + 8, kPages = 5, kPageTokens = 64;
    ops::Gpu gpu;
    const auto kernels = ops::must(mla::make_cuda_kernels());
    const auto* appender = dynamic_cast<const mla::RawAppender*>(kernels.get());
    ASSERT_NE(appender, nullptr);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    const auto numbers = [&](std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random);
        return values;
    };
    std::vector<float> rows = numbers(kTokens * kStride);
    std::fill_n(rows.begin(), kStride, 0.0f);
    rows[kStride + 3] = std::numeric_limits<float>::quiet_NaN();
    rows[2 * kStride + 520] = std::numeric_limits<float>::infinity();
    rows[3 * kStride + 5] = 3e38f;
    std::vector<std::int64_t> slots;
    for (std::int64_t token = 0; token < kTokens; ++token)
        slots.push_back(token * 31 % (kPages * kPageTokens));
    slots[7] = -1;
    slots[8] = kPages * kPageTokens;
    OnGpu<float> kv_a(gpu, rows), weight(gpu, numbers(mla::kLatent)),
        cos_sin(gpu, numbers(kTokens * mla::kRope)), latent(gpu, numbers(kTokens * mla::kLatent)),
        rope(gpu, numbers(kTokens * mla::kRope));
    OnGpu<std::int64_t> slot(gpu, slots);
    for (const KvFormat format :
         {KvFormat::bf16, KvFormat::fp16, KvFormat::fp8_tensor, KvFormat::fp8_token}) {
        const std::int64_t page = mla::page_stride_bytes(format, kPageTokens);
        const std::vector<std::byte> fresh(static_cast<std::size_t>(kPages * page),
                                           std::byte{0x5a});
        const std::vector<std::uint8_t> unset(static_cast<std::size_t>(kTokens), 7);
        OnGpu<std::byte> wanted(gpu, fresh), got(gpu, fresh);
        OnGpu<std::uint8_t> wanted_flags(gpu, unset), flags(gpu, unset);
        mla::AppendCall call;
        call.tokens = kTokens;
        call.slot = slot.data();
        call.kv.format = format;
        call.kv.page_tokens = kPageTokens;
        call.kv.page_stride = page;
        call.kv.page_count = kPages;
        call.kv.scale = 0.02f;
        call.kv.data = got.data();
        call.nonfinite = flags.data();
        const Matrix raw = Matrix::of(kv_a.data(), kTokens, mla::kKey, kStride);
        ASSERT_TRUE(appender->append_raw(
            gpu.context, call, {kv_a.data(), kStride, weight.data(), 1e-6f, cos_sin.data(), 64}));
        gpu.backend->split_latent(
            gpu.context, raw, {weight.data(), 1e-6f, latent.matrix(kTokens, mla::kLatent), {}},
            cos_sin.matrix(kTokens, mla::kRope), rope.matrix(kTokens, mla::kRope));
        call.latent = latent.data();
        call.latent_stride = mla::kLatent;
        call.rope = rope.data();
        call.rope_stride = mla::kRope;
        call.kv.data = wanted.data();
        call.nonfinite = wanted_flags.data();
        ASSERT_TRUE(kernels->append(gpu.context, call));
        EXPECT_EQ(got.values(), wanted.values()) << mla::name_of(format);
        EXPECT_EQ(flags.values(), wanted_flags.values()) << mla::name_of(format);
        EXPECT_EQ(flags.values()[1], 1) << mla::name_of(format);
    }
}

}  // namespace
}  // namespace espalier::model
