// SPDX-License-Identifier: Apache-2.0
// What this machine can do at best, measured: benchmarks report their results as shares of these.
#pragma once

#include <cstddef>
#include <span>

#include "base/cpu_features.hpp"
#include "base/thread_pool.hpp"

namespace espalier::linalg {

// Bytes per second of reading `data` once (larger than the caches, or it measures those) with all
// workers: the best of `passes`.
double measured_read_bandwidth(ThreadPool& pool, CpuVariant variant,
                               std::span<const std::byte> data, int passes = 20);

// FLOP per second of the variant's best instruction for products of bf16 (or f32) with operands at
// hand, all workers: the best of `passes`. Without a bf16 dot instruction both are the f32 fused
// multiply-add.
double measured_bf16_peak(ThreadPool& pool, CpuVariant variant, int passes = 20);
double measured_f32_peak(ThreadPool& pool, CpuVariant variant, int passes = 20);

}  // namespace espalier::linalg
