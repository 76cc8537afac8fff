// SPDX-License-Identifier: Apache-2.0
// The generator makes what the contract is afraid of, and the oracle agrees with itself: ranks of a
// context-parallel group merge to the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "conformance/compare.hpp"

namespace espalier::conformance {
namespace {

using namespace mla;

TEST(ConformanceGenerator, MakesEveryKindOfRow) {
    std::set<MaskKind> masks;
    std::set<int> remainders;
    bool deep = false, high_byte = false, malformed = false, full_window = false, longest = false;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        Random random(seed);
        for (const Row& row :
             hostile_rows(random, 1, 20000, {.longest = 1500, .malformed = true})) {
            masks.insert(row.mask);
            remainders.insert(row.keys % 16);
            deep = deep || (row.mask == MaskKind::tree && row.tail > row.tokens);
            high_byte = high_byte || std::any_of(row.dense.begin(), row.dense.end(),
                                                 [](std::uint8_t byte) { return byte >= 128; });
            malformed = malformed || row.malformed;
            full_window = full_window || row.tokens == 64;
            longest = longest || row.keys > 1400;
            EXPECT_LE(row.tail, 64);
        }
    }
    EXPECT_EQ(masks.size(), 4u);
    EXPECT_EQ(remainders.size(), 16u);
    EXPECT_TRUE(deep && high_byte && malformed && full_window && longest);
}

TEST(ConformanceGenerator, LengthsLieAtPagesAndTiles) {
    Random random(5);
    int below = 0, at = 0, above = 0;
    for (int count = 0; count < 3000; ++count) {
        const int length = hostile_length(random, kLongestRow);
        EXPECT_TRUE(length >= 0 && length <= kLongestRow);
        below += length % 128 == 127;
        at += length % 128 == 0;
        above += length % 128 == 1;
    }
    for (const int count : {below, at, above}) EXPECT_GT(count, 100);
}

// Keys dealt round robin over W ranks, each rank's output weighted by its exp(lse).
TEST(ConformanceOracle, RanksMergeToTheWhole) {
    CpuDevice host(2);
    for (const int world : {2, 3, 8}) {
        for (const MaskKind mask : {MaskKind::causal, MaskKind::tree}) {
            Random random(static_cast<std::uint64_t>(world));
            Row whole = make_row(random, mask, 2, 5, 41);
            if (mask == MaskKind::tree) grow_tree(random, whole, Shape::deep_tail);
            const auto expected = oracle_absorbed(host, Batch(KvFormat::f32, 2, {whole}, {}));
            ASSERT_TRUE(expected);
            std::vector<Result> parts;
            for (int rank = 0; rank < world; ++rank) {
                Row part = whole;
                part.key.clear();
                part.keys = 0;
                for (int slot = rank; slot < whole.keys; slot += world, ++part.keys)
                    part.key.insert(part.key.end(), whole.key.begin() + slot * kKey,
                                    whole.key.begin() + (slot + 1) * kKey);
                const auto result = oracle_absorbed(
                    host, Batch(KvFormat::f32, 2, {part}, {.dcp_world = world, .dcp_rank = rank}));
                ASSERT_TRUE(result);
                parts.push_back(*result);
            }
            for (std::int64_t token = 0; token < 5; ++token)
                for (int head = 0; head < 2; ++head) {
                    const double lse = expected->lse_of(token, head);
                    for (const int column : {0, 17, 511}) {
                        double merged = 0.0;
                        for (const Result& part : parts)
                            merged += std::exp(part.lse_of(token, head) - lse) *
                                      static_cast<double>(part.row(token, head)[column]);
                        // lse is rounded to f32: 2^-22 of a weight, and as much of the output.
                        EXPECT_NEAR(merged, expected->row(token, head)[column], 1e-5);
                    }
                }
        }
    }
}

}  // namespace
}  // namespace espalier::conformance
