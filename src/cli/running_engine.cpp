// SPDX-License-Identifier: Apache-2.0
#include "cli/running_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/model_target.hpp"
#include "speculate/ngram.hpp"

namespace espalier::cli {
namespace {

// Logits of a step: whole trees for a few requests, fewer drafts each for many. 512 rows of a
// vocabulary of 129,280 are 265 MB, backed by memory as far as they are used.
constexpr std::int64_t kMaxGather = 512;

engine::StepperSettings settings_for(const LoadedModel& loaded, const EngineSize& size) {
    const model::ModelLimits& limits = loaded.model->limits();
    engine::StepperSettings settings;
    settings.schedule.page_count = 1 + size.pages;
    settings.schedule.max_model_len = limits.max_kv_len;
    settings.schedule.max_rows = static_cast<std::int32_t>(size.rows);
    settings.schedule.max_step_tokens = limits.max_tokens;
    settings.schedule.max_step_gather = limits.max_gather;
    settings.schedule.max_waiting = static_cast<std::int32_t>(size.waiting);
    return settings;
}

}  // namespace

model::ModelLimits model_limits(const EngineSize& size) {
    model::ModelLimits limits;
    limits.max_tokens =
        std::max(size.step_tokens, size.rows + schedule::SchedulerOptions().prompt_quantum);
    limits.max_gather = std::max(size.rows, std::min(kMaxGather, size.rows * kMaxNodes));
    return limits;
}

Expected<std::unique_ptr<engine::Engine>> start_engine(LoadedModel& loaded,
                                                       const text::Tokenizer& tokenizer,
                                                       const EngineSize& size,
                                                       const std::string& speculate,
                                                       engine::StepObserver* observer) {
    const engine::StepperSettings settings = settings_for(loaded, size);
    ESPALIER_ASSIGN_OR_RETURN(
        auto target, engine::ModelTarget::create(*loaded.model, settings.schedule.page_count));
    engine::StepperParts parts{std::move(target), tokenizer, {}, engine::steady_clock()};
    if (speculate == "ngram")
        parts.drafters.push_back(
            std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    parts.observer = observer;
    return engine::Engine::create(std::move(parts), settings);
}

Expected<TraceFile> TraceFile::open(const std::string& path, const std::string& model,
                                    const LoadedModel& loaded, const EngineSize& size,
                                    const std::string& speculate) {
    TraceFile file;
    if (path.empty()) return file;
    std::vector<std::string> drafters;
    if (speculate != "off") drafters.push_back(speculate);
    ESPALIER_ASSIGN_OR_RETURN(
        const trace::Header header,
        replay::describe({*loaded.checkpoint, model, loaded.variant, loaded.device->workers(),
                          settings_for(loaded, size), std::move(drafters)}));
    ESPALIER_ASSIGN_OR_RETURN(file.recorder_, replay::Recorder::open(path, header));
    return file;
}

Expected<void> TraceFile::finish() {
    if (!recorder_) return {};
    ESPALIER_ASSIGN_OR_RETURN(const trace::End end, recorder_->finish());
    if (end.reason == trace::Close::overflow)
        fmt::print(stderr, "the trace ends after {} steps: the disk was too slow for more\n",
                   end.steps);
    return {};
}

}  // namespace espalier::cli
