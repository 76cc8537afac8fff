// SPDX-License-Identifier: Apache-2.0
// Absorbed attention: guarantees 1–4 and 8 of docs/mla_contract.md and its accuracy, on the oracle
// and every CPU variant.
#include <limits>

#include "base/buffer.hpp"
#include "mla/implementation.hpp"

namespace espalier::mla {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

class MlaAbsorbed : public testing::TestWithParam<Implementation> {
  protected:
    KvFormat format() const { return GetParam().format; }
    std::unique_ptr<Kernels> kernels = GetParam().make();
    std::unique_ptr<Kernels> oracle = make_reference_kernels();
};
INSTANTIATE_TEST_SUITE_P(All, MlaAbsorbed, testing::ValuesIn(all_implementations()),
                         implementation_name);

void expect_nothing(const Result& result, std::int64_t token) {
    for (int head = 0; head < result.heads; ++head) {
        EXPECT_EQ(result.lse_of(token, head), kMinusInfinity) << "token " << token;
        for (std::int64_t c = 0; c < result.columns; ++c)
            ASSERT_EQ(std::bit_cast<std::uint32_t>(result.row(token, head)[c]), 0u)
                << "token " << token;
    }
}

TEST_P(MlaAbsorbed, NothingVisibleNothingOut) {
    Random random(1);
    const int heads = 3;
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::full, heads, 2, 0));
    rows.push_back(make_row(random, MaskKind::causal, heads, 4, 0));
    rows.push_back(
        make_row(random, MaskKind::causal, heads, 7, 3));  // the first 4 tokens come before slot 0
    rows.push_back(make_row(random, MaskKind::tree, heads, 3, 3));  // words of 0 and no history
    rows.push_back(make_row(random, MaskKind::dense, heads, 2, 90));
    punch_holes(random, rows.back(), 0.0);
    for (const int threads : {1, 3}) {
        Batch batch(format(), heads, rows, {});
        const Result result = run_absorbed(*kernels, batch, threads);
        for (const std::int64_t token :
             {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19, 20})
            expect_nothing(result, token);  // the last three are padding
        for (const std::int64_t token : {10, 11, 12})
            EXPECT_GT(result.lse_of(token, 0), kMinusInfinity);
    }
}

TEST_P(MlaAbsorbed, GarbageDoesNotLeak) {
    Random random(2);
    const int heads = 5;
    std::vector<Row> rows = hostile_rows(random, heads, 8000);
    // A key that no token may see holds the largest numbers append can write.
    Row causal = make_row(random, MaskKind::causal, heads, 6, 40);
    Row dense = make_row(random, MaskKind::dense, heads, 3, 60);
    punch_holes(random, dense, 0.7);
    for (int i = 0; i < dense.tokens; ++i)
        dense.dense[static_cast<std::size_t>(i * dense.keys + 17)] = 0;
    rows.push_back(dense);
    rows.push_back(causal);
    const float largest = format() == KvFormat::fp16 ? 65504.0f : 3.38e38f;
    std::vector<Row> hidden = rows;
    for (std::int64_t c = 0; c < kKey; ++c) {
        const float value = random.chance(0.5) ? largest : -largest;
        hidden[hidden.size() - 2].key[static_cast<std::size_t>(17 * kKey + c)] = value;
        hidden.back().key[static_cast<std::size_t>(39 * kKey + c)] =
            value;  // only the last token sees it
    }
    for (const int page_tokens : {16, 32, 64, 128}) {
        Batch clean(format(), heads, rows, {.page_tokens = page_tokens, .poison = 0});
        const Result expected = run_absorbed(*kernels, clean);
        // All ones (NaN in every format), and one of: a quiet NaN, +inf, fp16 inf.
        const std::uint32_t second = page_tokens == 16   ? 0x7fc07fc0u
                                     : page_tokens == 32 ? 0x7f807f80u
                                                         : 0x7c007c00u;
        for (const std::uint32_t poison : {0xffffffffu, second}) {
            Batch dirty(format(), heads, rows, {.page_tokens = page_tokens, .poison = poison});
            EXPECT_TRUE(all_same_bits(run_absorbed(*kernels, dirty, 2), expected)) << page_tokens;
        }
        Batch holes(format(), heads, hidden, {.page_tokens = page_tokens});
        const Result result = run_absorbed(*kernels, holes);
        const std::int64_t seeing = holes.first_token(rows.size() - 1) + causal.tokens - 1;
        for (std::int64_t token = 0; token < seeing; ++token)
            ASSERT_TRUE(same_bits(result, token, expected, token)) << "token " << token;
    }
}

TEST_P(MlaAbsorbed, Bounds) {
    Random random(3);
    const int heads = 2;
    constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
    std::vector<Row> rows;
    for (const std::int64_t offset :
         {std::int64_t{-5}, std::int64_t{-151}, std::int64_t{40}, std::int64_t{299},
          std::int64_t{300}, kFar, kFar - 100, -kFar, -kFar - 1}) {
        rows.push_back(make_row(random, MaskKind::dense, heads, 3, 50));
        rows.back().malformed = true;
        rows.back().mask_offset = offset;
    }
    rows.push_back(make_row(random, MaskKind::dense, heads, 6, 50));
    punch_holes(random, rows.back(), 1.0);  // 300 bytes for all rows
    Batch batch(format(), heads, rows, {});
    const Result expected = run_absorbed(*oracle, batch);
    EXPECT_TRUE(close_to(run_absorbed(*kernels, batch), expected, accuracy_bound(format()), 10));
    for (int row = 4; row < 9; ++row)
        for (int i = 0; i < 3; ++i)
            expect_nothing(expected, batch.first_token(static_cast<std::size_t>(row)) + i);
    EXPECT_EQ(expected.lse_of(0, 0) > kMinusInfinity,
              true);  // from byte 0 on it is a mask like any other
}

TEST_P(MlaAbsorbed, CacheAbove2To31Elements) {
    Random random(4);
    Row row = make_row(random, MaskKind::causal, 4, 3, 150);
    std::vector<Row> rows;
    rows.push_back(std::move(row));
    Batch batch(format(), 4, rows, {});
    const Result expected = run_absorbed(*kernels, batch);
    const std::int64_t pages = (std::int64_t{1} << 31) / (64 * kKey) + 64;
    Expected<Buffer> memory =
        Buffer::host(static_cast<std::size_t>(pages * batch.kv().page_stride));
    ASSERT_TRUE(memory);  // untouched memory costs nothing
    const KvPages small = batch.kv();
    batch.kv().data = memory->data();
    batch.kv().page_count = pages;
    for (std::int64_t entry = 0; entry < 3; ++entry) {
        std::int32_t& page = batch.block_table()[static_cast<std::size_t>(entry)];
        const auto far = static_cast<std::int32_t>(pages - 1 - 2 * entry);
        std::memcpy(memory->data() + far * small.page_stride, small.data + page * small.page_stride,
                    static_cast<std::size_t>(small.page_stride));
        page = far;
    }
    EXPECT_TRUE(all_same_bits(run_absorbed(*kernels, batch), expected));
}

TEST_P(MlaAbsorbed, Deterministic) {
    Random random(5);
    const std::vector<Row> rows = hostile_rows(random, 12, 20000);
    Batch batch(format(), 12, rows, {});
    const Result expected = run_absorbed(*kernels, batch);
    for (const int threads : {1, 2, 3})
        EXPECT_TRUE(all_same_bits(run_absorbed(*kernels, batch, threads), expected)) << threads;
}

// One column carries the score, so it is exact, and what is tested is the softmax over a range of
// ±1e4.
TEST_P(MlaAbsorbed, OverflowSafeScores) {
    Random random(6);
    const int heads = 2;
    const float reach = format() == KvFormat::fp8_tensor ? 8.0f : 256.0f;
    std::vector<Row> rows;
    for (const int keys : {5, 64, 130, 1100}) {
        Row row = make_row(random, MaskKind::causal, heads, 2, keys);
        for (int c = 0; c < keys;
             ++c) {  // the latent's last column: rising, so that the maximum comes last
            const float step = static_cast<float>(c) / static_cast<float>(keys);
            row.key[static_cast<std::size_t>(c * kKey + kLatent)] = reach * (2.0f * step - 1.0f);
        }
        for (int packed = 0; packed < 2 * heads; ++packed)
            for (std::int64_t d = 0; d < kKey; ++d)
                row.query[static_cast<std::size_t>(packed * kKey + d)] =
                    d == kLatent ? (packed % 2 == 0 ? 16.0f : -16.0f) : 0.0f;
        rows.push_back(std::move(row));
    }
    Batch batch(format(), heads, rows, {});
    const float scale = 1e4f / (16.0f * reach);
    const Result expected = run_absorbed(*oracle, batch, 1, DType::f32, scale);
    EXPECT_GT(expected.lse_of(batch.first_token(3) + 1, 0),
              9500.0f);  // e4m3 keys end at 0.96 of the reach
    for (const int threads : {1, 3})
        EXPECT_TRUE(close_to(run_absorbed(*kernels, batch, threads, DType::f32, scale), expected,
                             accuracy_bound(format()), 1e4));
}

class MlaAbsorbedCpu : public MlaAbsorbed {};
INSTANTIATE_TEST_SUITE_P(Cpu, MlaAbsorbedCpu, testing::ValuesIn(cpu_implementations()),
                         implementation_name);

TEST_P(MlaAbsorbedCpu, Accuracy) {
    const DType out_dtype = query_dtype(format());
    for (const int heads : {1, 3, 12, 16, 40, 128}) {
        const auto seed = static_cast<std::uint64_t>(heads);
        for (const Spread spread : {Spread::normal, Spread::flat, Spread::peaked}) {
            if (spread != Spread::normal && heads % 8 == 4) continue;
            Random random(100 * seed + static_cast<std::uint64_t>(spread));
            const std::vector<Row> rows = hostile_rows(random, heads, 3000, spread);
            Batch batch(format(), heads, rows,
                        {.page_tokens = 16 << random.between(0, 3), .seed = seed});
            EXPECT_TRUE(close_to(run_absorbed(*kernels, batch, random.between(1, 3), out_dtype),
                                 run_absorbed(*oracle, batch), accuracy_bound(format(), spread),
                                 60))
                << heads << " heads, spread " << static_cast<int>(spread);
        }
    }
}

TEST_P(MlaAbsorbedCpu, LongRows) {
    Random random(7);
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::causal, 2, 3, 5000));
    rows.push_back(make_row(random, MaskKind::tree, 2, 4, 2049));
    grow_tree(random, rows.back(), Shape::star);
    rows.push_back(make_row(random, MaskKind::dense, 2, 2, 1300));
    punch_holes(random, rows.back(), 0.5);
    Batch batch(format(), 2, rows, {});
    // √5000 instead of √700 roundings in the sums: still below 1e-5.
    EXPECT_TRUE(close_to(run_absorbed(*kernels, batch, 2), run_absorbed(*oracle, batch),
                         accuracy_bound(format()), 10));
}

TEST_P(MlaAbsorbedCpu, EveryContextParallelRank) {
    Random random(8);
    const int heads = 3;
    for (const int world : {2, 3, 8}) {
        for (int rank = 0; rank < world; ++rank) {
            std::vector<Row> rows;
            for (const MaskKind mask : {MaskKind::causal, MaskKind::tree}) {
                for (const int global : {0, 1, 5, 64, 333}) {
                    const int local = global > rank ? (global - rank + world - 1) / world : 0;
                    Row row = make_row(random, mask, heads, 4, local);
                    row.global_keys = global;
                    if (mask == MaskKind::tree) grow_tree(random, row, Shape::deep_tail);
                    rows.push_back(std::move(row));
                }
            }
            Batch batch(format(), heads, rows, {.dcp_world = world, .dcp_rank = rank});
            EXPECT_TRUE(close_to(run_absorbed(*kernels, batch, 2), run_absorbed(*oracle, batch),
                                 accuracy_bound(format()), 10))
                << "rank " << rank << " of " << world;
        }
    }
}

}  // namespace
}  // namespace espalier::mla
