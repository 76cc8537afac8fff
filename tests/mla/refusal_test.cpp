// SPDX-License-Identifier: Apache-2.0
// Guarantee 7 beyond the absorbed entry (whose refusals are part of the conformance suite): what
// the other entries do not take is an error that names it.
#include "conformance/batch.hpp"
#include "mla/checks.hpp"
#include "mla/implementation.hpp"

namespace espalier::conformance {
namespace {

using namespace mla;

class MlaRefusal : public testing::Test {
  protected:
    MlaRefusal() {
        Random random(51);
        std::vector<Row> rows;
        rows.push_back(make_row(random, MaskKind::causal, 2, 2, 70));
        rows.push_back(make_row(random, MaskKind::tree, 2, 3, 20));
        batch = std::make_unique<Batch>(KvFormat::bf16, 2, rows, Layout{});
        out.resize(static_cast<std::size_t>(batch->tokens() * 2 * kLatent * 4));
    }
    std::vector<std::unique_ptr<Kernels>> implementations() const {
        std::vector<std::unique_ptr<Kernels>> result;
        result.push_back(make_reference_kernels());
        result.push_back(make_cpu_kernels(CpuVariant::portable));
        result.push_back(make_cpu_kernels(best_cpu_variant()));
        return result;
    }

    std::unique_ptr<Batch> batch;
    std::vector<std::byte> out;
    CpuDevice device{1};
    Arena arena{Buffer()};
    OpContext context{device, arena};
};

TEST_F(MlaRefusal, DecompressedTakesCausalRowsOfOneRank) {
    const std::vector<std::byte> weights(2 * 128 * 512 * 2);
    DecompressedCall prompt;
    prompt.rows = batch->view();
    prompt.heads = 2;
    prompt.q = batch->image().query.data();
    prompt.kv = batch->kv();
    prompt.out = out.data();
    prompt.up_key = {.format = {.code = WeightCode::bf16},
                     .layout = linalg::WeightLayout::panels,
                     .count = 2,
                     .n = kNope,
                     .k = kLatent,
                     .matrix_bytes = kNope * kLatent * 2,
                     .data = weights.data()};
    prompt.up_value = prompt.up_key;
    const auto refused = [&](const std::string& says) {
        for (const auto& kernels : implementations()) {
            const Expected<void> done = kernels->decompressed(context, prompt);
            ASSERT_FALSE(done);
            EXPECT_NE(done.error().message.find(says), std::string::npos) << done.error().message;
        }
    };
    refused("not causal");
    prompt.rows.rows = 1;
    prompt.rows.dcp_world = 2;
    const std::int32_t global[] = {140};
    prompt.rows.global_kv_len = global;
    refused("2 context-parallel ranks");
    prompt.rows.dcp_world = 1;
    prompt.up_value = prompt.up_key;
    prompt.up_value.count = 1;
    refused("up_value holds 1 matrices");
    prompt.up_value = prompt.up_key;
    prompt.up_value.format = kFp8Blocks;
    refused("without scales");
}

// The oracle takes any widths; others name what they are made for.
TEST_F(MlaRefusal, KernelsNameTheWidthsTheyAreMadeFor) {
    const auto expect_refused = [&](const KeyDims& keys, const HeadDims& heads,
                                    const std::string& says) {
        for (const CpuVariant variant : {CpuVariant::portable, best_cpu_variant()}) {
            const Expected<void> done = make_cpu_kernels(variant)->check_dims(keys, heads);
            ASSERT_FALSE(done);
            EXPECT_EQ(done.error().message, says);
        }
        EXPECT_TRUE(make_reference_kernels()->check_dims(keys, heads));
    };
    for (const KeyDims& keys : kKeyDims)
        for (const HeadDims& heads : kHeadDims)
            EXPECT_TRUE(make_cpu_kernels(best_cpu_variant())->check_dims(keys, heads));
    expect_refused({256, 32}, {},
                   "attention over keys of 256 latent and 32 rotated columns: 512 and 64, or 256 "
                   "and 64, are possible");
    expect_refused({}, {128, 64},
                   "decompressed attention of heads with 128 nope and 64 value columns: 128 and "
                   "128, or 192 and 256, or 64 and 128, or 128 and 192, are possible");
    expect_refused({}, {128, 256},  // each known, not as a pair
                   "decompressed attention of heads with 128 nope and 256 value columns: 128 and "
                   "128, or 192 and 256, or 64 and 128, or 128 and 192, are possible");
    // A GPU has the first ones of both, and says so of the keys first.
    const auto refused_by_cuda = [](const KeyDims& keys, const HeadDims& heads) {
        const Expected<void> done = check_compiled_dims(kCudaDims, keys, heads);
        return done ? std::string("taken") : done.error().message;
    };
    EXPECT_EQ(refused_by_cuda({}, kHeadDims[1]), "taken");
    EXPECT_EQ(refused_by_cuda({256, 64}, {64, 128}),
              "attention over keys of 256 latent and 64 rotated columns: 512 and 64 are possible");
    EXPECT_EQ(refused_by_cuda({}, {64, 128}),
              "decompressed attention of heads with 64 nope and 128 value columns: 128 and 128, or "
              "192 and 256, are possible");
}

TEST_F(MlaRefusal, SlotsOutsideThePool) {
    const std::vector<float> row(kKey);
    const std::int64_t slots[] = {batch->kv().page_count * 64};
    for (const auto& kernels : implementations()) {
        AppendCall append;
        append.tokens = 1;
        append.latent = append.rope = row.data();
        append.slot = slots;
        append.kv = batch->kv();
        EXPECT_FALSE(kernels->append(context, append));
        const std::int64_t zero[] = {0};
        EXPECT_FALSE(kernels->compact(context, {1, slots, zero, batch->kv()}));
        EXPECT_FALSE(kernels->compact(context, {1, zero, slots, batch->kv()}));
    }
}

}  // namespace
}  // namespace espalier::conformance
