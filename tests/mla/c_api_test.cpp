// SPDX-License-Identifier: Apache-2.0
// The C API on the CPU: statuses and their sentences, sizes, NULLs, workspace; its calls give the
// native entries' bits, and the compatible decode call those of causal AND mask.
#include <functional>
#include <limits>

#include "base/cpu_features.hpp"
#include "mla/compat_problem.hpp"

namespace espalier::mla::simple {
namespace {

class MlaCApi : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(espalier_mla_create_cpu(2, &context), ESPALIER_MLA_OK)
            << espalier_mla_last_error();
    }
    void TearDown() override { espalier_mla_destroy(context); }

    // A 64-byte aligned workspace of exactly these bytes.
    struct Workspace {
        explicit Workspace(std::uint64_t size)
            : memory(static_cast<std::size_t>(size) + 64), bytes(size) {}
        void* data() {
            const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
            return memory.data() + (64 - past) % 64;
        }
        std::vector<std::byte> memory;
        std::uint64_t bytes;
    };

    Outputs run(espalier_mla_compat_call call) {
        Outputs result{kLatent, {}, {}};
        const auto packed = static_cast<std::size_t>(call.batch * call.q_len * call.heads);
        result.out.assign(packed * kLatent, -5.0f);
        result.lse.assign(packed, -5.0f);
        call.out = result.out.data();
        call.lse = result.lse.data();
        std::uint64_t bytes = 0;
        EXPECT_EQ(espalier_mla_decode_compat_workspace_bytes(context, &call, &bytes),
                  ESPALIER_MLA_OK)
            << espalier_mla_last_error();
        Workspace workspace(bytes);
        EXPECT_EQ(espalier_mla_decode_compat(context, &call, workspace.data(), bytes, nullptr),
                  ESPALIER_MLA_OK)
            << espalier_mla_last_error();
        return result;
    }
    espalier_mla_status try_run(const espalier_mla_compat_call& call, void* workspace,
                                std::uint64_t bytes) {
        return espalier_mla_decode_compat(context, &call, workspace, bytes, nullptr);
    }
    static bool said(const std::string& words) {
        return std::string(espalier_mla_last_error()).find(words) != std::string::npos;
    }

    espalier_mla_context* context = nullptr;
};

TEST_F(MlaCApi, VersionsAndNames) {
    EXPECT_EQ(espalier_mla_abi_version(), ESPALIER_MLA_ABI_VERSION);
    EXPECT_STREQ(espalier_mla_status_name(ESPALIER_MLA_EXHAUSTED), "exhausted");
    EXPECT_STREQ(espalier_mla_status_name(static_cast<espalier_mla_status>(7)), "?");
    std::int64_t bytes = 0;
    EXPECT_EQ(espalier_mla_page_stride(ESPALIER_MLA_KV_FP8_TOKEN, 64, &bytes), ESPALIER_MLA_OK);
    EXPECT_EQ(bytes, (64 * 644 + 127) / 128 * 128);
    EXPECT_EQ(espalier_mla_page_stride(9, 64, &bytes), ESPALIER_MLA_INVALID);
    EXPECT_TRUE(said("format is 9, 0 to 4")) << espalier_mla_last_error();
    EXPECT_EQ(espalier_mla_page_stride(1, 48, &bytes), ESPALIER_MLA_UNSUPPORTED);
    espalier_mla_context* other = context;
    EXPECT_EQ(espalier_mla_create_cpu(-1, &other), ESPALIER_MLA_INVALID);
    EXPECT_EQ(other, nullptr);
    EXPECT_EQ(espalier_mla_create_cpu(1, nullptr), ESPALIER_MLA_INVALID);
}

TEST_F(MlaCApi, CompatibleDecodeIsCausalAndMask) {
    for (const KvFormat format : {KvFormat::bf16, KvFormat::fp16, KvFormat::f32}) {
        Random random(61);
        CompatProblem problem(random, format, 3, 2, 16, {40, 3, 0, 129, 2});
        const auto kernels = make_cpu_kernels(best_cpu_variant());
        for (const bool causal : {false, true})
            for (const bool with_mask : {false, true}) {
                const Outputs expected = problem.native(*kernels, causal, with_mask);
                EXPECT_TRUE(all_same_bits(run(problem.call(causal, with_mask)), expected))
                    << "causal " << causal << ", mask " << with_mask;
            }
    }
}

TEST_F(MlaCApi, MalformedMaskOffsetsHideKeys) {
    Random random(62);
    CompatProblem problem(random, KvFormat::bf16, 2, 1, 16, {33, 20, 20, 17});
    problem.mask_offset[0] = std::numeric_limits<std::int64_t>::max() - 5;
    problem.mask_offset[1] = -4;
    problem.mask_offset[2] = std::numeric_limits<std::int64_t>::min();
    problem.mask_offset[3] = static_cast<std::int64_t>(problem.mask.size()) - 19;  // its end is cut
    const auto kernels = make_cpu_kernels(best_cpu_variant());
    for (const bool causal : {false, true})
        EXPECT_TRUE(
            all_same_bits(run(problem.call(causal, true)), problem.native(*kernels, causal, true)));
}

TEST_F(MlaCApi, RefusalsNameWhatIsWrong) {
    Random random(63);
    CompatProblem problem(random, KvFormat::bf16, 2, 2, 16, {20, 5});
    const espalier_mla_compat_call good = problem.call(true, true);
    struct Case {
        std::function<void(espalier_mla_compat_call&)> spoil;
        espalier_mla_status status;
        std::string says;
    };
    static const std::int32_t kLong[] = {21, 5};
    static const std::int32_t kNegative[] = {20, -1};
    using Call = espalier_mla_compat_call;
    const Case cases[] = {
        {[](Call& c) { c.size = 8; }, ESPALIER_MLA_INVALID, "has size 8"},
        {[](Call& c) { c.size += 8; }, ESPALIER_MLA_INVALID, "knows"},
        {[](Call& c) { c.heads = 129; }, ESPALIER_MLA_UNSUPPORTED, "129 heads"},
        {[](Call& c) { c.q_dtype = 7; }, ESPALIER_MLA_INVALID, "q_dtype is 7"},
        {[](Call& c) { c.q_dtype = ESPALIER_MLA_F16; }, ESPALIER_MLA_UNSUPPORTED, "f16 queries"},
        {[](Call& c) { c.kv_format = ESPALIER_MLA_KV_FP8_TOKEN; }, ESPALIER_MLA_UNSUPPORTED,
         "fp8_token"},
        {[](Call& c) { c.kv_format = 5; }, ESPALIER_MLA_INVALID, "format is 5"},
        {[](Call& c) { c.page_size = 24; }, ESPALIER_MLA_UNSUPPORTED, "24 tokens"},
        {[](Call& c) { c.batch = -1; }, ESPALIER_MLA_INVALID, "batch -1"},
        {[](Call& c) { c.q_len = 1 << 30; }, ESPALIER_MLA_UNSUPPORTED, "2 sequences of"},
        {[](Call& c) { c.seq_lens = nullptr; }, ESPALIER_MLA_INVALID, "without seq_lens"},
        {[](Call& c) { c.block_tables = nullptr; }, ESPALIER_MLA_INVALID, "without block_tables"},
        {[](Call& c) { c.cmask_off = nullptr; }, ESPALIER_MLA_INVALID, "without cmask_off"},
        {[](Call& c) { c.custom_mask = nullptr; }, ESPALIER_MLA_INVALID, "without bytes"},
        {[](Call& c) { c.q = nullptr; }, ESPALIER_MLA_INVALID, "without q"},
        {[](Call& c) { c.out = nullptr; }, ESPALIER_MLA_INVALID, "without out"},
        {[](Call& c) { c.seq_lens = kLong; }, ESPALIER_MLA_INVALID, "sequence 0: 21 slots"},
        {[](Call& c) { c.seq_lens = kNegative; }, ESPALIER_MLA_INVALID, "sequence 1: -1 slots"},
        {[](Call& c) { c.max_pages = 1; }, ESPALIER_MLA_INVALID, "in 1 pages of 16"},
        {[](Call& c) { c.num_pages = 2; }, ESPALIER_MLA_INVALID, "page 5 of 2"},
    };
    std::vector<float> out(4 * 2 * kLatent);
    Workspace workspace(1 << 24);
    espalier_mla_compat_call call = good;
    call.out = out.data();
    ASSERT_EQ(try_run(call, workspace.data(), workspace.bytes), ESPALIER_MLA_OK)
        << espalier_mla_last_error();
    for (const Case& one : cases) {
        espalier_mla_compat_call spoiled = call;
        one.spoil(spoiled);
        EXPECT_EQ(try_run(spoiled, workspace.data(), workspace.bytes), one.status) << one.says;
        EXPECT_TRUE(said(one.says)) << one.says << ": " << espalier_mla_last_error();
    }
    EXPECT_EQ(espalier_mla_decode_compat(nullptr, &call, nullptr, 0, nullptr),
              ESPALIER_MLA_INVALID);
    EXPECT_EQ(espalier_mla_decode_compat(context, nullptr, nullptr, 0, nullptr),
              ESPALIER_MLA_INVALID);
}

TEST_F(MlaCApi, WorkspaceIsChecked) {
    Random random(64);
    CompatProblem problem(random, KvFormat::bf16, 2, 2, 16, {20, 5});
    espalier_mla_compat_call call = problem.call(true, true);
    std::vector<float> out(4 * 2 * kLatent);
    call.out = out.data();
    std::uint64_t bytes = 0;
    ASSERT_EQ(espalier_mla_decode_compat_workspace_bytes(context, &call, &bytes), ESPALIER_MLA_OK);
    Workspace workspace(bytes + 64);
    EXPECT_EQ(try_run(call, workspace.data(), bytes), ESPALIER_MLA_OK);
    EXPECT_EQ(try_run(call, workspace.data(), bytes - 1), ESPALIER_MLA_EXHAUSTED);
    EXPECT_TRUE(said(std::to_string(bytes))) << espalier_mla_last_error();
    EXPECT_EQ(try_run(call, nullptr, bytes), ESPALIER_MLA_EXHAUSTED);
    EXPECT_EQ(try_run(call, static_cast<std::byte*>(workspace.data()) + 4, bytes),
              ESPALIER_MLA_INVALID);
    EXPECT_TRUE(said("4 bytes behind a multiple of 64")) << espalier_mla_last_error();
}

TEST_F(MlaCApi, NativeEntriesGiveNativeBits) {
    Random random(65);
    const Sequence sequence(random, 40, 2, kKey);
    const Arrays arrays(KvFormat::bf16, DType::bf16, {chunk(sequence, 37, 3)}, {});
    const Outputs expected =
        absorbed_on_host(*make_cpu_kernels(best_cpu_variant()), absorbed_call(arrays));
    espalier_mla_rows c_rows = c_rows_of(arrays.rows);
    const espalier_mla_pages pages = c_pages_of(arrays.kv);
    Outputs result = expected;
    std::fill(result.out.begin(), result.out.end(), -5.0f);
    espalier_mla_absorbed_call call{};
    call.size = sizeof call;
    call.rows = &c_rows;
    call.kv = &pages;
    call.heads = 2;
    call.q_dtype = ESPALIER_MLA_BF16;
    call.out_dtype = ESPALIER_MLA_F32;
    call.q = arrays.query.data();
    call.out = result.out.data();
    call.lse = result.lse.data();
    call.scale = kScale;
    Workspace workspace(1 << 24);
    ASSERT_EQ(espalier_mla_absorbed(context, &call, workspace.data(), workspace.bytes, nullptr),
              ESPALIER_MLA_OK)
        << espalier_mla_last_error();
    EXPECT_TRUE(all_same_bits(result, expected));
    c_rows.first_slot = 1;
    ASSERT_EQ(espalier_mla_absorbed(context, &call, workspace.data(), workspace.bytes, nullptr),
              ESPALIER_MLA_OK)
        << espalier_mla_last_error();
    AbsorbedCall later = absorbed_call(arrays);
    later.rows.first_slot = 1;
    EXPECT_TRUE(
        all_same_bits(result, absorbed_on_host(*make_cpu_kernels(best_cpu_variant()), later)));
    EXPECT_FALSE(all_same_bits(result, expected));
    c_rows.first_slot = 2;
    EXPECT_EQ(espalier_mla_absorbed(context, &call, workspace.data(), workspace.bytes, nullptr),
              ESPALIER_MLA_UNSUPPORTED);
    EXPECT_TRUE(said("first_slot 2"));
    c_rows.size -= 8;
    EXPECT_EQ(espalier_mla_absorbed(context, &call, workspace.data(), workspace.bytes, nullptr),
              ESPALIER_MLA_INVALID);
    EXPECT_TRUE(said("espalier_mla_rows has size"));
    call.rows = nullptr;
    EXPECT_EQ(espalier_mla_absorbed(context, &call, workspace.data(), workspace.bytes, nullptr),
              ESPALIER_MLA_INVALID);
    EXPECT_TRUE(said("espalier_mla_rows is NULL"));
}

// The CPU needs no plan, and says so without an error.
TEST_F(MlaCApi, PlansAreNothingOnTheCpu) {
    espalier_mla_capacities most{};
    most.size = sizeof most;
    most.heads = 2;
    most.rows = 3;
    std::uint64_t bytes = 1;
    EXPECT_EQ(espalier_mla_plan_bytes(context, &most, &bytes), ESPALIER_MLA_OK);
    EXPECT_EQ(bytes, 0u);
    EXPECT_EQ(espalier_mla_plan_bytes(context, &most, nullptr), ESPALIER_MLA_INVALID);
    most.heads = 0;
    EXPECT_EQ(espalier_mla_plan_bytes(context, &most, &bytes), ESPALIER_MLA_UNSUPPORTED);
    Random random(67);
    const Sequence sequence(random, 40, 2, kKey);
    const Arrays arrays(KvFormat::bf16, DType::bf16, {chunk(sequence, 37, 3)}, {});
    const espalier_mla_rows c_rows = c_rows_of(arrays.rows);
    const espalier_mla_pages pages = c_pages_of(arrays.kv);
    espalier_mla_absorbed_call call{};
    call.size = sizeof call;
    call.rows = &c_rows;
    call.kv = &pages;
    call.q_dtype = ESPALIER_MLA_BF16;
    EXPECT_EQ(espalier_mla_plan(context, &call, nullptr), ESPALIER_MLA_OK);
    EXPECT_EQ(espalier_mla_plan(context, nullptr, nullptr), ESPALIER_MLA_INVALID);
}

// Packed rows must be the matrices that the contract speaks of: an identity-like W tells which.
TEST_F(MlaCApi, DecompressedReadsPackedRows) {
    const int heads = 2;
    Random random(66);
    std::vector<float> rows(static_cast<std::size_t>(heads * 256 * kLatent), 0.0f);
    const auto weight = [&](int head, int output, int input) -> float& {
        return rows[static_cast<std::size_t>((head * 256 + output) * kLatent + input)];
    };
    for (int output = 0; output < 128; ++output) {  // value o of head h is latent column 3o + h
        weight(0, 128 + output, 3 * output) = 1.0f;
        weight(1, 128 + output, 3 * output + 1) = 1.0f;
    }
    const auto up_rows = narrowed(rows, DType::bf16);
    std::vector<std::byte> packed(up_rows.size());
    ASSERT_EQ(espalier_mla_pack_up_weights(up_rows.data(), heads, packed.data()), ESPALIER_MLA_OK);

    const Sequence prompt(random, 1, heads, kQuery);
    const Arrays arrays(KvFormat::f32, DType::f32, {chunk(prompt, 0, 1)}, {.padding_tokens = 0});
    const espalier_mla_rows c_rows = c_rows_of(arrays.rows);
    const espalier_mla_pages pages = c_pages_of(arrays.kv);
    std::vector<float> out(static_cast<std::size_t>(heads * kValue), -5.0f);
    espalier_mla_decompressed_call call{};
    call.size = sizeof call;
    call.rows = &c_rows;
    call.kv = &pages;
    call.heads = heads;
    call.q_dtype = call.out_dtype = ESPALIER_MLA_F32;
    call.q = arrays.query.data();
    call.up_packed = packed.data();
    call.out = out.data();
    call.scale = 0.07f;
    Workspace workspace(1 << 24);
    ASSERT_EQ(espalier_mla_decompressed(context, &call, workspace.data(), workspace.bytes, nullptr),
              ESPALIER_MLA_OK)
        << espalier_mla_last_error();
    for (int head = 0; head < heads; ++head)
        for (int d = 0; d < kValue; ++d)
            ASSERT_EQ(out[static_cast<std::size_t>(head * kValue + d)],
                      prompt.key[static_cast<std::size_t>(3 * d + head)]);
    call.up_packed = nullptr;
    EXPECT_EQ(espalier_mla_decompressed(context, &call, workspace.data(), 1 << 24, nullptr),
              ESPALIER_MLA_INVALID);
    EXPECT_TRUE(said("on the CPU without up_packed"));
}

}  // namespace
}  // namespace espalier::mla::simple
