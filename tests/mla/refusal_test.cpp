// SPDX-License-Identifier: Apache-2.0
// Guarantee 7: what is not implemented, or contradicts itself, returns an error that names it.
#include <functional>

#include "mla/implementation.hpp"

namespace espalier::mla {
namespace {

struct Refusal {
    std::string name;
    std::function<void(AbsorbedCall&)> spoil;
    std::string says;
};

class MlaRefusal : public testing::Test {
  protected:
    MlaRefusal() {
        Random random(51);
        std::vector<Row> rows;
        rows.push_back(make_row(random, MaskKind::causal, 2, 2, 70));
        rows.push_back(make_row(random, MaskKind::tree, 2, 3, 20));
        rows.push_back(make_row(random, MaskKind::dense, 2, 1, 20));
        punch_holes(random, rows.back(), 0.5);
        batch = std::make_unique<Batch>(KvFormat::bf16, 2, rows, Layout{});
        call.rows = batch->view();
        call.heads = 2;
        call.q = batch->query();
        call.kv = batch->kv();
        call.scale = 1.0f;
        out.resize(static_cast<std::size_t>(batch->tokens() * 2 * kLatent * 4));
        call.out = out.data();
    }
    std::vector<std::unique_ptr<Kernels>> implementations() const {
        std::vector<std::unique_ptr<Kernels>> result;
        result.push_back(make_reference_kernels());
        result.push_back(make_cpu_kernels(CpuVariant::portable));
        result.push_back(make_cpu_kernels(best_cpu_variant()));
        return result;
    }

    std::unique_ptr<Batch> batch;
    AbsorbedCall call;
    std::vector<std::byte> out;
    ThreadPool pool{1};
    Arena arena = exact_arena(
        make_cpu_kernels(best_cpu_variant())
            ->scratch_bytes(
                {.heads = 2, .rows = 4, .tokens = 16, .max_q_len = 16, .max_kv_len = 128}));
    OpContext context{pool, arena};
};

TEST_F(MlaRefusal, NoSilentNoOp) {
    static const std::int32_t kBadPage[] = {999, 999, 999, 999};
    static const std::int32_t kLongTail[] = {2, 65, 1};
    static const std::int32_t kShortTail[] = {2, 2, 1};
    static const std::int32_t kFalling[] = {0, 2, 1, 6};
    const std::vector<Refusal> refusals = {
        {"no heads", [](AbsorbedCall& c) { c.heads = 0; }, "0 heads"},
        {"many heads", [](AbsorbedCall& c) { c.heads = 129; }, "129 heads"},
        {"output dtype", [](AbsorbedCall& c) { c.out_dtype = DType::e4m3; }, "e4m3"},
        {"query dtype", [](AbsorbedCall& c) { c.q_dtype = DType::f32; },
         "f32 queries over a bf16 cache"},
        {"page size", [](AbsorbedCall& c) { c.kv.page_tokens = 48; }, "48 tokens"},
        {"page stride", [](AbsorbedCall& c) { c.kv.page_stride -= 1; },
         "73728 bytes, the page stride is 73727"},
        {"page id",
         [](AbsorbedCall& c) {
             c.rows.block_table = kBadPage;
             c.rows.block_stride = 1;
             c.rows.rows = 1;
             c.kv.page_tokens = 128;
             c.kv.page_stride *= 2;
         },
         "page 999 of"},
        {"short table", [](AbsorbedCall& c) { c.rows.block_stride = 1; },
         "need 2 pages, its block table has 1"},
        {"long tail", [](AbsorbedCall& c) { c.rows.tail_len = kLongTail; }, "tail of 65"},
        {"short tail", [](AbsorbedCall& c) { c.rows.tail_len = kShortTail; }, "tail of 2"},
        {"no words", [](AbsorbedCall& c) { c.rows.words = nullptr; }, "without words"},
        {"no mask", [](AbsorbedCall& c) { c.rows.custom_mask_offset = nullptr; }, "dense mask"},
        {"indptr", [](AbsorbedCall& c) { c.rows.q_indptr = kFalling; }, "falls from 2 to 1"},
        {"token end", [](AbsorbedCall& c) { c.rows.token_end = 5; }, "0 to 6 lie outside 0 to 5"},
        {"q capacity", [](AbsorbedCall& c) { c.rows.max_q_len = 2; }, "more than max_q_len 2"},
        {"kv capacity", [](AbsorbedCall& c) { c.rows.max_kv_len = 69; }, "max_kv_len 69"},
        {"rank", [](AbsorbedCall& c) { c.rows.dcp_rank = 1; }, "rank 1 of 1"},
        {"global length", [](AbsorbedCall& c) { c.rows.dcp_world = 2; }, "global_kv_len"},
        {"no output", [](AbsorbedCall& c) { c.out = nullptr; }, "without out"},
    };
    for (const auto& kernels : implementations()) {
        ASSERT_TRUE(kernels->absorbed(context, call));
        for (const Refusal& refusal : refusals) {
            AbsorbedCall spoiled = call;
            refusal.spoil(spoiled);
            const Expected<void> done = kernels->absorbed(context, spoiled);
            ASSERT_FALSE(done) << refusal.name;
            EXPECT_NE(done.error().message.find(refusal.says), std::string::npos)
                << refusal.name << ": " << done.error().message;
        }
    }
}

TEST_F(MlaRefusal, DecompressedTakesCausalRowsOfOneRank) {
    const std::vector<std::byte> weights(2 * 128 * 512 * 2);
    DecompressedCall prompt;
    prompt.rows = call.rows;
    prompt.heads = 2;
    prompt.q = call.q;
    prompt.kv = call.kv;
    prompt.out = call.out;
    prompt.up_key = {DType::bf16, 2, kNope, kLatent, weights.data(), nullptr};
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
    prompt.up_value.count = 1;
    refused("up_value holds 1 matrices");
    prompt.up_value = prompt.up_key;
    prompt.up_value.dtype = DType::e4m3;
    refused("without scales");
}

TEST_F(MlaRefusal, SlotsOutsideThePool) {
    const std::vector<float> row(kKey);
    const std::int64_t slots[] = {call.kv.page_count * 64};
    for (const auto& kernels : implementations()) {
        AppendCall append;
        append.tokens = 1;
        append.latent = append.rope = row.data();
        append.slot = slots;
        append.kv = call.kv;
        EXPECT_FALSE(kernels->append(context, append));
        const std::int64_t zero[] = {0};
        EXPECT_FALSE(kernels->compact(context, {1, slots, zero, call.kv}));
        EXPECT_FALSE(kernels->compact(context, {1, zero, slots, call.kv}));
    }
}

}  // namespace
}  // namespace espalier::mla
