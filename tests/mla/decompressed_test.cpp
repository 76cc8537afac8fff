// SPDX-License-Identifier: Apache-2.0
// Decompressed attention: accuracy against the oracle for every cache and weight type, and
// guarantees 1, 2, 4 and 5 (above all: the same prompt in any chunks gives the same bits).
#include <limits>

#include "mla/implementation.hpp"

namespace espalier::mla {
namespace {

// Random W_kv_b halves: any order of random numbers is a packed matrix, and the oracle says which.
class Weights {
  public:
    Weights(Random& random, DType dtype, int heads) {
        view_.dtype = dtype;
        view_.count = heads;
        view_.n = kNope;
        view_.k = kLatent;
        std::vector<float> packed(static_cast<std::size_t>(heads * kNope * kLatent));
        // Outputs of a latent row have variance 1; e4m3 keeps that in its scales.
        for (float& x : packed) x = random.normal() * (dtype == DType::e4m3 ? 60.0f : 0.0442f);
        data_ = narrowed(packed, dtype);
        scales_.resize(static_cast<std::size_t>(heads * kNope * 4));
        for (float& scale : scales_)
            scale = 0.0442f / 60.0f * static_cast<float>(random.between(1, 3)) / 2.0f;
        view_.data = data_.data();
        view_.scales = dtype == DType::e4m3 ? scales_.data() : nullptr;
    }
    const linalg::PackedView& view() const { return view_; }

  private:
    linalg::PackedView view_;
    std::vector<std::byte> data_;
    std::vector<float> scales_;
};

struct Prompt {
    Weights up_key;
    Weights up_value;
    int heads;

    Prompt(Random& random, DType dtype, int heads_)
        : up_key(random, dtype, heads_), up_value(random, dtype, heads_), heads(heads_) {}

    Row row(Random& random, int tokens, int keys) const {
        return make_row(random, MaskKind::causal, heads, tokens, keys, Spread::normal, kQuery);
    }
    Result run(const Kernels& kernels, KvFormat format, const std::vector<Row>& rows,
               const Layout& layout = {}, int threads = 1, DType out_dtype = DType::f32) const {
        Batch batch(format, heads, rows, layout, kQuery);
        Result result{kValue, heads, {}, {}};
        std::vector<std::byte> out(
            static_cast<std::size_t>(batch.tokens() * heads * kValue) * bytes_of(out_dtype),
            std::byte{0xff});
        result.lse.assign(static_cast<std::size_t>(batch.tokens() * heads), -123.0f);
        DecompressedCall call;
        call.rows = batch.view();
        call.heads = heads;
        call.q = batch.query();
        call.q_dtype = query_dtype(format);
        call.kv = batch.kv();
        call.up_key = up_key.view();
        call.up_value = up_value.view();
        call.scale = 0.0721687836f;
        call.out = out.data();
        call.out_dtype = out_dtype;
        call.lse = result.lse.data();
        ThreadPool pool(threads);
        Arena arena = exact_arena(kernels.scratch_bytes(capacities(call.rows, heads, threads)));
        OpContext context{pool, arena};
        const Expected<void> done = kernels.decompressed(context, call);
        EXPECT_TRUE(done) << (done ? "" : done.error().message);
        result.out = widened(out, out_dtype);
        return result;
    }
};

class MlaDecompressed : public testing::TestWithParam<Implementation> {
  protected:
    KvFormat format() const { return GetParam().format; }
    DType usual_weights() const { return format() == KvFormat::bf16 ? DType::bf16 : DType::f32; }
    std::unique_ptr<Kernels> kernels = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(Cpu, MlaDecompressed, testing::ValuesIn(cpu_implementations()),
                         implementation_name);

// f32: as for the absorbed entry, with 512 more roundings in each key and value (√512·2^-25 ≈
// 0.7e-6). 16-bit: the oracle rounds K_nope and V to bf16 after a sum in double, the kernels after
// one in f32; one key element in ~2^9 falls to the other side (f32 sums of 512 terms err by 2^-19
// of a bf16 step's 2^-9 or so), each worth 2^-8 of itself: 1e-4 in all.
TEST_P(MlaDecompressed, Accuracy) {
    const auto oracle = make_reference_kernels();
    for (const DType weights : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
        Random random(31);
        const Prompt prompt(random, weights, 2);
        std::vector<Row> rows;
        rows.push_back(prompt.row(random, 20, 20));
        rows.push_back(prompt.row(random, 0, 5));
        rows.push_back(prompt.row(random, 3, 270));
        rows.push_back(prompt.row(random, 9, 4));
        const Result expected = prompt.run(*oracle, format(), rows);
        EXPECT_TRUE(close_to(
            prompt.run(*kernels, format(), rows, {.page_tokens = 16 << random.between(0, 3)}, 2,
                       query_dtype(format())),
            expected, accuracy_bound(format()), 20))
            << espalier::name_of(weights) << " weights";
    }
}

TEST_P(MlaDecompressed, ChunksThreadsAndPagesGiveTheSameBits) {
    Random random(32);
    const int heads = 2;
    const int tokens = GetParam().slow() ? 290 : 530;
    const Prompt prompt(random, usual_weights(), heads);
    const Row whole = prompt.row(random, tokens, tokens);
    const Result expected = prompt.run(*kernels, format(), {whole});
    const auto part = [&](int first, int count) {
        Row row;
        row.tokens = row.tail = count;
        row.keys = first + count;
        row.key.assign(whole.key.begin(), whole.key.begin() + row.keys * kKey);
        row.query.assign(whole.query.begin() + first * heads * kQuery,
                         whole.query.begin() + (first + count) * heads * kQuery);
        row.words.resize(static_cast<std::size_t>(count));
        return row;
    };
    for (const int chunk : {7, 64, 2048}) {
        std::vector<Row> chunks;
        for (int first = 0; first < tokens; first += chunk)
            if (chunk > 7 || first % 5 == 0)  // every fifth chunk of 7 is enough
                chunks.push_back(part(first, std::min(chunk, tokens - first)));
        const Result result =
            prompt.run(*kernels, format(), chunks, {.page_tokens = 16, .padding_tokens = 5}, 3);
        std::int64_t at = 0;
        for (const Row& row : chunks)
            for (int i = 0; i < row.tokens; ++i, ++at)
                ASSERT_TRUE(same_bits(result, at, expected, row.keys - row.tokens + i))
                    << "chunks of " << chunk;
    }
    std::vector<Row> singles;
    for (const int token : {0, 1, 15, 16, 17, 100, 254, 255, 256, 257, 511, 512, 529})
        if (token < tokens) singles.push_back(part(token, 1));
    const Result result = prompt.run(*kernels, format(), singles, {}, 2);
    for (std::size_t i = 0; i < singles.size(); ++i)
        ASSERT_TRUE(same_bits(result, static_cast<std::int64_t>(i), expected, singles[i].keys - 1));
}

TEST_P(MlaDecompressed, GarbageDoesNotLeak) {
    Random random(33);
    const Prompt prompt(random, usual_weights(), 2);
    std::vector<Row> rows;
    for (const int keys : {1, 15, 16, 33, 270})
        rows.push_back(prompt.row(random, std::min(keys, 20), keys));
    const Result expected = prompt.run(*kernels, format(), rows, {.poison = 0});
    for (const std::uint32_t poison : {0xffffffffu, 0x7fc07fc0u, 0x7f807f80u, 0x7c007c00u})
        EXPECT_TRUE(
            all_same_bits(prompt.run(*kernels, format(), rows, {.poison = poison}, 2), expected));
    // The last key of a row is hidden from all but its last token, whatever append can write there.
    std::vector<Row> hidden = rows;
    const float largest = format() == KvFormat::fp16 ? 65504.0f : 1e30f;
    std::fill(hidden.back().key.end() - kKey, hidden.back().key.end(), largest);
    const Result result = prompt.run(*kernels, format(), hidden);
    for (std::int64_t token = 0; token < 1 + 15 + 16 + 20 + 19; ++token)
        ASSERT_TRUE(same_bits(result, token, expected, token)) << token;
}

TEST_P(MlaDecompressed, NothingVisibleNothingOut) {
    Random random(34);
    const Prompt prompt(random, usual_weights(), 2);
    const Result result =
        prompt.run(*kernels, format(), {prompt.row(random, 3, 0), prompt.row(random, 5, 2)});
    for (const std::int64_t token : {0, 1, 2, 3, 4, 5, 8, 9, 10})
        for (int head = 0; head < 2; ++head) {
            EXPECT_EQ(result.lse_of(token, head), -std::numeric_limits<float>::infinity());
            for (std::int64_t c = 0; c < kValue; ++c) ASSERT_EQ(result.row(token, head)[c], 0.0f);
        }
    EXPECT_GT(result.lse_of(7, 0), -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace espalier::mla
