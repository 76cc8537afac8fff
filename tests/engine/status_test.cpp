// SPDX-License-Identifier: Apache-2.0
// Numbers of the engine: sums that forget no field, and the list of metrics.
#include "engine/status.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace espalier::engine {
namespace {

// All fields are 64-bit integers: as an array, a forgotten one shows.
TEST(EngineStatus, SumsEveryCountOfAStep) {
    using Words = std::array<std::int64_t, sizeof(StepCounts) / sizeof(std::int64_t)>;
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::int64_t>(i) + 1;
    StepCounts counts, sum;
    std::memcpy(static_cast<void*>(&counts), words.data(), sizeof counts);
    for (int i = 0; i < 3; ++i) sum += counts;
    Words sums;
    std::memcpy(sums.data(), &sum, sizeof sum);
    for (std::size_t i = 0; i < words.size(); ++i)
        EXPECT_EQ(sums[i], 3 * words[i]) << "field " << i;
}

TEST(EngineStatus, CountsEndsByReasonAndByInterruption) {
    EndCounts ends;
    ends.add({accept::FinishReason::stop_string, 1}, Interruption::none);
    ends.add({accept::FinishReason::interrupted}, Interruption::deadline, 3);
    EXPECT_EQ(ends.of(accept::FinishReason::stop_string), 1);
    EXPECT_EQ(ends.of(accept::FinishReason::interrupted), 3);
    EXPECT_EQ(ends.of(Interruption::deadline), 3);
    EXPECT_EQ(ends.of(Interruption::none), 0);
}

TEST(EngineStatus, EveryMetricHasItsNameAndANumber) {
    std::set<std::string> names;
    const EngineStatus status;
    for (const Metric& metric : engine_metrics()) {
        const std::string name = metric.name;
        EXPECT_TRUE(names.insert(name).second) << name;
        EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string::npos) << name;
        EXPECT_EQ(name.ends_with("_total"), metric.kind == Metric::Kind::counter) << name;
        EXPECT_FALSE(std::string(metric.help).empty()) << name;
        EXPECT_EQ(metric.of(status), 0.0) << name;
    }
    EXPECT_GT(names.size(), 20u);
}

TEST(EngineStatus, FamiliesHaveOneNumberForEachLabel) {
    EngineStatus status;
    for (const MetricFamily& family : engine_metric_families())
        EXPECT_EQ(family.size(status), 0u) << family.name;
    status.drafters = {"ngram", "mtp"};
    status.sums.steps.drafted_from = {9, 4};
    status.sums.steps.accepted_from = {3, 2};
    status.sums.steps.accepted_at_depth[1] = 4;
    status.sums.steps.accepted_at_depth[2] = 1;
    status.report.drafter_states = {DrafterState::drafting, DrafterState::slower};
    status.report.suspended_steps = {0, 128};
    std::vector<std::string> lines;
    for (const MetricFamily& family : engine_metric_families())
        for (std::size_t i = 0; i < family.size(status); ++i)
            lines.push_back(std::string(family.name) + "{" + family.label + "=" +
                            family.value(status, i) + "} " +
                            std::to_string(static_cast<int>(family.of(status, i))));
    EXPECT_EQ(lines, (std::vector<std::string>{"drafts_accepted_at_position_total{position=0} 4",
                                               "drafts_accepted_at_position_total{position=1} 1",
                                               "drafts_verified_by_drafter_total{drafter=ngram} 9",
                                               "drafts_verified_by_drafter_total{drafter=mtp} 4",
                                               "drafts_accepted_by_drafter_total{drafter=ngram} 3",
                                               "drafts_accepted_by_drafter_total{drafter=mtp} 2",
                                               "drafter_suspended{drafter=ngram} 0",
                                               "drafter_suspended{drafter=mtp} 1",
                                               "drafter_suspended_steps{drafter=ngram} 0",
                                               "drafter_suspended_steps{drafter=mtp} 128"}));
}

TEST(EngineStatus, MetricsReadTheStatus) {
    EngineStatus status;
    status.queued = 2;
    status.gauges.waiting = 3;
    status.sums.steps.committed = 7;
    status.sums.busy = 1'500'000'000;
    status.sums.ends.add({accept::FinishReason::eos}, Interruption::none);
    status.sums.ends.add({accept::FinishReason::stop_token}, Interruption::none);
    const auto value = [&](const std::string& name) {
        for (const Metric& metric : engine_metrics())
            if (name == metric.name) return metric.of(status);
        return std::nan("");
    };
    EXPECT_EQ(value("requests_waiting"), 5);
    EXPECT_EQ(value("output_tokens_total"), 7);
    EXPECT_EQ(value("busy_seconds_total"), 1.5);
    EXPECT_EQ(value("requests_stopped_total"), 2);
}

}  // namespace
}  // namespace espalier::engine
