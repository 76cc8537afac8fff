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
#include "batch/device_batch.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/synthetic.hpp"
#include "mla/contract.hpp"
#include "model/deepseek.hpp"
#include "model/sequence.hpp"
#include "ops/cuda_backend.hpp"
#include "ops/ops.hpp"
#include "support/gpu.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::model {

// Room for the batches of these tests.
inline constexpr batch::StepCapacity kTestCapacity{.absorbed_tokens = 256,
                                                   .decompressed_tokens = 256,
                                                   .absorbed_rows = 16,
                                                   .decompressed_rows = 16,
                                                   .gather = 256,
                                                   .max_q_len = 256,
                                                   .max_kv_len = 512,
                                                   .table_rows = 16,
                                                   .block_stride = 8};

// Machine that a model runs on.
struct Machine {
    std::unique_ptr<Device> device;
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<mla::Kernels> kernels;
};

inline Machine cpu_machine(int threads, CpuVariant variant) {
    return {std::make_unique<CpuDevice>(threads), ops::make_cpu_backend(variant),
            mla::make_cpu_kernels(variant)};
}

// Throws where there is no GPU.
inline Machine gpu_machine() {
    const auto must = [](auto made) {
        if (!made) throw std::runtime_error(made.error().message);
        return std::move(*made);
    };
    Machine machine;
    machine.device = must(make_cuda_device(test_gpu_limits()));
    machine.backend = must(ops::make_cuda_backend(*machine.device));
    machine.kernels = must(mla::make_cuda_kernels(*machine.device));
    return machine;
}

// A model with everything it borrows.
class RunningModel {
  public:
    RunningModel(const std::filesystem::path& directory, int threads, CpuVariant variant,
                 std::int64_t max_gather = 256,
                 std::optional<mla::KvFormat> kv_format = std::nullopt)
        : RunningModel(directory, cpu_machine(threads, variant), max_gather, kv_format) {}
    RunningModel(const std::filesystem::path& directory, Machine machine, std::int64_t max_gather,
                 std::optional<mla::KvFormat> kv_format = std::nullopt,
                 const LoadOptions& options = {}, parallel::Ranks* ranks = nullptr)
        : machine_(std::move(machine)) {
        auto opened = checkpoint::Checkpoint::open(directory.string());
        if (!opened) throw std::runtime_error(opened.error().message);
        const auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
        auto weights = Weights::load(checkpoint, *machine_.device, *machine_.backend, options);
        if (!weights) throw std::runtime_error(weights.error().message);
        ModelLimits limits;
        limits.max_gather = max_gather;
        auto made = DeepseekModel::create(
            checkpoint->config(), std::move(*weights), *machine_.backend, *machine_.kernels,
            *machine_.device, {.limits = limits, .kv_format = kv_format, .ranks = ranks});
        if (!made) throw std::runtime_error(made.error().message);
        model_ = std::make_unique<DeepseekModel>(std::move(*made));
    }
    DeepseekModel& operator*() { return *model_; }
    DeepseekModel* operator->() { return model_.get(); }
    const ops::Backend& backend() const { return *machine_.backend; }
    const mla::Kernels& kernels() const { return *machine_.kernels; }
    std::vector<float> download(const Matrix& logits) const {
        std::vector<float> copy(static_cast<std::size_t>(logits.rows * logits.cols));
        EXPECT_TRUE(machine_.device->download(machine_.device->stream(), copy.data(), logits.data,
                                              copy.size() * sizeof(float)));
        return copy;
    }
    // The view is good until the next one.
    batch::BatchView upload(const batch::HostBatch& batch) {
        return batch_.upload(machine_.device->stream(), batch).value();
    }

  private:
    Machine machine_;
    batch::DeviceBatch batch_{*machine_.device};
    std::unique_ptr<DeepseekModel> model_;
};

inline void write_model(const checkpoint::SyntheticModel& model,
                        const std::filesystem::path& directory) {
    ThreadPool pool(2);
    const auto written = checkpoint::write_synthetic(model, directory, pool);
    if (!written) throw std::runtime_error(written.error().message);
}

// [8, vocabulary]: of eight tokens fed to the model in `directory` on two threads.
inline std::vector<float> logits_of_eight(const std::filesystem::path& directory,
                                          const LoadOptions& options = {},
                                          parallel::Ranks* ranks = nullptr) {
    RunningModel model(directory, cpu_machine(2, best_cpu_variant()), 64, std::nullopt, options,
                       ranks);
    const std::vector<std::int32_t> tokens = {0, 17, 300, 5, 5, 44, 100, 7};
    auto sequence = Sequence::create(*model, 8, 16);
    EXPECT_TRUE(sequence);
    const auto fed = sequence->feed(*model, tokens, 8);
    EXPECT_TRUE(fed) << fed.error().message;
    return model.download(fed->logits);
}

inline std::vector<float> copy_logits(const Matrix& logits) {
    std::vector<float> copy;
    for (std::int64_t row = 0; row < logits.rows; ++row)
        copy.insert(copy.end(), logits.row<float>(row), logits.row<float>(row) + logits.cols);
    return copy;
}

}  // namespace espalier::model
