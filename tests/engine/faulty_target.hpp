// SPDX-License-Identifier: Apache-2.0
// A tiny model whose attention library refuses or throws when a test says so.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>

#include "checkpoint/synthetic.hpp"
#include "engine/tiny_target.hpp"
#include "mla/contract.hpp"
#include "model/deepseek.hpp"
#include "model/tiny_model.hpp"
#include "support/temporary_directory.hpp"
#include "text/tokenizer.hpp"

namespace espalier::engine {

class FaultyKernels final : public mla::Kernels {
  public:
    enum class Fault { none, refuse_attention, refuse_compact, throw_in_attention };
    std::atomic<Fault> fault = Fault::none;

    Expected<void> absorbed(OpContext& context, const mla::AbsorbedCall& call) const override {
        if (fault == Fault::throw_in_attention) throw std::runtime_error("a fault of the test");
        if (fault == Fault::refuse_attention)
            return fail(ErrorKind::io, "the test's device is out of order");
        return real_->absorbed(context, call);
    }
    Expected<void> decompressed(OpContext& context,
                                const mla::DecompressedCall& call) const override {
        return real_->decompressed(context, call);
    }
    Expected<void> append(OpContext& context, const mla::AppendCall& call) const override {
        return real_->append(context, call);
    }
    Expected<void> compact(OpContext& context, const mla::CompactCall& call) const override {
        if (fault == Fault::refuse_compact)
            return fail(ErrorKind::io, "the test's device is out of order");
        return real_->compact(context, call);
    }
    std::size_t scratch_bytes(const mla::Capacities& most) const override {
        return real_->scratch_bytes(most);
    }

  private:
    std::unique_ptr<mla::Kernels> real_ = mla::make_cpu_kernels(best_cpu_variant());
};

class FaultyTarget {
  public:
    FaultyTarget() : device_(1), backend_(ops::make_cpu_backend(best_cpu_variant())) {
        const TemporaryDirectory directory;
        auto preset = checkpoint::synthetic_preset("tiny-v2");
        preset->config.num_hidden_layers = 2;
        preset->config.num_attention_heads = 2;
        model::write_model(*preset, directory.path() / "model");
        auto opened = checkpoint::Checkpoint::open((directory.path() / "model").string());
        const auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
        auto weights = model::Weights::load(checkpoint, device_, *backend_);
        model_ = std::make_unique<model::DeepseekModel>(std::move(*model::DeepseekModel::create(
            checkpoint->config(), std::move(*weights), *backend_, kernels, device_,
            {.limits = {.max_gather = kTinyMaxGather}})));
        tokenizer_ = std::make_unique<text::Tokenizer>(
            std::move(*text::Tokenizer::load(directory.path() / "model")));
    }
    model::DeepseekModel& model() { return *model_; }
    const text::Tokenizer& tokenizer() const { return *tokenizer_; }

    FaultyKernels kernels;

  private:
    CpuDevice device_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::DeepseekModel> model_;
    std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace espalier::engine
