// SPDX-License-Identifier: Apache-2.0
// Small random-weight models for the model tests: written once per (config, dtype, seed), loaded
// with any number of threads.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_device.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/synthetic.hpp"
#include "mla/contract.hpp"
#include "model/deepseek.hpp"
#include "model/sequence.hpp"
#include "ops/ops.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::model {

// A model on the CPU with everything it borrows.
class RunningModel {
  public:
    RunningModel(const std::filesystem::path& directory, int threads, CpuVariant variant,
                 std::int64_t max_gather = 256,
                 std::optional<mla::KvFormat> kv_format = std::nullopt)
        : device_(threads),
          backend_(ops::make_cpu_backend(variant)),
          kernels_(mla::make_cpu_kernels(variant)) {
        auto opened = checkpoint::Checkpoint::open(directory.string());
        if (!opened) throw std::runtime_error(opened.error().message);
        const auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
        auto weights = Weights::load(checkpoint, device_, *backend_);
        if (!weights) throw std::runtime_error(weights.error().message);
        ModelLimits limits;
        limits.max_gather = max_gather;
        auto made =
            DeepseekModel::create(checkpoint->config(), std::move(*weights), *backend_, *kernels_,
                                  device_, {.limits = limits, .kv_format = kv_format});
        if (!made) throw std::runtime_error(made.error().message);
        model_ = std::make_unique<DeepseekModel>(std::move(*made));
    }
    DeepseekModel& operator*() { return *model_; }
    DeepseekModel* operator->() { return model_.get(); }
    const ops::Backend& backend() const { return *backend_; }
    const mla::Kernels& kernels() const { return *kernels_; }

  private:
    CpuDevice device_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<mla::Kernels> kernels_;
    std::unique_ptr<DeepseekModel> model_;
};

inline void write_model(const checkpoint::SyntheticModel& model,
                        const std::filesystem::path& directory) {
    ThreadPool pool(2);
    const auto written = checkpoint::write_synthetic(model, directory, pool);
    if (!written) throw std::runtime_error(written.error().message);
}

inline std::vector<float> copy_logits(const Matrix& logits) {
    std::vector<float> copy;
    for (std::int64_t row = 0; row < logits.rows; ++row)
        copy.insert(copy.end(), logits.row<float>(row), logits.row<float>(row) + logits.cols);
    return copy;
}

}  // namespace espalier::model
