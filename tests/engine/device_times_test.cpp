// SPDX-License-Identifier: Apache-2.0
// The seconds of model and sampling are the device's own: on an asynchronous target nothing that
// the host does before, beside or after its work counts; on the CPU they are parts of run().
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "engine/fake_target.hpp"
#include "engine/harness.hpp"
#include "engine/status.hpp"

namespace espalier::engine {
namespace {

constexpr schedule::Time kQueueing = 20'000, kModel = 700'000, kSampling = 50'000;

// The host's time, and work of a device that run() starts and wait() waits for.
struct Times {
    schedule::Time now = 0, device_done = 0;
    schedule::Time reading = 0;  // of an update, by whoever receives it
    void pass() {
        now += kQueueing;
        device_done = now + kModel + kSampling;
    }
    void wait() { now = std::max(now, device_done); }
};

class SlowReader final : public Receiver {
  public:
    explicit SlowReader(Times& times) : times_(times) {}
    void receive(const Update&) override { times_.now += times_.reading; }

  private:
    Times& times_;
};

double metric(std::string_view name, const EngineStatus& status) {
    const auto found = std::ranges::find(engine_metrics(), name, &Metric::name);
    return found->of(status);
}

// The steps of one request on a target that computes beside the host.
EngineStatus run_beside(schedule::Time reading) {
    Times times{.reading = reading};
    auto target = std::make_unique<FakeTarget>(
        512, model::ModelLimits{.max_tokens = 1024, .max_gather = 512, .max_kv_len = 4096},
        roomy_settings().schedule.page_count);
    target->be_asynchronous();
    target->times = {.model = kModel, .sampling = kSampling};
    target->at_run = [&] { times.pass(); };
    target->at_wait = [&] { times.wait(); };
    Harness harness(std::move(target), *tiny_target(Family::v2).tokenizer, roomy_settings(), {},
                    [&] { return times.now; });
    harness.stepper->submit(harness.check(plain_request(30, 20, 3)),
                            std::make_shared<SlowReader>(times));
    EngineStatus status;
    while (!harness.stepper->idle()) {
        const StepReport report = harness.stepper->step();
        EXPECT_EQ(report.spent(Phase::run), kQueueing);
        status.sums.steps += report;
        ++status.steps;
    }
    status.sums.busy = times.now;
    return status;
}

TEST(DeviceTimes, OfAnAsynchronousTargetHaveNothingOfTheHost) {
    for (const schedule::Time reading : {0, 300'000, 2'000'000}) {
        const EngineStatus status = run_beside(reading);
        EXPECT_EQ(status.steps, 20);
        EXPECT_DOUBLE_EQ(metric("model_seconds_total", status), 20 * 700e-6);
        EXPECT_DOUBLE_EQ(metric("sampling_seconds_total", status), 20 * 50e-6);
        // Updates are read while the next step runs; the last one comes with the end.
        constexpr schedule::Time kDevice = kModel + kSampling;
        EXPECT_EQ(status.sums.steps.whole,
                  20 * kQueueing + kDevice + 19 * std::max(kDevice, reading) + reading);
    }
}

TEST(DeviceTimes, OnTheCpuArePartsOfTheRun) {
    Harness harness(tiny_target(Family::v3), roomy_settings(), {}, steady_clock());
    const auto recorder = harness.submit(plain_request(300, 5, 4));
    while (!harness.stepper->idle()) {
        const StepReport report = harness.stepper->step();
        EXPECT_GT(report.model, 0);
        EXPECT_GT(report.sampling, 0);
        EXPECT_LE(report.model + report.sampling, report.spent(Phase::run));
    }
    EXPECT_TRUE(recorder->ended());
}

}  // namespace
}  // namespace espalier::engine
