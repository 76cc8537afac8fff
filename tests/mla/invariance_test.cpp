// SPDX-License-Identifier: Apache-2.0
// Guarantee 5: a token's bits depend on its own q and its visible keys in order, and on nothing
// else.
#include "mla/implementation.hpp"

namespace espalier::mla {
namespace {

class MlaInvariance : public testing::TestWithParam<Implementation> {
  protected:
    KvFormat format() const { return GetParam().format; }
    Result run(const std::vector<Row>& rows, int heads, const Layout& layout = {},
               int threads = 1) const {
        Batch batch(format(), heads, rows, layout);
        return run_absorbed(*kernels, batch, threads);
    }
    std::unique_ptr<Kernels> kernels = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(Cpu, MlaInvariance, testing::ValuesIn(cpu_implementations()),
                         implementation_name);

TEST_P(MlaInvariance, RowAloneEqualsRowInAnyBatch) {
    for (const int heads : {1, 12, 16, 40}) {
        Random random(static_cast<std::uint64_t>(heads));
        std::vector<Row> rows = hostile_rows(random, heads, 15000);
        const Result together = run(rows, heads);
        std::vector<Row> reversed(rows.rbegin(), rows.rend());
        Batch other(format(), heads, reversed,
                    {.page_tokens = 16, .seed = 9, .padding_tokens = 21});
        const Result backwards = run_absorbed(*kernels, other, 3);
        std::int64_t first = 0;
        for (std::size_t b = 0; b < rows.size(); ++b) {
            const Result alone =
                run({rows[b]}, heads, {.page_tokens = 128, .padding_tokens = 0}, 2);
            for (int i = 0; i < rows[b].tokens; ++i) {
                ASSERT_TRUE(same_bits(alone, i, together, first + i))
                    << "row " << b << ", token " << i;
                ASSERT_TRUE(same_bits(backwards, other.first_token(rows.size() - 1 - b) + i,
                                      together, first + i));
            }
            first += rows[b].tokens;
        }
    }
}

// Few units and many keys: one worker folds everything, or several share the splits.
TEST_P(MlaInvariance, ThreadsAndSplits) {
    Random random(21);
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::causal, 3, 2, 2700));
    rows.push_back(make_row(random, MaskKind::causal, 3, 1, 40));
    rows.push_back(make_row(random, MaskKind::causal, 3, 2, 0));
    rows.push_back(make_row(random, MaskKind::full, 3, 7, 513));
    const Result one = run(rows, 3);
    for (const int threads : {2, 3})
        EXPECT_TRUE(all_same_bits(run(rows, 3, {}, threads), one)) << threads;
    // Alone it is split, among others it is not.
    const Result alone = run({rows[0]}, 3, {}, 3);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(alone, i, one, i));
}

TEST_P(MlaInvariance, Chunking) {
    Random random(22);
    const int heads = 3;
    const int keys = 260;
    const Row whole = make_row(random, MaskKind::causal, heads, 100, keys);
    const Result expected = run({whole}, heads);
    for (const int chunk : {1, 7, 64}) {
        std::vector<Row> chunks;
        for (int first = 0; first < whole.tokens; first += chunk) {
            Row row;
            row.tokens = row.tail = std::min(chunk, whole.tokens - first);
            row.keys = keys - whole.tokens + first + row.tokens;
            row.key.assign(whole.key.begin(), whole.key.begin() + row.keys * kKey);
            row.query.assign(whole.query.begin() + first * heads * kKey,
                             whole.query.begin() + (first + row.tokens) * heads * kKey);
            row.words.resize(static_cast<std::size_t>(row.tokens));
            chunks.push_back(std::move(row));
        }
        EXPECT_TRUE(all_same_bits(run(chunks, heads), expected)) << "chunks of " << chunk;
    }
}

TEST_P(MlaInvariance, ChainTreeEqualsCausal) {
    for (const int heads : {1, 16}) {
        Random random(23);
        std::vector<Row> causal;
        std::vector<Row> trees;
        for (const int keys : {3, 17, 60, 64, 127, 128, 129, 190, 513, 600}) {
            for (const int tokens : {1, 5, 33}) {
                if (heads == 16 && tokens == 33) continue;
                causal.push_back(make_row(random, MaskKind::causal, heads, tokens, keys));
                trees.push_back(causal.back());
                trees.back().mask = MaskKind::tree;
                grow_tree(random, trees.back(), Shape::chain);
            }
        }
        EXPECT_TRUE(all_same_bits(run(trees, heads), run(causal, heads))) << heads << " heads";
    }
}

TEST_P(MlaInvariance, EveryTokenEqualsItsCompactedRow) {
    for (const int heads : {1, 3, 16}) {
        Random random(24);
        for (const int keys : {20, 64, 100, 128, 191, 520, 576}) {
            if (heads == 3 && keys > 128) continue;
            if (heads == 16 && keys == 191 && GetParam().slow()) break;
            std::vector<Row> rows;
            rows.push_back(make_row(random, MaskKind::tree, heads, random.between(1, 16), keys));
            grow_tree(random, rows.back(), kShapes[random.between(1, 5)]);
            rows.push_back(make_row(random, MaskKind::dense, heads, 2, keys));
            punch_holes(random, rows.back(), 0.6);
            rows.push_back(make_row(random, MaskKind::causal, heads, 9, keys, Spread::peaked));
            // Columns of values so small that their sums underflow: a hidden key must not even turn
            // the sign of a zero.
            for (Row& row : rows)
                for (std::size_t at = 0; at < row.key.size(); ++at)
                    if (at % kKey % 7 == 0) row.key[at] *= 2e-38f;
            std::vector<Row> alone;
            for (const Row& row : rows)
                for (int i = 0; i < row.tokens; ++i) alone.push_back(compacted(row, heads, i));
            ASSERT_TRUE(all_same_bits(run(alone, heads), run(rows, heads, {.page_tokens = 32}, 2)))
                << heads << " heads, " << keys << " keys";
        }
    }
}

}  // namespace
}  // namespace espalier::mla
