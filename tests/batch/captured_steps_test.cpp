// SPDX-License-Identifier: Apache-2.0
#include "batch/captured_steps.hpp"

#include <gtest/gtest.h>

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

TEST(TokenBuckets, HoldWhatTheyAreForAndLittleMore) {
    for (std::int64_t tokens = 1; tokens <= kMostCapturedTokens; ++tokens) {
        const std::int64_t bucket = token_bucket(tokens);
        EXPECT_GE(bucket, tokens);
        EXPECT_LT(bucket, tokens <= 16 ? 2 * tokens + (tokens == 1) : tokens + tokens / 2 + 1);
        EXPECT_EQ(token_bucket(bucket), bucket);
        EXPECT_EQ(token_buckets_to(tokens).back(), bucket);
    }
    EXPECT_EQ(token_bucket(kMostCapturedTokens + 1), 0);
    EXPECT_EQ(token_buckets_to(1 << 20).back(), kMostCapturedTokens);
    EXPECT_TRUE(token_buckets_to(0).empty());
}

TEST(CapturedCapacity, DependsOnTheTokensAlone) {
    StepCapacity need{.absorbed_tokens = 5,
                      .absorbed_rows = 2,
                      .gather = 3,
                      .max_q_len = 4,
                      .max_kv_len = 70,
                      .table_rows = 2,
                      .block_stride = 2,
                      .total_splits = 77};
    const StepCapacity padded = captured_capacity(need, kMost);
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
    EXPECT_TRUE(is_captured(padded, kMost));
    EXPECT_FALSE(is_captured(need, kMost));
    need.absorbed_tokens = 97;  // the bucket of 128 would be beyond the largest batch
    EXPECT_EQ(captured_capacity(need, kMost).absorbed_tokens, 100);
    EXPECT_EQ(captured_capacity(need, kMost).absorbed_rows, 12);
    EXPECT_EQ(captured_capacity(need, kMost).gather, 40);
    EXPECT_TRUE(is_captured(captured_capacity(need, kMost), kMost));
    need.decompressed_tokens = 1;
    EXPECT_EQ(captured_capacity(need, kMost), need);
    EXPECT_FALSE(is_captured(need, kMost));
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
    ASSERT_TRUE(steps.run_and_record(8, work));
    EXPECT_EQ(done, 1);
    ASSERT_NE(steps.find(8), nullptr);
    ASSERT_TRUE(steps.find(8)->queue());
    EXPECT_EQ(done, 2);
    EXPECT_EQ(steps.find(16), nullptr);

    const auto refused = steps.run_and_record(
        16, []() -> Expected<void> { return fail(ErrorKind::invalid, "not this one"); });
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "not this one");
    EXPECT_EQ(steps.count(), 1);
}

}  // namespace
}  // namespace espalier::batch
