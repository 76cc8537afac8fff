// SPDX-License-Identifier: Apache-2.0
// The rules of runtime/sizes.hpp, one by one, and as a property: whatever is asked for, what comes
// out is refused by name or is an engine that can be made.
#include "runtime/sizes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/random.hpp"
#include "runtime/memory_limit.hpp"
#include "schedule/scheduler.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::runtime {
namespace {

// 100 pages of a megabyte beside 1 GB of weights in 2 GB.
SizeFacts facts() {
    return {.context = 4096,
            .weight_bytes = 1'000'000'000,
            .page_bytes = 1'000'000,
            .memory_bytes = 2'000'000'000};
}

EngineSizes sizes_of(const SizeOptions& options, const SizeFacts& given = facts()) {
    auto sizes = derive_sizes(options, given);
    if (!sizes) throw std::runtime_error(sizes.error().message);
    return *sizes;
}

std::string refusal(const SizeOptions& options, const SizeFacts& given = facts()) {
    const auto sizes = derive_sizes(options, given);
    return sizes ? "derived" : sizes.error().message;
}

TEST(Sizes, AreWhatIsAskedFor) {
    const EngineSizes sizes = sizes_of(
        {.rows = 4, .pages = 100, .step_tokens = 1000, .max_waiting = 50, .max_model_len = 2000});
    EXPECT_EQ(sizes, (EngineSizes{.page_count = 101,
                                  .max_model_len = 2000,
                                  .max_rows = 4,
                                  .max_step_tokens = 1000,
                                  .max_step_gather = 256,
                                  .max_waiting = 50,
                                  .max_waiting_tokens = std::int64_t{1} << 24}));
}

TEST(Sizes, AreDerivedWhereNothingIsAsked) {
    const EngineSizes sizes = sizes_of({});
    EXPECT_EQ(sizes.max_model_len, 4096);
    EXPECT_EQ(sizes.max_rows, 32);
    EXPECT_EQ(sizes.max_step_tokens, 2048);
    EXPECT_EQ(sizes.max_step_gather, 512);
    EXPECT_EQ(sizes.page_count, 800);  // nine tenths of the memory, less the weights
    SizeFacts roomy = facts();
    roomy.memory_bytes = std::int64_t{1} << 40;
    EXPECT_EQ(sizes_of({}, roomy).page_count, 1 + 32 * 64);  // the longest sequence for every row
}

TEST(Sizes, LeaveEachStepWhatTheSchedulerPromises) {
    EXPECT_EQ(sizes_of({.rows = 1, .pages = 9, .step_tokens = 1}).max_step_tokens, 1 + 512);
    EXPECT_EQ(sizes_of({.rows = 4000, .pages = 9}).max_step_tokens, 4000 + 512);
    EXPECT_EQ(sizes_of({.rows = 4000, .pages = 9}).max_step_gather, 4000);
    EXPECT_EQ(sizes_of({.rows = 1, .pages = 9}).max_step_gather, 64);
    EXPECT_EQ(sizes_of({.rows = 100, .pages = 9, .max_waiting = 1}).max_waiting, 100);
}

// Partial results of attention are kept on a GPU only.
TEST(Sizes, BoundTheSplitsOfAStepOnAGpu) {
    EXPECT_EQ(sizes_of({}).max_step_splits, 0);
    SizeFacts gpu = facts();
    gpu.parts_of_split = 1;
    EXPECT_EQ(sizes_of({}, gpu).max_step_splits, mla::row_splits(2048, 4096));  // all of a step's
    gpu.context = 32768;
    EXPECT_EQ(sizes_of({}, gpu).max_step_splits, std::int64_t{1} << 17);
    gpu.parts_of_split = 8;
    EXPECT_EQ(sizes_of({}, gpu).max_step_splits, std::int64_t{1} << 14);
    gpu.context = std::int64_t{1} << 24;
    gpu.page_bytes = 1;
    EXPECT_EQ(sizes_of({}, gpu).max_step_splits, 2 * mla::row_splits(1, gpu.context));
}

// Half a gigabyte of 4 is another's: this engine's share is a part of the whole less that.
TEST(Sizes, GiveTheCacheWhatAGpuHasLeft) {
    SizeFacts gpu = facts();
    gpu.gpu_bytes = 4'000'000'000;
    gpu.memory_bytes = 3'500'000'000;
    gpu.working_bytes = [](const EngineSizes& sizes) { return 100'000 * sizes.max_step_tokens; };
    // 0.9 · 4000 − 500 − 1000 of weights − 204.8 for the step.
    EXPECT_EQ(sizes_of({}, gpu).page_count, 1895);
    EXPECT_EQ(sizes_of({.gpu_memory_utilization = 0.5}, gpu).page_count, 295);
    EXPECT_EQ(refusal({.gpu_memory_utilization = 0.4}, gpu),
              "max_model_len: a sequence of 4096 tokens takes 0.06 GB of cache, the weights 1.00 "
              "GB, activations and workspaces 0.20 GB, and there are 1.10 GB of memory");
    EXPECT_EQ(refusal({.pages = 2400}, gpu),
              "pages: 2400 take 2.40 GB, the weights 1.00 GB, activations and workspaces 0.20 GB, "
              "and there are 3.50 GB of memory");
    for (const double wrong : {0.0, -1.0, 1.01, std::nan("")})
        EXPECT_EQ(derive_sizes({.gpu_memory_utilization = wrong}, gpu).error().field,
                  "gpu_memory_utilization");
}

TEST(Sizes, RefuseByNameWithBothNumbers) {
    EXPECT_EQ(refusal({.rows = -1}), "rows: -1, not within 0…4096");
    EXPECT_EQ(refusal({.rows = 5000}), "rows: 5000, not within 0…4096");
    EXPECT_EQ(refusal({.pages = -1}), "pages: -1, not within 0…1073741824");
    EXPECT_EQ(refusal({.step_tokens = 0}), "step_tokens: 0, not within 1…1048576");
    EXPECT_EQ(refusal({.max_waiting = 0}), "max_waiting: 0, not within 1…1048576");
    EXPECT_EQ(refusal({.max_model_len = 4097}), "max_model_len: 4097, not within 2…4096");
    EXPECT_EQ(refusal({.pages = 1000}),
              "pages: 1000 take 1.00 GB, the weights 1.00 GB, and there are 2.00 GB of memory");
    EXPECT_EQ(refusal({.pages = 999}), "derived");  // and the null page
    SizeFacts large = facts();
    large.weight_bytes = 3'000'000'000;
    EXPECT_EQ(refusal({.pages = 1}, large),
              "the model's weights take 3.00 GB, and there are 2.00 GB of memory");
    large = facts();
    large.context = 1 << 20;
    EXPECT_EQ(refusal({}, large),
              "max_model_len: a sequence of 1048576 tokens takes 16.38 GB of cache, the weights "
              "1.00 GB, and there are 2.00 GB of memory");
    EXPECT_EQ(refusal({.max_model_len = 10000}, large), "derived");
    EXPECT_EQ(derive_sizes({.pages = 1000}, facts()).error().field, "pages");
    EXPECT_EQ(derive_sizes({.pages = 1000}, facts()).error().kind, ErrorKind::exhausted);
}

TEST(Sizes, WhatIsDerivedMakesAScheduler) {
    Random random(1);
    int derived = 0;
    for (int i = 0; i < 3000; ++i) {
        const auto any = [&](std::int64_t most) {
            const std::int64_t edges[] = {0, 1, 2, 63, 64, 65, most - 1, most};
            return random.chance(0.5) ? edges[random.bits() % std::size(edges)]
                                      : static_cast<std::int64_t>(random.bits() %
                                                                  static_cast<std::uint64_t>(most));
        };
        const SizeOptions options{.rows = any(300),
                                  .pages = any(2000),
                                  .step_tokens = any(4096),
                                  .max_waiting = any(300),
                                  .max_model_len = any(5000)};
        SizeFacts given = facts();
        given.parts_of_split = any(8);
        const auto sizes = derive_sizes(options, given);
        if (!sizes) {
            EXPECT_FALSE(sizes.error().field.empty()) << sizes.error().message;
            continue;
        }
        ++derived;
        schedule::SchedulerOptions scheduler;
        static_cast<EngineSizes&>(scheduler) = *sizes;
        scheduler.row_splits = mla::row_splits;
        const auto made = schedule::Scheduler::create(scheduler);
        ASSERT_TRUE(made) << made.error().message;
        EXPECT_LE(sizes->page_count * facts().page_bytes + facts().weight_bytes,
                  facts().memory_bytes);
    }
    EXPECT_GT(derived, 300);
}

TEST(Sizes, ThisMachineHasMemory) { EXPECT_GT(memory_bytes(), 1 << 20); }

TEST(MemoryLimit, IsReadFromEitherVersionOfControlGroups) {
    const TemporaryDirectory root;
    const auto limit = [&] { return control_group_limit(root.path().string()); };
    const auto write = [&](const char* file, const char* text) {
        std::ofstream(root.path() / file) << text;
    };
    EXPECT_EQ(limit(), std::nullopt);
    std::filesystem::create_directory(root.path() / "memory");
    write("memory/memory.limit_in_bytes", "9223372036854771712\n");  // how version 1 says none
    EXPECT_EQ(limit(), std::int64_t{9223372036854771712});
    write("memory/memory.limit_in_bytes", "3000000000\n");
    EXPECT_EQ(limit(), 3'000'000'000);
    write("memory.max", "max\n");
    EXPECT_EQ(limit(), 3'000'000'000);
    write("memory.max", "2000000000\n");
    EXPECT_EQ(limit(), 2'000'000'000);
    for (const char* wrong : {"", "-1\n", "0\n", "many\n", "99999999999999999999\n"}) {
        write("memory.max", wrong);
        write("memory/memory.limit_in_bytes", wrong);
        EXPECT_EQ(limit(), std::nullopt) << wrong;
    }
}

}  // namespace
}  // namespace espalier::runtime
