// SPDX-License-Identifier: Apache-2.0
// Decompressed attention on CUDA: accuracy against the oracle, and the guarantees that a plain
// kernel can break: invariance, garbage, nothing visible, replay with other lengths.
#include <limits>

#include "mla/cuda/device.hpp"

namespace espalier::mla::simple {
namespace {

struct Weights {
    int heads;
    HeadDims dims;
    std::vector<std::byte> rows;  // bf16 [heads, outputs, 512]
    OnDevice<std::byte> device;

    Weights(Random& random, int heads_, const HeadDims& dims_ = {})
        : heads(heads_),
          dims(dims_),
          rows(narrowed(normal(random, heads_ * dims_.outputs() * kLatent, 0.0442f), DType::bf16)),
          device(rows) {}
    DecompressedCall call(const Arrays& arrays) const {
        DecompressedCall result;
        result.rows = arrays.rows;
        result.heads = heads;
        result.q = arrays.query.data();
        result.q_dtype = arrays.q_dtype;
        result.kv = arrays.kv;
        result.scale = kScale;
        set_rows(result, rows.data());
        return result;
    }
    void place(DecompressedCall& call) const { set_rows(call, device.data()); }

  private:
    void set_rows(DecompressedCall& call, const std::byte* data) const {
        call.up_key = {.format = {.code = WeightCode::bf16},
                       .layout = linalg::WeightLayout::rows,
                       .count = heads,
                       .n = dims.nope,
                       .k = kLatent,
                       .matrix_bytes = dims.outputs() * kLatent * 2,
                       .data = data};
        call.up_value = call.up_key;
        call.up_value.n = dims.value;
        call.up_value.data += dims.nope * kLatent * 2;
    }
};

// The arrays of a call on the device.
struct DeviceArrays {
    OnDevice<std::byte> pages, query;
    OnDevice<std::int32_t> q_indptr, kv_len, block_table;
    OnDevice<MaskKind> mask;

    explicit DeviceArrays(const Arrays& host)
        : pages(host.pages),
          query(host.query),
          q_indptr(host.q_indptr),
          kv_len(host.kv_len),
          block_table(host.block_table),
          mask(host.mask) {}
    void upload(const Arrays& host) {
        pages.upload(host.pages);
        query.upload(host.query);
        q_indptr.upload(host.q_indptr);
        kv_len.upload(host.kv_len);
        block_table.upload(host.block_table);
        mask.upload(host.mask);
    }
    void point(DecompressedCall& call) const {
        call.kv.data = pages.data();
        call.q = query.data();
        call.rows.q_indptr = q_indptr.data();
        call.rows.kv_len = kv_len.data();
        call.rows.block_table = block_table.data();
        call.rows.mask = mask.data();
    }
};

class MlaCudaDecompressed : public CudaTest {
  protected:
    // Poisoned: nothing in it may be read before it is written.
    Arena scratch_for(const DecompressedCall& call) const {
        Capacities most = capacities(call.rows, call.heads);
        most.head_dims = call.head_dims();
        auto memory = gpu->allocate(kernels->scratch_bytes(most));
        EXPECT_TRUE(memory) << (memory ? "" : memory.error().message);
        expect_cuda(cudaMemset(memory->data(), 0xff, memory->bytes()));
        return Arena(std::move(*memory));
    }
    Outputs run(const Weights& weights, const Arrays& arrays, DType out_dtype = DType::f32) {
        const DeviceArrays device(arrays);
        DecompressedCall call = weights.call(arrays);
        weights.place(call);
        device.point(call);
        const std::int64_t packed = call.rows.token_end * call.heads;
        OnDevice<std::byte> out(std::vector<std::byte>(
            static_cast<std::size_t>(packed * weights.dims.value) * bytes_of(out_dtype),
            std::byte{0xff}));
        OnDevice<float> lse(std::vector<float>(static_cast<std::size_t>(packed), -5.0f));
        call.out = out.data();
        call.out_dtype = out_dtype;
        call.lse = lse.data();
        Arena scratch = scratch_for(call);
        OpContext with_scratch{*gpu, scratch, stream};
        finish(kernels->decompressed(with_scratch, call));
        return {weights.dims.value, widened(out.download(), out_dtype), lse.download()};
    }
    Outputs run(const Weights& weights, KvFormat format, const std::vector<Row>& rows,
                const Layout& layout = {}) {
        return run(weights, Arrays(format, query_dtype(format), rows, layout));
    }
};

// The oracle rounds K_nope and V to bf16 after a sum in double, the kernel after one in f32: one
// element in ~2^9 falls to the other side (2^-8 of itself), 1e-4 in all. Probabilities are rounded
// to bf16 (relative 2^-9 at most, 1.1e-3 rms), and so is a bf16 output: the contract's 3.5e-3, and
// 4e-3 over fp8 caches, hold with room.
TEST_F(MlaCudaDecompressed, Accuracy) {
    const auto oracle = make_reference_kernels();
    Random random(3);
    const Weights weights(random, 2);
    const Sequence sequence(random, 700, 2, kQuery);
    const std::vector<Row> rows = {chunk(sequence, 0, 20),    {&sequence, 0, 0, 5},
                                   chunk(sequence, 267, 3),   {&sequence, 9, 9, 4},
                                   chunk(sequence, 100, 300), chunk(sequence, 699, 1)};
    for (const KvFormat format : kCudaFormats)
        for (const DType query : {DType::bf16, DType::f16}) {
            if ((format == KvFormat::bf16 && query == DType::f16) ||
                (format == KvFormat::fp16 && query == DType::bf16))
                continue;
            for (const int page_tokens : {16, 128}) {
                const Arrays arrays(format, query, rows, {.page_tokens = page_tokens});
                const Outputs expected = decompressed_on_host(*oracle, weights.call(arrays));
                const bool fp8 = format == KvFormat::fp8_tensor || format == KvFormat::fp8_token;
                for (const DType out : {DType::f32, query})
                    EXPECT_TRUE(
                        close_to(run(weights, arrays, out), expected, fp8 ? 4e-3 : 3.5e-3, 20))
                        << espalier::name_of(query) << " over " << name_of(format) << ", pages of "
                        << page_tokens;
            }
        }
}

TEST_F(MlaCudaDecompressed, ChunksAndPagesGiveTheSameBits) {
    Random random(4);
    const int heads = 2;
    const int length = 530;
    const Weights weights(random, heads);
    const Sequence sequence(random, length, heads, kQuery);
    for (const KvFormat format : kCudaFormats) {
        const Outputs whole = run(weights, format, {chunk(sequence, 0, length)});
        for (const int size : {1, 7, 64, 100, 256, 300}) {
            std::vector<Row> rows;
            for (int first = 0; first < length; first += size)
                if (size > 7 || first % 11 == 0)
                    rows.push_back(chunk(sequence, first, std::min(size, length - first)));
            const Outputs result =
                run(weights, format, rows, {.page_tokens = 16, .padding_tokens = 5});
            std::int64_t at = 0;
            for (const Row& row : rows) {
                ASSERT_TRUE(
                    same_bits(result, at * heads, whole, row.first * heads, row.tokens * heads))
                    << name_of(format) << ", chunk of " << size << " at " << row.first;
                at += row.tokens;
            }
        }
    }
}

// Heads of 256 and 256 columns go through tiles of 80 keys.
TEST_F(MlaCudaDecompressed, WideHeads) {
    const auto oracle = make_reference_kernels();
    Random random(10);
    const int heads = 3;
    const int length = 400;
    const Weights weights(random, heads, kWideHead);
    const Sequence sequence(random, length, heads, kWideHead.query());
    for (const KvFormat format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_token}) {
        const Arrays arrays(format, DType::bf16, {chunk(sequence, 0, length)}, {});
        const Outputs whole = run(weights, arrays);
        const bool fp8 = format != KvFormat::bf16;
        EXPECT_TRUE(close_to(whole, decompressed_on_host(*oracle, weights.call(arrays)),
                             fp8 ? 4e-3 : 3.5e-3, 20))
            << name_of(format);
        for (const int size : {7, 80, 128, 200}) {
            std::vector<Row> rows;
            for (int first = 0; first < length; first += size)
                rows.push_back(chunk(sequence, first, std::min(size, length - first)));
            const Outputs result =
                run(weights, Arrays(format, DType::bf16, rows, {.page_tokens = 16}));
            EXPECT_TRUE(same_bits(result, 0, whole, 0, length * heads))
                << name_of(format) << ", chunks of " << size;
        }
    }
}

// Launches one behind the other, over one scratch (c_api_test.cpp has those of absorbed rows).
TEST_F(MlaCudaDecompressed, EveryLaunchGivesTheSameBits) {
    Random random(15);
    const Weights weights(random, 16);
    const Sequence sequence(random, 1500, 16, kQuery);
    for (const KvFormat format : kCudaFormats) {
        const Arrays arrays(format, query_dtype(format),
                            {chunk(sequence, 0, 1500), chunk(sequence, 700, 513)}, {});
        const DeviceArrays device(arrays);
        DecompressedCall call = weights.call(arrays);
        weights.place(call);
        device.point(call);
        Arena scratch = scratch_for(call);
        const auto packed = static_cast<std::size_t>(call.rows.token_end * call.heads);
        const OnDevice<float> lse(std::vector<float>(packed, -5.0f));
        call.lse = lse.data();
        call.out_dtype = DType::f32;
        const std::vector<float> unwritten(packed * static_cast<std::size_t>(weights.dims.value));
        std::vector<std::unique_ptr<OnDevice<float>>> outs;
        for (int i = 0; i < 40; ++i) outs.push_back(std::make_unique<OnDevice<float>>(unwritten));
        for (const auto& out : outs) {
            call.out = reinterpret_cast<std::byte*>(out->data());
            const Arena::Mark mark(scratch);
            OpContext with_scratch{*gpu, scratch, stream};
            EXPECT_TRUE(kernels->decompressed(with_scratch, call));
        }
        expect_cuda(cudaStreamSynchronize(stream));
        const std::vector<float> first = outs.front()->download();
        std::ptrdiff_t differ = 0;
        for (const auto& out : outs)
            if (std::memcmp(out->download().data(), first.data(), first.size() * 4) != 0) ++differ;
        EXPECT_EQ(differ, 0) << "of 40 launches, " << name_of(format);
    }
}

// Capacities decide how many rows and heads share the scratch: 40,000 slots a row leave room for
// one row and ten of these heads at a time.
TEST_F(MlaCudaDecompressed, GroupsOfRowsAndHeadsGiveTheSameBits) {
    Random random(9);
    const int heads = 20;
    const Weights weights(random, heads);
    const Sequence sequence(random, 300, heads, kQuery);
    for (const KvFormat format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_token}) {
        Arrays arrays(format, DType::bf16,
                      {chunk(sequence, 10, 150), chunk(sequence, 299, 1), chunk(sequence, 0, 130)},
                      {.padding_tokens = 3});
        const Outputs expected = run(weights, arrays);
        arrays.rows.max_kv_len = 40000;
        EXPECT_TRUE(all_same_bits(run(weights, arrays), expected)) << name_of(format);
    }
}

TEST_F(MlaCudaDecompressed, GarbageDoesNotLeak) {
    Random random(5);
    const Weights weights(random, 2);
    const Sequence sequence(random, 270, 2, kQuery);
    std::vector<Row> rows;
    for (const int keys : {1, 15, 16, 33, 64, 270})
        rows.push_back(chunk(sequence, keys - std::min(keys, 20), std::min(keys, 20)));
    for (const KvFormat format : kCudaFormats) {
        const Outputs expected = run(weights, format, rows, {.poison = 0});
        for (const std::uint32_t poison : {0xffffffffu, 0x7fc07fc0u, 0x7f807f80u, 0x7c007c00u})
            EXPECT_TRUE(all_same_bits(run(weights, format, rows, {.poison = poison}), expected))
                << name_of(format);
        // The last key is hidden from all but the last token; its value may overflow bf16.
        Sequence hostile = sequence;
        std::fill(hostile.key.end() - kKey, hostile.key.end(),
                  format == KvFormat::fp16 ? 65504.0f : 3.3e38f);
        std::vector<Row> hidden = rows;
        hidden.back().sequence = &hostile;
        const std::int64_t others = (1 + 15 + 16 + 20 + 20 + 19) * 2;
        EXPECT_TRUE(same_bits(run(weights, format, hidden), 0, expected, 0, others))
            << name_of(format);
    }
}

TEST_F(MlaCudaDecompressed, NothingVisibleNothingOut) {
    Random random(6);
    const Weights weights(random, 2);
    const Sequence sequence(random, 5, 2, kQuery);
    // Tokens 0, 1, 2 see nothing (K = 0), nor 3, 4, 5 (K < n), nor the padding 8, 9, 10.
    const Outputs result =
        run(weights, KvFormat::bf16, {{&sequence, 0, 3, 0}, {&sequence, 0, 5, 2}});
    for (const std::size_t token : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u, 10u})
        for (std::size_t packed = 2 * token; packed < 2 * token + 2; ++packed) {
            EXPECT_EQ(result.lse[packed], -std::numeric_limits<float>::infinity()) << token;
            for (std::size_t c = 0; c < kValue; ++c)
                ASSERT_EQ(std::bit_cast<std::uint32_t>(result.out[packed * kValue + c]), 0u);
        }
    EXPECT_GT(result.lse[14], -std::numeric_limits<float>::infinity());
}

TEST_F(MlaCudaDecompressed, OtherMasksGiveNan) {
    Random random(7);
    const Weights weights(random, 2);
    const Sequence sequence(random, 30, 2, kQuery);
    Arrays arrays(KvFormat::bf16, DType::bf16, {chunk(sequence, 0, 9), chunk(sequence, 20, 10)},
                  {});
    const Outputs expected = run(weights, arrays);
    arrays.mask[0] = MaskKind::full;
    const Outputs result = run(weights, arrays);
    for (std::size_t i = 0; i < 9 * 2 * kValue; ++i) ASSERT_TRUE(std::isnan(result.out[i]));
    EXPECT_TRUE(std::isnan(result.lse[0]));
    EXPECT_TRUE(same_bits(result, 9 * 2, expected, 9 * 2, (10 + 3) * 2));
}

TEST_F(MlaCudaDecompressed, ReplayWithOtherLengths) {
    Random random(8);
    const Weights weights(random, 2);
    const Sequence sequence(random, 600, 2, kQuery);
    const auto arrays_of = [&](int padding, const std::vector<Row>& rows) {
        return std::make_unique<Arrays>(KvFormat::bf16, DType::bf16, rows,
                                        Layout{.padding_tokens = padding});
    };
    // Capacities of the first serve the others: 3 rows, 330 tokens, 300 of them in a row.
    const std::unique_ptr<Arrays> steps[] = {
        arrays_of(0, {chunk(sequence, 300, 300), chunk(sequence, 580, 20), chunk(sequence, 9, 10)}),
        arrays_of(319, {chunk(sequence, 0, 1), chunk(sequence, 100, 10), {&sequence, 0, 0, 0}}),
        arrays_of(29, {chunk(sequence, 7, 1), chunk(sequence, 250, 270), chunk(sequence, 3, 30)})};
    DeviceArrays device(*steps[0]);
    DecompressedCall call = weights.call(*steps[0]);
    weights.place(call);
    device.point(call);
    const auto packed = static_cast<std::size_t>(call.rows.token_end * 2);
    OnDevice<float> out(std::vector<float>(packed * kValue, -5.0f));
    OnDevice<float> lse(std::vector<float>(packed, -5.0f));
    call.out = reinterpret_cast<std::byte*>(out.data());
    call.out_dtype = DType::f32;
    call.lse = lse.data();

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    Arena scratch = scratch_for(call);
    OpContext with_scratch{*gpu, scratch, stream};
    expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const Expected<void> done = kernels->decompressed(with_scratch, call);
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    expect_cuda(cudaStreamEndCapture(stream, &graph));
    expect_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (const int step : {0, 1, 2, 0}) {
        const Arrays& arrays = *steps[step];
        // The graph holds the first step's stride of the block table.
        std::vector<std::int32_t> table(
            static_cast<std::size_t>(call.rows.rows * call.rows.block_stride), -1);
        for (std::int64_t row = 0; row < call.rows.rows; ++row)
            for (std::int64_t entry = 0; entry < arrays.rows.block_stride; ++entry)
                table[static_cast<std::size_t>(row * call.rows.block_stride + entry)] =
                    arrays.block_table[static_cast<std::size_t>(row * arrays.rows.block_stride +
                                                                entry)];
        device.upload(arrays);
        device.block_table.upload(table);
        expect_cuda(cudaGraphLaunch(replay, stream));
        expect_cuda(cudaStreamSynchronize(stream));
        ASSERT_EQ(arrays.rows.token_end, call.rows.token_end);
        EXPECT_TRUE(all_same_bits({kValue, out.download(), lse.download()}, run(weights, arrays)))
            << "step " << step;
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace espalier::mla::simple
