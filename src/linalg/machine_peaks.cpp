// SPDX-License-Identifier: Apache-2.0
#include "linalg/machine_peaks.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "linalg/microkernels.hpp"

namespace espalier::linalg {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kReadTask = 1 << 20;  // bytes
constexpr std::int64_t kSpinRounds =
    10000;                              // ≈ 0.07 ms per task: a pass fits between two time slices
constexpr std::int64_t kSpinTasks = 8;  // per worker

std::atomic<float> kept;  // results go here, so that no compiler drops the work

template <typename Body>
double best_seconds(ThreadPool& pool, int passes, std::int64_t tasks, Body body) {
    double best = 0;
    for (int pass = 0; pass < passes; ++pass) {
        const auto begin = Clock::now();
        pool.run(tasks, [&](std::int64_t task, int) {
            kept.store(body(task), std::memory_order_relaxed);
        });
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        best = pass == 0 ? seconds : std::min(best, seconds);
    }
    return best;
}

double spin_peak(ThreadPool& pool, int passes, float (*spin)(std::int64_t),
                 double flops_per_round) {
    const std::int64_t tasks = kSpinTasks * pool.workers();
    const double seconds =
        best_seconds(pool, passes, tasks, [&](std::int64_t) { return spin(kSpinRounds); });
    return flops_per_round * static_cast<double>(kSpinRounds * tasks) / seconds;
}

}  // namespace

double measured_read_bandwidth(ThreadPool& pool, CpuVariant variant,
                               std::span<const std::byte> data, int passes) {
    const Microkernels& kernels = microkernels_of(variant);
    const std::int64_t tasks = static_cast<std::int64_t>(data.size()) / kReadTask;
    const double seconds = best_seconds(pool, passes, tasks, [&](std::int64_t task) {
        return kernels.read_all(data.data() + task * kReadTask, kReadTask);
    });
    return static_cast<double>(tasks * kReadTask) / seconds;
}

double measured_bf16_peak(ThreadPool& pool, CpuVariant variant, int passes) {
    const Microkernels& kernels = microkernels_of(variant);
    return spin_peak(pool, passes, kernels.spin_bf16, kernels.bf16_flops_per_round);
}

double measured_f32_peak(ThreadPool& pool, CpuVariant variant, int passes) {
    const Microkernels& kernels = microkernels_of(variant);
    return spin_peak(pool, passes, kernels.spin_f32, kernels.f32_flops_per_round);
}

}  // namespace espalier::linalg
