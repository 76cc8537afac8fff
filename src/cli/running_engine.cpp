// SPDX-License-Identifier: Apache-2.0
#include "cli/running_engine.hpp"

#include <algorithm>
#include <utility>

#include "speculate/ngram.hpp"

namespace espalier::cli {
namespace {

// Logits of a step: whole trees for a few requests, fewer drafts each for many. 512 rows of a
// vocabulary of 129,280 are 265 MB, backed by memory as far as they are used.
constexpr std::int64_t kMaxGather = 512;

}  // namespace

model::ModelLimits model_limits(const EngineSize& size) {
    model::ModelLimits limits;
    limits.max_tokens =
        std::max(size.step_tokens, size.rows + schedule::SchedulerOptions().prompt_quantum);
    limits.max_gather = std::max(size.rows, std::min(kMaxGather, size.rows * accept::kMaxNodes));
    return limits;
}

Expected<std::unique_ptr<engine::Engine>> start_engine(LoadedModel& loaded,
                                                       const text::Tokenizer& tokenizer,
                                                       const EngineSize& size,
                                                       const std::string& speculate) {
    const model::ModelLimits& limits = loaded.model->limits();
    engine::StepperSettings settings;
    settings.schedule.page_count = 1 + size.pages;
    settings.schedule.max_model_len = limits.max_kv_len;
    settings.schedule.max_rows = static_cast<std::int32_t>(size.rows);
    settings.schedule.max_step_tokens = limits.max_tokens;
    settings.schedule.max_step_gather = limits.max_gather;
    settings.schedule.max_waiting = static_cast<std::int32_t>(size.waiting);
    engine::StepperParts parts{*loaded.model, tokenizer, {}, engine::steady_clock()};
    if (speculate == "ngram")
        parts.drafters.push_back(
            std::make_unique<speculate::NgramDrafter>(0, speculate::NgramLimits{}));
    return engine::Engine::create(std::move(parts), settings);
}

}  // namespace espalier::cli
