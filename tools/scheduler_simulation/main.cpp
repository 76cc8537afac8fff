// SPDX-License-Identifier: Apache-2.0
// scheduler_simulation FILE.svg [REQUESTS]: runs the simulation, prints its numbers, draws it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "panel.hpp"
#include "simulation.hpp"

namespace espalier::simulation {
namespace {

constexpr std::size_t kBuckets = 360;

// Means over the steps that ended in each bucket of time.
class Means {
  public:
    explicit Means(const SimulationResult& result) : result_(result), steps_(kBuckets, 0) {
        for (const StepSample& step : result.steps) ++steps_[bucket_of(step.seconds)];
    }
    std::size_t bucket_of(double seconds) const {
        const double share = seconds / result_.simulated_seconds;
        return std::min(kBuckets - 1, static_cast<std::size_t>(share * kBuckets));
    }
    template <typename Value>
    std::vector<double> of(const Value& value) const {
        std::vector<double> sums(kBuckets, 0.0);
        for (const StepSample& step : result_.steps)
            sums[bucket_of(step.seconds)] += static_cast<double>(value(step));
        for (std::size_t i = 0; i < kBuckets; ++i)
            sums[i] = steps_[i] == 0 ? 0 : sums[i] / static_cast<double>(steps_[i]);
        return sums;
    }

  private:
    const SimulationResult& result_;
    std::vector<std::int64_t> steps_;
};

double percentile(std::vector<float>& values, double share) {
    if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
    const auto rank = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + rank, values.end());
    return static_cast<double>(values[static_cast<std::size_t>(rank)]);
}

// By the time of submission.
std::vector<double> first_token_waits(const SimulationResult& result, const Means& means,
                                      std::int32_t priority, double share) {
    std::vector<std::vector<float>> waits(kBuckets);
    for (const FirstToken& first : result.first_tokens)
        if (first.priority == priority)
            waits[means.bucket_of(first.submitted_seconds)].push_back(first.wait_seconds);
    std::vector<double> out;
    for (std::vector<float>& bucket : waits) out.push_back(percentile(bucket, share));
    return out;
}

std::string draw(const SimulationResult& result) {
    const Means means(result);
    const auto pages = [&](std::int64_t cache::PageCounts::*count) {
        return means.of([count](const StepSample& step) { return step.gauges.pages.*count; });
    };
    const auto tokens = [&](std::int64_t schedule::StepTokens::*count) {
        return means.of([count](const StepSample& step) { return step.tokens.*count; });
    };
    const auto gauge = [&](std::int64_t schedule::Gauges::*count) {
        return means.of([count](const StepSample& step) { return step.gauges.*count; });
    };
    std::vector<Panel> panels;
    panels.push_back({"Queueing: requests that wait",
                      "requests",
                      true,
                      false,
                      0,
                      {{"waiting", "#cc6677", gauge(&schedule::Gauges::waiting)}}});
    panels.push_back({"Time to first token, by time of arrival",
                      "seconds",
                      false,
                      true,
                      0,
                      {{"urgent tenth, 99 %", "#228833", first_token_waits(result, means, 0, 0.99)},
                       {"others, median", "#4477aa", first_token_waits(result, means, 1, 0.5)},
                       {"others, 99 %", "#cc6677", first_token_waits(result, means, 1, 0.99)}}});
    panels.push_back({"Requests in the batch",
                      "of 256 rows",
                      true,
                      false,
                      static_cast<double>(result.scheduler.max_rows),
                      {{"running", "#4477aa", gauge(&schedule::Gauges::running)},
                       {"prompts", "#ddaa33", gauge(&schedule::Gauges::prefilling)}}});
    panels.push_back(
        {"Batch mix: tokens of a step",
         "tokens",
         true,
         false,
         0,
         {{"roots", "#4477aa", tokens(&schedule::StepTokens::roots)},
          {"drafts", "#88ccee", tokens(&schedule::StepTokens::drafts)},
          {"prompts, absorbed", "#ddaa33", tokens(&schedule::StepTokens::prompt_absorbed)},
          {"prompts, decompr.", "#ee8866", tokens(&schedule::StepTokens::prompt_decompressed)}}});
    panels.push_back({"Page use",
                      "pages of 64 tokens",
                      true,
                      false,
                      static_cast<double>(result.scheduler.page_count - 1),
                      {{"owned", "#4477aa", pages(&cache::PageCounts::owned)},
                       {"cached", "#bbcc99", pages(&cache::PageCounts::cached)},
                       {"free", "#eeeeee", pages(&cache::PageCounts::free)}}});
    return draw_figure(fmt::format("{} requests with heavy-tailed lengths; a burst in the middle",
                                   result.totals.submitted),
                       result.simulated_seconds / 60, panels);
}

void print(const SimulationResult& result) {
    const schedule::Totals& totals = result.totals;
    std::vector<float> all, full, waits;
    for (const StepSample& step : result.steps) {
        all.push_back(step.plan_microseconds);
        if (step.planned_requests >= result.scheduler.max_rows - 2)
            full.push_back(step.plan_microseconds);
    }
    for (const FirstToken& first : result.first_tokens) waits.push_back(first.wait_seconds);
    fmt::print("requests            {} ({} finished, {} cancelled, {} expired)\n", totals.submitted,
               totals.finished, totals.cancelled, totals.expired);
    fmt::print("steps               {} in {:.0f} simulated seconds\n", result.steps.size(),
               result.simulated_seconds);
    fmt::print("tokens              {} roots, {} drafts, {} decompressed, {} absorbed, {} again\n",
               totals.tokens.roots, totals.tokens.drafts, totals.tokens.prompt_decompressed,
               totals.tokens.prompt_absorbed, totals.tokens.recomputed);
    fmt::print("committed           {} tokens\n", totals.committed);
    fmt::print("prefix hits         {} of {} prompt tokens\n", totals.hit_tokens,
               totals.prompt_tokens);
    fmt::print("preemptions         {}; {} of {} tokens found when they came back\n",
               totals.preemptions, totals.resumed_hit_tokens, totals.resumed_tokens);
    fmt::print("first token         median {:.2f} s, 99 % {:.2f} s\n", percentile(waits, 0.5),
               percentile(waits, 0.99));
    fmt::print("longest request     {} steps; at most {:.2f} of a request's bound\n",
               result.longest_steps, result.worst_wait_to_bound);
    fmt::print("plan and advance    median {:.1f} us, 99 % {:.1f} us\n", percentile(all, 0.5),
               percentile(all, 0.99));
    fmt::print("  at 254-256 rows   median {:.1f} us, 99 % {:.1f} us ({} steps)\n",
               percentile(full, 0.5), percentile(full, 0.99), full.size());
}

}  // namespace
}  // namespace espalier::simulation

int main(int argc, char** argv) {
    using namespace espalier::simulation;
    if (argc < 2 || argc > 3) {
        fmt::print(stderr, "usage: scheduler_simulation FILE.svg [REQUESTS]\n");
        return 2;
    }
    SimulationOptions options;
    if (argc == 3) options.requests = std::max(1ll, std::atoll(argv[2]));
    const SimulationResult result = simulate(options);
    print(result);
    std::ofstream file(argv[1]);
    file << draw(result);
    file.close();
    if (!file) {
        fmt::print(stderr, "{}: cannot be written\n", argv[1]);
        return 1;
    }
    return 0;
}
