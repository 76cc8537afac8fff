// SPDX-License-Identifier: Apache-2.0
// A small random target with an MTP layer and an EAGLE3 draft, on any machine, and engines on it.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/synthetic.hpp"
#include "draft/draft_set.hpp"
#include "engine/harness.hpp"
#include "grammar/compiler.hpp"
#include "model/tiny_model.hpp"
#include "support/temporary_directory.hpp"
#include "text/tokenizer.hpp"

namespace espalier::draft {

template <typename T>
T must(Expected<T> result) {
    if (!result) throw std::runtime_error(result.error().message);
    return std::move(*result);
}

struct TinyDrafts {
    model::Machine machine;
    std::shared_ptr<const checkpoint::Checkpoint> files, draft_files;
    std::unique_ptr<model::DeepseekModel> model;
    std::shared_ptr<const Eagle3Weights> eagle3;
    std::unique_ptr<text::Tokenizer> tokenizer;
    std::unique_ptr<grammar::Compiler> compiler;

    DraftSet set() const { return {.target = *model, .mtp = true, .eagle3 = eagle3}; }
};

inline checkpoint::SyntheticModel tiny_preset(std::string_view name) {
    checkpoint::SyntheticModel preset = must(checkpoint::synthetic_preset(name));
    preset.config.num_hidden_layers = 2;
    preset.config.num_attention_heads = 2;
    return preset;
}

inline TinyDrafts make_tiny_drafts(
    model::Machine machine, const checkpoint::SyntheticModel& preset = tiny_preset("tiny-v3")) {
    const TemporaryDirectory directory;
    const auto path = directory.path() / "model", draft_path = directory.path() / "draft";
    model::write_model(preset, path);
    ThreadPool pool(1);
    if (const auto written = checkpoint::write_synthetic_draft(
            checkpoint::synthetic_draft_for(preset), draft_path, pool);
        !written)
        throw std::runtime_error(written.error().message);

    TinyDrafts tiny;
    tiny.machine = std::move(machine);
    const auto opened = tiny.files = std::make_shared<const checkpoint::Checkpoint>(
        must(checkpoint::Checkpoint::open(path.string())));
    tiny.draft_files = std::make_shared<const checkpoint::Checkpoint>(
        must(checkpoint::Checkpoint::open_eagle3(draft_path.string())));
    auto weights = must(
        model::Weights::load(opened, *tiny.machine.device, *tiny.machine.backend, {.mtp = true}));
    model::ModelLimits limits;
    limits.max_tokens = engine::kTinyMaxTokens;
    limits.max_gather = engine::kTinyMaxGather;
    tiny.model = std::make_unique<model::DeepseekModel>(must(model::DeepseekModel::create(
        opened->config(), std::move(weights), *tiny.machine.backend, *tiny.machine.kernels,
        *tiny.machine.device, {.limits = limits})));
    tiny.eagle3 = std::make_shared<const Eagle3Weights>(must(Eagle3Weights::load(
        tiny.draft_files, opened->config(), *tiny.machine.device, *tiny.machine.backend)));
    tiny.tokenizer = std::make_unique<text::Tokenizer>(must(text::Tokenizer::load(path)));
    tiny.compiler = std::make_unique<grammar::Compiler>(must(grammar::Vocabulary::make(
        *tiny.tokenizer, opened->config().vocab_size, opened->config().eos_token_ids)));
    return tiny;
}

// An engine with both drafters; others may be added behind them, and each may be wrapped.
class DraftingEngine {
  public:
    using Wrap = std::function<std::unique_ptr<speculate::Drafter>(std::unique_ptr<ModelDrafter>,
                                                                   const model::Taps&)>;
    DraftingEngine(const TinyDrafts& tiny, engine::StepperSettings settings,
                   std::vector<std::unique_ptr<speculate::Drafter>> others = {},
                   const batch::CaptureOptions& capture = {}, std::int64_t max_splits = 0,
                   const Wrap& wrap = {})
        : taps_(must(tiny.set().make_taps(settings.schedule.max_step_tokens))) {
        settings.schedule.reserve_windows = true;
        auto target = must(engine::ModelTarget::create(*tiny.model, tiny.set().layout(),
                                                       settings.schedule.page_count, capture));
        storage_ = &target->storage();
        auto models = must(tiny.set().make(
            {*tiny.machine.device, *tiny.machine.backend, *tiny.machine.kernels, capture},
            {.tokens = settings.schedule.max_step_tokens,
             .nodes = settings.schedule.max_step_gather,
             .rows = settings.schedule.max_rows,
             .max_kv_len = settings.schedule.max_model_len,
             .max_splits = max_splits},
            *storage_, taps_.taps()));
        std::vector<std::unique_ptr<speculate::Drafter>> drafters;
        for (auto& drafter : models) {
            models_.push_back(drafter.get());
            if (wrap)
                drafters.push_back(wrap(std::move(drafter), taps_.taps()));
            else
                drafters.push_back(std::move(drafter));
        }
        for (auto& drafter : others) drafters.push_back(std::move(drafter));
        harness =
            std::make_unique<engine::Harness>(std::move(target), *tiny.tokenizer, settings,
                                              std::move(drafters), engine::Clock{}, taps_.taps());
    }

    cache::KvStorage& storage() { return *storage_; }
    std::span<ModelDrafter* const> models() const { return models_; }
    // NaN in all KV of draft layers and in the tail states: on the CPU.
    void poison_drafts() {
        for (std::int64_t layer = 0; layer < storage_->layout().layers(cache::Plane::Of::draft);
             ++layer) {
            const mla::KvPages pages = storage_->draft(layer);
            std::memset(pages.data, 0xFF,
                        static_cast<std::size_t>(pages.page_count * pages.page_stride));
            const Matrix tails = storage_->tail_states(layer);
            std::memset(tails.data, 0xFF,
                        static_cast<std::size_t>(tails.rows * tails.cols) * sizeof(float));
        }
    }
    void flush() {
        for (ModelDrafter* drafter : models_)
            if (const auto flushed = drafter->flush(); !flushed)
                throw std::runtime_error(flushed.error().message);
    }

  private:
    model::TapMemory taps_;
    cache::KvStorage* storage_ = nullptr;
    std::vector<ModelDrafter*> models_;

  public:
    std::unique_ptr<engine::Harness> harness;  // the last, so that it ends first
};

}  // namespace espalier::draft
