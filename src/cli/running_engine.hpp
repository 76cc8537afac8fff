// SPDX-License-Identifier: Apache-2.0
// An engine on a loaded model, as the sub-commands set it up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/loaded_model.hpp"
#include "engine/engine.hpp"
#include "replay/recorder.hpp"
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

// What --trace takes.
inline constexpr const char* kTraceHelp =
    "Write every step to this file, for replay (docs/trace.md); it holds the prompts";

// A trace that is being written, or none when no file was named. Declared before the engine that it
// watches, and so outlives it.
class TraceFile {
  public:
    // model: as it was asked for.
    static Expected<TraceFile> open(const std::string& path, const std::string& model,
                                    const LoadedModel& loaded, const EngineSize& size,
                                    const std::string& speculate);
    engine::StepObserver* observer() const { return recorder_.get(); }
    // After the engine has stopped. Says on standard error if the trace could not hold it all.
    Expected<void> finish();

  private:
    std::unique_ptr<replay::Recorder> recorder_;
};

// What a model must be made for, to hold such an engine.
model::ModelLimits model_limits(const EngineSize& size);
// The model and the tokenizer outlive the engine. Measures the step time first if it speculates.
Expected<std::unique_ptr<engine::Engine>> start_engine(LoadedModel& loaded,
                                                       const text::Tokenizer& tokenizer,
                                                       const EngineSize& size,
                                                       const std::string& speculate,
                                                       engine::StepObserver* observer = nullptr);

}  // namespace espalier::cli
