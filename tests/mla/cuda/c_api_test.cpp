// SPDX-License-Identifier: Apache-2.0
// The C API on CUDA: the compatible decode call against the oracle, its combined mask built on the
// device, malformed lengths and offsets, replay from a graph, and a plan that layers share.
#include <limits>

#include "mla/compat_problem.hpp"
#include "mla/cuda/device.hpp"

namespace espalier::mla::simple {
namespace {

class MlaCudaCApi : public CudaTest {
  protected:
    void SetUp() override {
        ASSERT_EQ(espalier_mla_create_cuda(&cuda), ESPALIER_MLA_OK) << espalier_mla_last_error();
    }
    void TearDown() override { espalier_mla_destroy(cuda); }

    // The problem's arrays on the device, and room for what the call writes.
    struct Device {
        OnDevice<std::byte> pages, query, workspace;
        OnDevice<std::int32_t> block_table, seq_lens;
        OnDevice<std::uint8_t> mask;
        OnDevice<std::int64_t> offset;
        OnDevice<float> out, lse;
        espalier_mla_compat_call call;

        Device(espalier_mla_context* context, const CompatProblem& problem, bool causal,
               bool with_mask)
            : pages(problem.arrays->pages),
              query(problem.arrays->query),
              workspace(std::vector<std::byte>(bytes(context, problem, causal, with_mask),
                                               std::byte{0xff})),
              block_table(problem.arrays->block_table),
              seq_lens(problem.arrays->kv_len),
              mask(problem.mask),
              offset(problem.mask_offset),
              out(std::vector<float>(packed(problem) * kLatent, -5.0f)),
              lse(std::vector<float>(packed(problem), -5.0f)),
              call(problem.call(causal, with_mask)) {
            call.q = query.data();
            call.kv_cache = pages.data();
            call.block_tables = block_table.data();
            call.seq_lens = seq_lens.data();
            if (with_mask) {
                call.custom_mask = mask.data();
                call.cmask_off = offset.data();
            }
            call.out = out.data();
            call.lse = lse.data();
        }
        static std::size_t packed(const CompatProblem& problem) {
            return static_cast<std::size_t>(problem.tokens() * problem.arrays->heads);
        }
        static std::size_t bytes(espalier_mla_context* context, const CompatProblem& problem,
                                 bool causal, bool with_mask) {
            const espalier_mla_compat_call call = problem.call(causal, with_mask);
            std::uint64_t needed = 0;
            EXPECT_EQ(espalier_mla_decode_compat_workspace_bytes(context, &call, &needed),
                      ESPALIER_MLA_OK)
                << espalier_mla_last_error();
            return static_cast<std::size_t>(needed);
        }
        espalier_mla_status run(espalier_mla_context* context, cudaStream_t stream) {
            return espalier_mla_decode_compat(context, &call, workspace.data(), workspace.bytes(),
                                              stream);
        }
        Outputs outputs() const { return {kLatent, out.download(), lse.download()}; }
    };

    Outputs run(const CompatProblem& problem, bool causal, bool with_mask) {
        Device device(cuda, problem, causal, with_mask);
        EXPECT_EQ(device.run(cuda, stream), ESPALIER_MLA_OK) << espalier_mla_last_error();
        expect_cuda(cudaStreamSynchronize(stream));
        return device.outputs();
    }

    espalier_mla_context* cuda = nullptr;
};

TEST_F(MlaCudaCApi, CompatibleDecodeIsCausalAndMask) {
    const auto oracle = make_reference_kernels();
    for (const KvFormat format : {KvFormat::bf16, KvFormat::fp16, KvFormat::fp8_tensor}) {
        Random random(9);
        const CompatProblem problem(random, format, 3, 2, 64, {140, 3, 0, 129, 2});
        for (const bool causal : {false, true})
            for (const bool with_mask : {false, true})
                EXPECT_TRUE(close_to(run(problem, causal, with_mask),
                                     problem.native(*oracle, causal, with_mask),
                                     format == KvFormat::fp8_tensor ? 4e-3 : 3.5e-3, 20))
                    << name_of(format) << ", causal " << causal << ", mask " << with_mask;
    }
}

TEST_F(MlaCudaCApi, MalformedMaskOffsetsAndLengthsHideKeys) {
    Random random(10);
    CompatProblem problem(random, KvFormat::bf16, 2, 1, 64, {33, 20, 20, 17});
    problem.mask_offset = {std::numeric_limits<std::int64_t>::max() - 5, -4,
                           std::numeric_limits<std::int64_t>::min(),
                           static_cast<std::int64_t>(problem.mask.size()) - 19};
    const auto oracle = make_reference_kernels();
    EXPECT_TRUE(
        close_to(run(problem, true, true), problem.native(*oracle, true, true), 3.5e-3, 20));
    // Lengths beyond the capacities count as nothing.
    Device device(cuda, problem, true, false);
    device.seq_lens.upload({1000000, -5, 20, 17});
    ASSERT_EQ(device.run(cuda, stream), ESPALIER_MLA_OK) << espalier_mla_last_error();
    expect_cuda(cudaStreamSynchronize(stream));
    const Outputs result = device.outputs();
    for (std::size_t token = 0; token < 4; ++token) {
        EXPECT_EQ(result.lse[token], -std::numeric_limits<float>::infinity());
        for (std::size_t c = 0; c < kLatent; ++c) ASSERT_EQ(result.out[token * kLatent + c], 0.0f);
    }
    EXPECT_GT(result.lse[4], -std::numeric_limits<float>::infinity());
}

// Sizes are asked for before a call is refused: no capacities may stop the process.
TEST_F(MlaCudaCApi, SizesOfTheLargestCapacities) {
    espalier_mla_capacities most{};
    most.size = sizeof most;
    most.rows = most.max_q_len = most.max_kv_len = std::numeric_limits<std::int32_t>::max();
    most.tokens = std::int64_t{1} << 31;
    most.dense = 1;
    for (most.heads = 1; most.heads <= 128; most.heads *= 2)
        for (most.invariant = 0; most.invariant < 2; ++most.invariant) {
            std::uint64_t workspace = 0;
            std::uint64_t plan = 0;
            EXPECT_EQ(espalier_mla_workspace_bytes(cuda, &most, &workspace), ESPALIER_MLA_OK);
            EXPECT_EQ(espalier_mla_plan_bytes(cuda, &most, &plan), ESPALIER_MLA_OK);
            EXPECT_GT(plan, 0u);
            EXPECT_GT(workspace, plan);
            EXPECT_LT(workspace, std::uint64_t{1} << 60);
        }
}

// However many splits there are: what does not fit is several launches. And smaller calls fit into
// what is asked for larger ones.
TEST_F(MlaCudaCApi, WorkspaceIsBounded) {
    constexpr std::uint64_t kMost = 256'000'000;
    std::uint64_t before = 0, plan_before = 0;
    for (const std::int32_t slots : {1000, 8192, 16384, 32768, 131072, 163840}) {
        for (const std::int32_t heads : {16, 128}) {
            espalier_mla_capacities most{};
            most.size = sizeof most;
            most.heads = heads;
            most.rows = 64;
            most.tokens = 64 * 8;
            most.max_q_len = 8;
            most.max_kv_len = slots;
            most.invariant = 1;
            std::uint64_t workspace = 0, plan = 0;
            ASSERT_EQ(espalier_mla_workspace_bytes(cuda, &most, &workspace), ESPALIER_MLA_OK);
            ASSERT_EQ(espalier_mla_plan_bytes(cuda, &most, &plan), ESPALIER_MLA_OK);
            EXPECT_LE(workspace, kMost) << slots << " slots, " << heads << " heads";
            if (heads != 16) continue;
            EXPECT_GE(workspace, before) << slots;
            EXPECT_GE(plan, plan_before) << slots;
            before = workspace;
            plan_before = plan;
        }
    }
}

TEST_F(MlaCudaCApi, ReplayWithOtherLengths) {
    Random random(11);
    const CompatProblem problem(random, KvFormat::bf16, 3, 2, 64, {140, 64, 200});
    Device device(cuda, problem, true, true);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ASSERT_EQ(device.run(cuda, stream), ESPALIER_MLA_OK) << espalier_mla_last_error();
    expect_cuda(cudaStreamEndCapture(stream, &graph));
    expect_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (const std::vector<std::int32_t>& lengths :
         {std::vector<std::int32_t>{140, 64, 200}, {3, 0, 199}, {77, 1, 130}}) {
        device.seq_lens.upload(lengths);
        expect_cuda(cudaGraphLaunch(replay, stream));
        expect_cuda(cudaStreamSynchronize(stream));
        const Outputs replayed = device.outputs();
        ASSERT_EQ(device.run(cuda, stream), ESPALIER_MLA_OK);
        expect_cuda(cudaStreamSynchronize(stream));
        EXPECT_TRUE(all_same_bits(replayed, device.outputs()));
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
}

// Launches one behind the other, over one workspace: a kernel that reads what copies are filling
// again, or partial results of the launch before, is right most of the time.
TEST_F(MlaCudaCApi, EveryLaunchGivesTheSameBits) {
    constexpr int kRounds = 4, kLaunches = 16;
    Random random(14);
    for (const KvFormat format : {KvFormat::bf16, KvFormat::fp16, KvFormat::fp8_tensor})
        for (const auto& [q_len, heads] :
             {std::pair{1, 16}, {4, 16}, {9, 16}, {1, 128}, {3, 128}}) {
            const std::vector<int> lengths = heads == 16
                                                 ? std::vector{1500, 17, 700, 1, 999, 64, 300}
                                                 : std::vector{511, 64, 1, 300};
            const CompatProblem problem(random, format, q_len, heads, 64, lengths);
            Device device(cuda, problem, true, q_len > 1);
            std::vector<std::unique_ptr<OnDevice<float>>> outs;
            for (int i = 0; i < kLaunches; ++i)
                outs.push_back(std::make_unique<OnDevice<float>>(device.out.download()));
            std::vector<float> first;
            int differ = 0;
            for (int round = 0; round < kRounds; ++round) {
                for (const auto& out : outs) {
                    device.call.out = out->data();
                    ASSERT_EQ(device.run(cuda, stream), ESPALIER_MLA_OK)
                        << espalier_mla_last_error();
                }
                expect_cuda(cudaStreamSynchronize(stream));
                if (round == 0) first = outs.front()->download();
                for (const auto& out : outs) {
                    const std::vector<float> got = out->download();
                    if (std::memcmp(got.data(), first.data(), got.size() * 4) != 0) ++differ;
                    out->upload(std::vector<float>(got.size(), -5.0f));
                }
            }
            EXPECT_EQ(differ, 0) << "of " << kRounds * kLaunches << " launches, " << name_of(format)
                                 << ", " << q_len << " tokens of " << heads << " heads";
        }
}

// Two layers of a step over one plan give the bits of calls that make their own.
TEST_F(MlaCudaCApi, LayersShareAPlan) {
    Random random(13);
    const Sequence sequence(random, 3000, 2, kKey);
    const Arrays arrays(KvFormat::bf16, DType::bf16,
                        {chunk(sequence, 2997, 3), chunk(sequence, 40, 1)}, {});
    const OnDevice<std::byte> data(arrays.pages), query(arrays.query);
    const OnDevice<std::int32_t> q_indptr(arrays.q_indptr), kv_len(arrays.kv_len),
        block_table(arrays.block_table);
    const OnDevice<MaskKind> mask(arrays.mask);
    espalier_mla_pages pages = c_pages_of(arrays.kv);
    pages.data = data.data();
    espalier_mla_rows rows = c_rows_of(arrays.rows);
    rows.q_indptr = q_indptr.data();
    rows.kv_len = kv_len.data();
    rows.block_table = block_table.data();
    rows.mask = reinterpret_cast<const std::uint8_t*>(mask.data());
    espalier_mla_capacities most{};
    most.size = sizeof most;
    most.heads = 2;
    most.rows = rows.rows;
    most.tokens = rows.token_end;
    most.max_q_len = rows.max_q_len;
    most.max_kv_len = rows.max_kv_len;
    std::uint64_t workspace_bytes = 0;
    std::uint64_t plan_bytes = 0;
    ASSERT_EQ(espalier_mla_workspace_bytes(cuda, &most, &workspace_bytes), ESPALIER_MLA_OK);
    ASSERT_EQ(espalier_mla_plan_bytes(cuda, &most, &plan_bytes), ESPALIER_MLA_OK);
    const OnDevice<std::byte> workspace(std::vector<std::byte>(workspace_bytes, std::byte{0xff}));
    const OnDevice<std::byte> plan(std::vector<std::byte>(plan_bytes, std::byte{0xff}));
    const auto packed = static_cast<std::size_t>(rows.token_end * 2);
    OnDevice<float> out(std::vector<float>(packed * kLatent, -5.0f));
    OnDevice<float> lse(std::vector<float>(packed, -5.0f));
    espalier_mla_absorbed_call call{};
    call.size = sizeof call;
    call.rows = &rows;
    call.kv = &pages;
    call.heads = 2;
    call.q_dtype = ESPALIER_MLA_BF16;
    call.out_dtype = ESPALIER_MLA_F32;
    call.q = query.data();
    call.out = out.data();
    call.lse = lse.data();
    call.scale = kScale;
    const auto layer = [&] {
        out.upload(std::vector<float>(packed * kLatent, -5.0f));
        EXPECT_EQ(espalier_mla_absorbed(cuda, &call, workspace.data(), workspace_bytes, stream),
                  ESPALIER_MLA_OK)
            << espalier_mla_last_error();
        expect_cuda(cudaStreamSynchronize(stream));
        return Outputs{kLatent, out.download(), lse.download()};
    };
    const Outputs expected = layer();
    EXPECT_EQ(espalier_mla_plan(cuda, &call, stream), ESPALIER_MLA_INVALID);  // nowhere to put it
    call.plan = plan.data();
    ASSERT_EQ(espalier_mla_plan(cuda, &call, stream), ESPALIER_MLA_OK) << espalier_mla_last_error();
    EXPECT_TRUE(all_same_bits(layer(), expected));
    EXPECT_TRUE(all_same_bits(layer(), expected));
}

TEST_F(MlaCudaCApi, WordsAreRefusedBeforeAnythingIsLaunched) {
    Random random(12);
    const CompatProblem problem(random, KvFormat::bf16, 1, 2, 64, {10});
    Device device(cuda, problem, true, true);
    EXPECT_EQ(espalier_mla_decode_compat(cuda, &device.call, device.workspace.data(),
                                         device.workspace.bytes() - 1, stream),
              ESPALIER_MLA_EXHAUSTED);
    device.call.kv_format = ESPALIER_MLA_KV_F32;
    device.call.q_dtype = ESPALIER_MLA_F32;
    EXPECT_EQ(device.run(cuda, stream), ESPALIER_MLA_UNSUPPORTED);
    EXPECT_NE(std::string(espalier_mla_last_error()).find("f32 cache on CUDA"), std::string::npos);
    expect_cuda(cudaStreamSynchronize(stream));
}

}  // namespace
}  // namespace espalier::mla::simple
