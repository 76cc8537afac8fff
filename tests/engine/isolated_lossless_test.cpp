// SPDX-License-Identifier: Apache-2.0
// The whole engine, lossless workloads included, on a device whose memory the host cannot touch: a
// host read of device memory anywhere in a step is a crash here, and an operation that is handed
// memory of the host throws. With the reference backend, whose weights have a layout of their own,
// and with the CPU's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/tiny_target.hpp"
#include "lossless/check.hpp"

namespace espalier::lossless {
namespace {

#if defined(ESPALIER_LONG_RUN)
constexpr std::uint64_t kFirstSeed = 2'000'000, kPlainWorkloads = 100, kCpuWorkloads = 400;
#else
constexpr std::uint64_t kFirstSeed = 50, kPlainWorkloads = 3, kCpuWorkloads = 8;
#endif

void expect_lossless(engine::Operations operations, std::uint64_t workloads) {
    const Subject subject = engine::isolated_target(operations).target();
    Coverage coverage;
    for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + workloads; ++seed) {
        const auto verdict = check_workload(random_workload(seed, subject), subject);
        ASSERT_TRUE(verdict) << seed << ": " << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
        coverage.add(verdict->coverage);
    }
    EXPECT_GT(coverage.tokens, 30 * static_cast<std::int64_t>(workloads));
    EXPECT_GT(coverage.accepted, 0);
    EXPECT_GT(coverage.moved, 0);
}

TEST(IsolatedLossless, OnTheReferenceBackend) {
    expect_lossless(engine::Operations::reference, kPlainWorkloads);
}

TEST(IsolatedLossless, OnTheCpuBackend) { expect_lossless(engine::Operations::cpu, kCpuWorkloads); }

}  // namespace
}  // namespace espalier::lossless
