// SPDX-License-Identifier: Apache-2.0
// Norm, rope and append in one kernel, and norms beside them, leave the bytes of the operations it
// is made of.
#include <limits>
#include <random>

#include "mla/raw_append.hpp"
#include "ops/cuda/gpu.hpp"

namespace espalier::model {
namespace {

using mla::KvFormat;
using ops::OnGpu;

TEST(AppendRaw, GivesTheBytesOfItsParts) {
    constexpr std::int64_t kTokens = 150, kStride = mla::kKey + 8, kPages = 5, kPageTokens = 64;
    ops::Gpu gpu;
    const auto kernels = ops::must(mla::make_cuda_kernels(*gpu.device));
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
        ASSERT_TRUE(mla::append_raw(
            gpu.context, call, {kv_a.data(), kStride, weight.data(), 1e-6f, cos_sin.data(), 64}));
        gpu.backend->rms_norm(gpu.context, raw.columns(0, mla::kLatent), weight.data(), 1e-6f,
                              latent.matrix(kTokens, mla::kLatent), {});
        gpu.backend->rope(gpu.context, raw.columns(mla::kLatent, mla::kRope), 0, 1,
                          cos_sin.matrix(kTokens, mla::kRope), rope.matrix(kTokens, mla::kRope), 0);
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

// Rows that a thread has no column of, one or several, and rows longer than a thread keeps.
TEST(AppendRaw, NormsRowsBesideTheKeys) {
    ops::Gpu gpu;
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    const auto numbers = [&](std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random);
        return values;
    };
    constexpr std::int64_t kPageTokens = 64;
    for (const std::int64_t tokens : {1, 2, 33})
        for (const std::int64_t cols : {4, 768, 1536, 2048, 2500}) {
            const std::int64_t page = mla::page_stride_bytes(KvFormat::bf16, kPageTokens);
            OnGpu<float> kv_a(gpu, numbers(tokens * mla::kKey)), key_norm(gpu, numbers(512)),
                cos_sin(gpu, numbers(tokens * mla::kRope)), x(gpu, numbers(tokens * (cols + 3))),
                weight(gpu, numbers(cols));
            const std::vector<std::byte> fresh(static_cast<std::size_t>(page), std::byte{0x5a});
            OnGpu<std::byte> pages[2] = {{gpu, fresh}, {gpu, fresh}};
            const std::vector<Bf16> unset(static_cast<std::size_t>(tokens * cols), Bf16{0x1234});
            OnGpu<Bf16> out[2] = {{gpu, unset}, {gpu, unset}};
            std::vector<std::int64_t> slots;
            for (std::int64_t token = 0; token < tokens; ++token) slots.push_back(token);
            OnGpu<std::int64_t> slot(gpu, slots);
            mla::AppendCall call;
            call.tokens = tokens;
            call.slot = slot.data();
            call.kv.format = KvFormat::bf16;
            call.kv.page_tokens = kPageTokens;
            call.kv.page_stride = page;
            call.kv.page_count = 1;
            const Matrix rows = x.matrix(tokens, cols);
            for (const std::size_t apart : {std::size_t{0}, std::size_t{1}}) {
                call.kv.data = pages[apart].data();
                mla::RawKeys keys{
                    kv_a.data(), mla::kKey, key_norm.data(), 1e-6f, cos_sin.data(), 64, {}, {}};
                const Matrix to = out[apart].matrix(tokens, cols);
                if (apart == 0) keys.beside = {rows, weight.data(), 1e-5f, to};
                ASSERT_TRUE(mla::append_raw(gpu.context, call, keys));
                if (apart == 1)
                    gpu.backend->rms_norm(gpu.context, rows, weight.data(), 1e-5f, to, {});
            }
            EXPECT_EQ(pages[0].values(), pages[1].values()) << tokens << " × " << cols;
            const std::vector<Bf16> got = out[0].values(), wanted = out[1].values();
            for (std::size_t i = 0; i < got.size(); ++i)
                ASSERT_EQ(got[i].bits, wanted[i].bits) << tokens << " × " << cols << " at " << i;
        }
}

}  // namespace
}  // namespace espalier::model
