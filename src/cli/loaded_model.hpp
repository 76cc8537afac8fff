// SPDX-License-Identifier: Apache-2.0
// A model with all it needs to run on this machine's CPU, as the sub-commands use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "mla/contract.hpp"
#include "model/deepseek.hpp"
#include "ops/ops.hpp"

namespace espalier::cli {

struct LoadedModel {
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
    std::unique_ptr<CpuDevice> device;
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<mla::Kernels> kernels;
    std::unique_ptr<model::DeepseekModel> model;
    CpuVariant variant = CpuVariant::portable;
    double load_seconds = 0;
};

// threads 0: OMP_NUM_THREADS if set, otherwise one per core. Shows a progress bar on a terminal.
Expected<LoadedModel> load_model(const std::string& name, int threads,
                                 const model::ModelLimits& limits);
Expected<int> thread_count(int wanted);

}  // namespace espalier::cli
