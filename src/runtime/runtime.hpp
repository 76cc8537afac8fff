// SPDX-License-Identifier: Apache-2.0
// A model that answers requests, from its name to a running engine: what a command or a server
// opens. Files first, then sizes, then weights, then the engine; each part can be had alone
// (model_files.hpp, sizes.hpp, loaded_model.hpp, running_engine.hpp).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "runtime/loaded_model.hpp"
#include "runtime/model_files.hpp"
#include "runtime/running_engine.hpp"

namespace espalier::runtime {

struct RuntimeOptions {
    std::string model;  // a directory or ORG/NAME in the hub cache
    std::string draft;  // an EAGLE3 draft for it, named alike; empty: none
    LoadOptions load;
    EngineOptions engine;
};

class Runtime {
  public:
    static Expected<Runtime> open(const RuntimeOptions& options);
    // For callers that opened the files themselves; options.model and options.draft are not read.
    static Expected<Runtime> open(ModelFiles files, const RuntimeOptions& options);

    const ModelFiles& files() const { return files_; }
    const LoadedModel& loaded() const { return loaded_; }
    engine::Engine& engine() { return running_.engine(); }
    const std::string& note() const { return running_.note(); }
    // See RunningEngine.
    std::optional<trace::WriterStatus> trace_status() const { return running_.trace_status(); }
    Expected<std::optional<trace::End>> stop() { return running_.stop(); }

  private:
    Runtime(ModelFiles files, LoadedModel loaded, RunningEngine running)
        : files_(std::move(files)), loaded_(std::move(loaded)), running_(std::move(running)) {}

    ModelFiles files_;
    LoadedModel loaded_;
    RunningEngine running_;  // the last, so that it ends first
};

}  // namespace espalier::runtime
