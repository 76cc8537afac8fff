// SPDX-License-Identifier: Apache-2.0
// A model with all it needs to run on this machine's CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/cpu_features.hpp"
#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "checkpoint/checkpoint.hpp"
#include "mla/contract.hpp"
#include "model/deepseek.hpp"
#include "ops/ops.hpp"

namespace espalier::runtime {

// Of loading: bytes of weights that are in place, and of all. Called on the loading thread.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct LoadOptions {
    int threads = 0;  // 0: OMP_NUM_THREADS if set, otherwise one per core
    Progress progress;
};

struct LoadedModel {
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<mla::Kernels> kernels;
    std::unique_ptr<model::DeepseekModel> model;
    CpuVariant variant = CpuVariant::portable;
    double load_seconds = 0;

    // sizes: of the largest step that the model is to hold.
    static Expected<LoadedModel> load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                      const EngineSizes& sizes, const LoadOptions& options);
};

// The number of workers that `threads` of LoadOptions stands for here.
Expected<int> thread_count(int wanted);

}  // namespace espalier::runtime
