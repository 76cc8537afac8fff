// SPDX-License-Identifier: Apache-2.0
// An engine on a loaded model, as the sub-commands set it up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/loaded_model.hpp"
#include "engine/engine.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {

// What --speculate takes.
inline constexpr const char* kSpeculateHelp =
    "Drafts: ngram (what followed the same words before in the text) or off";
inline const std::vector<std::string> kSpeculateNames = {"ngram", "off"};

struct EngineSize {
    std::int64_t rows = 1;        // requests in a step
    std::int64_t pages = 1;       // of the cache, beside the null page
    std::int64_t waiting = 1024;  // requests that may wait
    // Of a step, at most (and at least one prompt quantum beside the rows): more are better for
    // throughput, fewer let running requests wait less for others' prompts.
    std::int64_t step_tokens = 2048;
};

// What a model must be made for, to hold such an engine.
model::ModelLimits model_limits(const EngineSize& size);
// The model and the tokenizer outlive the engine. Measures the step time first if it speculates.
Expected<std::unique_ptr<engine::Engine>> start_engine(LoadedModel& loaded,
                                                       const text::Tokenizer& tokenizer,
                                                       const EngineSize& size,
                                                       const std::string& speculate);

}  // namespace espalier::cli
