// SPDX-License-Identifier: Apache-2.0
#include "batch/captured_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/cpu_device.hpp"

namespace espalier::batch {
namespace {

constexpr StepCapacity kMost{.absorbed_tokens = 100,
                             .decompressed_tokens = 100,
                             .absorbed_rows = 12,
                             .decompressed_rows = 12,
                             .gather = 40,
                             .max_q_len = 100,
                             .max_kv_len = 4096,
                             .table_rows = 12,
                             .block_stride = 64,
                             .total_splits = 77};

constexpr std::int64_t kAll = 2048;

TEST(TokenBuckets, HoldWhatTheyAreForAndLittleMore) {
    for (std::int64_t tokens = 1; tokens <= kAll; ++tokens) {
        const std::int64_t bucket = token_bucket(tokens);
        EXPECT_GE(bucket, tokens);
        const std::int64_t most = tokens <= 16              ? 2 * tokens - (tokens > 1)
                                  : tokens <= kCommonTokens ? tokens + tokens / 2
                                                            : tokens + tokens / 4;
        EXPECT_LE(bucket, most) << tokens;
        EXPECT_EQ(token_bucket(bucket), bucket);
        EXPECT_EQ(token_buckets_to(tokens).back(), bucket);
    }
    EXPECT_EQ(token_bucket(kAll + 1), 0);
    EXPECT_EQ(token_buckets_to(1 << 20).back(), kAll);
    EXPECT_TRUE(token_buckets_to(0).empty());
}

TEST(CapturedCapacity, OfAbsorbedTokensDependsOnThemAndOnWhetherRowsAreLonger) {
    StepCapacity need{.absorbed_tokens = 5,
                      .absorbed_rows = 2,
                      .gather = 3,
                      .max_q_len = 4,
                      .max_kv_len = 70,
                      .table_rows = 2,
                      .block_stride = 2,
                      .total_splits = 77};
    const StepCapacity padded = captured_capacity(need, kMost, kAll);
    const StepCapacity want{.absorbed_tokens = 8,
                            .absorbed_rows = 8,
                            .gather = 8,
                            .max_q_len = 8,
                            .max_kv_len = 4096,
                            .table_rows = 12,
                            .block_stride = 64,
                            .total_splits = 77};
    EXPECT_EQ(padded, want);
    EXPECT_TRUE(padded.check_holds(need));
    EXPECT_TRUE(is_captured(padded, kMost, kAll));
    EXPECT_FALSE(is_captured(need, kMost, kAll));
    need.max_q_len = 2;
    EXPECT_EQ(captured_capacity(need, kMost, kAll), want);
    need.max_q_len = 1;
    StepCapacity short_rows = want;
    short_rows.max_q_len = 1;
    EXPECT_EQ(captured_capacity(need, kMost, kAll), short_rows);
    EXPECT_NE(capacity_key(short_rows, kMost), capacity_key(want, kMost));
    need.max_q_len = 4;
    need.absorbed_tokens = 97;  // the bucket of 128 would be beyond the largest batch
    EXPECT_EQ(captured_capacity(need, kMost, kAll).absorbed_tokens, 100);
    EXPECT_EQ(captured_capacity(need, kMost, kAll).absorbed_rows, 12);
    EXPECT_EQ(captured_capacity(need, kMost, kAll).gather, 40);
    EXPECT_TRUE(is_captured(captured_capacity(need, kMost, kAll), kMost, kAll));
    EXPECT_EQ(captured_capacity(need, kMost, 64), need);
    EXPECT_FALSE(is_captured(need, kMost, 64));
}

constexpr StepCapacity kLarge{.absorbed_tokens = 2048,
                              .decompressed_tokens = 2048,
                              .absorbed_rows = 128,
                              .decompressed_rows = 128,
                              .gather = 512,
                              .max_q_len = 2048,
                              .max_kv_len = 100'000,
                              .table_rows = 128,
                              .block_stride = 1563,
                              .total_splits = 9000};

TEST(CapturedCapacity, OfPromptsIsSmallInRowsAndSlots) {
    const StepCapacity need{.absorbed_tokens = 70,
                            .decompressed_tokens = 500,
                            .absorbed_rows = 33,
                            .decompressed_rows = 2,
                            .gather = 34,
                            .max_q_len = 256,
                            .max_kv_len = 900,
                            .table_rows = 34,
                            .block_stride = 15,
                            .total_splits = 9000};
    const StepCapacity want{.absorbed_tokens = 96,
                            .decompressed_tokens = 512,
                            .absorbed_rows = 96,
                            .decompressed_rows = 8,
                            .gather = 96,
                            .max_q_len = 512,
                            .max_kv_len = 1024,
                            .table_rows = 128,
                            .block_stride = 1563,
                            .total_splits = 9000};
    EXPECT_EQ(captured_capacity(need, kLarge, kAll), want);
    EXPECT_TRUE(is_captured(want, kLarge, kAll));
    const auto changed = [&](auto change) {
        StepCapacity other = need;
        change(other);
        return captured_capacity(other, kLarge, kAll);
    };
    // Keys and values go to rows × slots places, of which there are 65,536.
    EXPECT_EQ(changed([](StepCapacity& of) { of.max_kv_len = 30'000; }).decompressed_rows, 2);
    EXPECT_EQ(changed([](StepCapacity& of) { of.max_kv_len = 90'000; }).decompressed_rows, 2)
        << "one row of all slots does not hold two: as it is";
    EXPECT_EQ(changed([](StepCapacity& of) {
                  of.absorbed_tokens = of.absorbed_rows = 0;
                  of.gather = 2;
              }).absorbed_tokens,
              16);
    EXPECT_FALSE(
        is_captured(changed([](StepCapacity& of) { of.decompressed_rows = 9; }), kLarge, kAll));
    EXPECT_FALSE(is_captured(changed([](StepCapacity& of) { of.gather = 97; }), kLarge, kAll));
    // 128 of one form and 2,048 of the other are more than a step may have.
    EXPECT_FALSE(is_captured(changed([](StepCapacity& of) {
                                 of.absorbed_tokens = 100;
                                 of.decompressed_tokens = 1900;
                             }),
                             kLarge, 1 << 20));
}

// Steps that one launch of attention will do for are recorded without the others.
TEST(CapturedCapacity, OfFewSplitsIsApartWhereTokensCouldHaveMore) {
    StepCapacity need{.absorbed_tokens = 64,
                      .absorbed_rows = 64,
                      .gather = 64,
                      .max_q_len = 1,
                      .max_kv_len = 70'000,
                      .table_rows = 64,
                      .block_stride = 1094,
                      .total_splits = 900};
    const StepCapacity few = captured_capacity(need, kLarge, kAll);
    EXPECT_EQ(few.total_splits, 900);
    need.total_splits = 901;
    const StepCapacity many = captured_capacity(need, kLarge, kAll);
    EXPECT_EQ(many.total_splits, 9000);
    EXPECT_NE(capacity_key(few, kLarge), capacity_key(many, kLarge));
    need.absorbed_tokens = need.absorbed_rows = 4;  // 196 splits each, at the most
    need.gather = 4;
    for (const std::int64_t splits : {1, 700}) {
        need.total_splits = splits;
        EXPECT_EQ(captured_capacity(need, kLarge, kAll).total_splits, 9000);
    }
}

// Any need that is padded is held, padding twice is padding once, and keys tell capacities apart.
TEST(CapturedCapacity, HoldsItsNeedAndHasAKeyOfItsOwn) {
    std::map<std::int64_t, StepCapacity> by_key;
    std::mt19937 random(5);
    const auto below = [&](std::int64_t limit) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
    };
    for (int round = 0; round < 20'000; ++round) {
        StepCapacity need{.absorbed_tokens = below(1 + (1 << below(12))),
                          .decompressed_tokens = below(2) * below(1 + (1 << below(12))),
                          .total_splits = 1 + below(kLarge.total_splits)};
        if (need.tokens() == 0 || need.tokens() > 2048) continue;
        need.absorbed_rows =
            static_cast<std::int32_t>(std::min<std::int64_t>(need.absorbed_tokens, 1 + below(128)));
        need.decompressed_rows = static_cast<std::int32_t>(
            std::min<std::int64_t>(need.decompressed_tokens, 1 + below(5)));
        need.gather = std::min<std::int64_t>(need.tokens(), below(512));
        need.max_q_len = static_cast<std::int32_t>(1 + below(need.tokens()));
        need.max_kv_len = need.max_q_len + static_cast<std::int32_t>(below(90'000));
        const StepCapacity padded = captured_capacity(need, kLarge, kAll);
        if (!is_captured(padded, kLarge, kAll)) {
            EXPECT_EQ(padded, need);
            continue;
        }
        EXPECT_TRUE(padded.check_holds(need));
        EXPECT_TRUE(kLarge.check_holds(padded));
        EXPECT_LE(padded.tokens(), 2048);
        EXPECT_EQ(captured_capacity(padded, kLarge, kAll), padded);
        const std::int64_t key = capacity_key(padded, kLarge);
        EXPECT_GT(key, 0);
        EXPECT_EQ(by_key.try_emplace(key, padded).first->second, padded);
    }
    EXPECT_GT(by_key.size(), 100u);
}

TEST(CapturedSteps, RunOnceAndAreRecordedForTheNextTime) {
    CpuDevice device(1);
    CapturedSteps steps(device, {.capture = true});
    int done = 0;
    const auto work = [&]() -> Expected<void> {
        ++done;
        return {};
    };
    EXPECT_EQ(steps.find(8), nullptr);
    ASSERT_TRUE(steps.run_and_record(8, 8, work));
    EXPECT_EQ(done, 1);
    ASSERT_NE(steps.find(8), nullptr);
    ASSERT_TRUE(steps.find(8)->queue());
    EXPECT_EQ(done, 2);
    EXPECT_EQ(steps.find(16), nullptr);

    const auto refused = steps.run_and_record(
        16, 16, []() -> Expected<void> { return fail(ErrorKind::invalid, "not this one"); });
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "not this one");
    EXPECT_EQ(steps.count(), 1);
}

TEST(CapturedSteps, OfManyTokensAreRecordedWhenTheyHaveComeOften) {
    CpuDevice device(1);
    CapturedSteps steps(device, {.capture = true, .sightings = 3});
    int done = 0;
    const auto work = [&]() -> Expected<void> {
        ++done;
        return {};
    };
    for (int sighting = 1; sighting <= 3; ++sighting) {
        EXPECT_EQ(steps.find(7), nullptr);
        ASSERT_TRUE(steps.run_and_record(7, kCommonTokens + 1, work));
        ASSERT_TRUE(steps.run_and_record(100 + sighting, kCommonTokens + 1, work));  // others
        EXPECT_EQ(steps.count(), sighting == 3 ? 1 : 0);
    }
    ASSERT_NE(steps.find(7), nullptr);
    EXPECT_EQ(done, 6);
}

}  // namespace
}  // namespace espalier::batch
