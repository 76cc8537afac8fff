// SPDX-License-Identifier: Apache-2.0
// An engine on a loaded model: with the drafters it was asked for, and with the trace it writes if
// a file was named.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "engine/engine.hpp"
#include "model/taps.hpp"
#include "replay/recorder.hpp"
#include "runtime/drafters.hpp"
#include "runtime/loaded_model.hpp"
#include "runtime/model_files.hpp"
#include "runtime/sizes.hpp"
#include "runtime/speculation_memory.hpp"

namespace espalier::runtime {

// Everything about an engine that a user may choose.
struct EngineOptions {
    SizeOptions sizes;
    std::vector<std::string> speculate = {"auto"};  // of kDrafterNames; see choose_drafters
    engine::NodeGrant grant = engine::NodeGrant::measured;
    engine::Coupling coupling = engine::Coupling::coupled;
    // See schedule::SchedulerOptions.
    bool prefix_cache = true;
    std::int64_t prefill_segment = cache::kPageTokens;
    bool reuse_generated = false;
    // Seed of the prefix index's hash. No text and no hit depends on it. None: random, so that
    // clients cannot choose prompts that collide.
    std::optional<std::uint64_t> hash_seed;
    // On a GPU: every step operation by operation instead of as a captured graph. For debugging.
    bool enforce_eager = false;
    // A directory where what speculation learns is kept; empty: none, every start learns anew.
    std::string speculation_memory;
    std::string trace;  // a file for every step (docs/trace.md); empty: none
    std::shared_ptr<cache::PageEvents> page_events;  // hears of the prefix index; null: no one
};

class RunningEngine {
  public:
    // The model outlives the engine, and was loaded with what the engine's drafters need.
    static Expected<RunningEngine> start(const ModelFiles& files, LoadedModel& loaded,
                                         const EngineSizes& sizes, const EngineOptions& options);
    engine::Engine& engine() { return *engine_; }
    // A sentence for a log where what speculation had learnt could not be read; empty: it could.
    const std::string& note() const { return note_; }
    // State of the trace; none: no trace. From any thread, until stop().
    std::optional<trace::WriterStatus> trace_status() const;
    // Stops the engine, keeps what speculation has learnt where that can be written, and ends the
    // trace: what the trace's last line says; none: no trace.
    Expected<std::optional<trace::End>> stop();

  private:
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    std::optional<SpeculationMemory> memory_;
    std::string note_;
    // These outlive the engine.
    std::unique_ptr<replay::Recorder> recorder_;
    std::shared_ptr<model::TapMemory> taps_;
    std::shared_ptr<void> ranks_;
    std::unique_ptr<engine::Engine> engine_;
};

}  // namespace espalier::runtime
