// SPDX-License-Identifier: Apache-2.0
// Hits are exact: by content of the page and of everything before it, whatever the hash does.
#include "cache/prefix_index.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/check.hpp"
#include "base/random.hpp"

namespace espalier::cache {
namespace {

using Tokens = std::array<std::int32_t, kPageTokens>;

std::uint64_t constant_hash(std::uint64_t, const PageKey&) { return 7; }
// Forgets the parent, so that equal pages after different beginnings collide.
std::uint64_t parentless_hash(std::uint64_t, const PageKey& key) { return hash_page(0, key); }

Tokens counting_from(std::int32_t first) {
    Tokens tokens;
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

PageKey key_of(const Tokens& tokens, PageId parent = kNullPage) {
    return PageKey{parent, 0, Form::absorbed, tokens};
}

class EveryHash : public testing::TestWithParam<PrefixHash> {};
INSTANTIATE_TEST_SUITE_P(PrefixIndex, EveryHash,
                         testing::Values(&hash_page, &constant_hash, &parentless_hash));

TEST_P(EveryHash, OneDifferingTokenIsNoHit) {
    PrefixIndex index(4, 0, GetParam());
    const Tokens tokens = counting_from(5);
    ASSERT_EQ(index.insert(2, key_of(tokens)), 2);
    EXPECT_EQ(index.find(key_of(tokens)), 2);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        Tokens other = tokens;
        other[i] = -other[i];
        EXPECT_EQ(index.find(key_of(other)), kNullPage) << "token " << i;
    }
}

TEST_P(EveryHash, SaltFormAndParentKeepEqualTokensApart) {
    PrefixIndex index(16, 0, GetParam());
    const Tokens tokens = counting_from(0);
    std::vector<PageKey> keys;
    ASSERT_EQ(index.insert(14, key_of(counting_from(100))), 14);
    ASSERT_EQ(index.insert(15, key_of(counting_from(200))), 15);
    for (const PageId parent : {kNullPage, PageId{14}, PageId{15}})
        for (const std::uint64_t salt : {0ull, 1ull})
            for (const Form form : {Form::absorbed, Form::decompressed})
                keys.push_back(PageKey{parent, salt, form, tokens});
    for (std::size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(index.find(keys[i]), kNullPage);
        EXPECT_EQ(index.insert(static_cast<PageId>(i + 1), keys[i]), static_cast<PageId>(i + 1));
    }
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(index.find(keys[i]), static_cast<PageId>(i + 1));
    EXPECT_EQ(index.children(14), 4);
}

TEST_P(EveryHash, EqualContentIsListedOnce) {
    PrefixIndex index(4, 0, GetParam());
    const Tokens tokens = counting_from(0);
    EXPECT_EQ(index.insert(1, key_of(tokens)), 1);
    EXPECT_EQ(index.insert(2, key_of(tokens)), 1);
    EXPECT_FALSE(index.contains(2));
    EXPECT_EQ(index.size(), 1);
    index.erase(1);
    EXPECT_EQ(index.find(key_of(tokens)), kNullPage);
    EXPECT_EQ(index.insert(2, key_of(tokens)), 2);
}

// Any order of leaving a shared bucket leaves the others in it.
TEST_P(EveryHash, ErasingKeepsTheRestFindable) {
    Random random(3);
    constexpr PageId kCount = 40;
    PrefixIndex index(kCount + 1, 0, GetParam());
    std::set<PageId> listed;
    for (int step = 0; step < 4000; ++step) {
        const PageId page = random.between(1, kCount);
        if (listed.erase(page) > 0) {
            index.erase(page);
        } else {
            ASSERT_EQ(index.insert(page, key_of(counting_from(page))), page);
            listed.insert(page);
        }
        const PageId probe = random.between(1, kCount);
        ASSERT_EQ(index.find(key_of(counting_from(probe))), listed.count(probe) ? probe : 0);
        ASSERT_EQ(index.size(), static_cast<std::int64_t>(listed.size()));
    }
}

TEST(PrefixIndex, AParentLeavesAfterItsChildren) {
    PrefixIndex index(4);
    const Tokens tokens = counting_from(0);
    index.insert(1, key_of(tokens));
    index.insert(2, key_of(tokens, 1));
    EXPECT_THROW(index.erase(1), CheckFailure);
    index.erase(2);
    index.erase(1);
    EXPECT_THROW(index.erase(1), CheckFailure);
    EXPECT_THROW(index.find(key_of(tokens, 1)), CheckFailure);
}

TEST(PrefixIndex, TheNullPageIsNeverListed) {
    PrefixIndex index(4);
    const Tokens tokens = counting_from(0);
    EXPECT_THROW(index.insert(kNullPage, key_of(tokens)), CheckFailure);
    EXPECT_THROW(index.insert(4, key_of(tokens)), CheckFailure);
    EXPECT_THROW(index.insert(-1, key_of(tokens)), CheckFailure);
}

// 16,384 keys that differ in one place each: with 64 bits no two should meet (chance 7e-12), and
// the low bits, which pick the bucket, should spread as thrown balls do (63.2 % of them used).
TEST(PrefixIndex, TheHashSpreads) {
    std::set<std::uint64_t> values;
    std::set<std::uint64_t> buckets;
    constexpr int kKeys = 1 << 14;
    for (int i = 0; i < kKeys; ++i) {
        Tokens tokens{};
        tokens[static_cast<std::size_t>(i % kPageTokens)] = i / kPageTokens + 1;
        const std::uint64_t value = hash_page(0, key_of(tokens));
        values.insert(value);
        buckets.insert(value % kKeys);
    }
    EXPECT_EQ(values.size(), static_cast<std::size_t>(kKeys));
    // Standard deviation of the used buckets is below 0.5·√16384 = 64: ten of them.
    EXPECT_NEAR(static_cast<double>(buckets.size()), 0.632 * kKeys, 640);
}

}  // namespace
}  // namespace espalier::cache
