// SPDX-License-Identifier: Apache-2.0
#include "runtime/running_engine.hpp"

#include <random>
#include <utility>

#include "espalier/version.hpp"
#include "parallel/ranks.hpp"
#include "replay/convert.hpp"
#include "runtime/engine_parts.hpp"
#include "runtime/identity.hpp"

namespace espalier::runtime {
namespace {

std::uint64_t random_bits() {
    return (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
}

engine::StepperSettings settings_for(const EngineSizes& sizes, const EngineOptions& options,
                                     const DrafterChoice& drafters,
                                     const checkpoint::ModelConfig& config) {
    engine::StepperSettings settings;
    static_cast<EngineSizes&>(settings.schedule) = sizes;
    settings.schedule.prefill_segment = options.prefill_segment;
    if (config.indexer) settings.schedule.decompressed_keys = config.indexer->top_k;
    settings.schedule.prefix_cache = options.prefix_cache;
    settings.schedule.reuse_generated = options.reuse_generated;
    settings.schedule.hash_seed = options.hash_seed ? *options.hash_seed : random_bits();
    settings.schedule.reserve_windows = drafters.runs_models();
    settings.schedule.page_events = options.page_events;
    settings.grant = options.grant;
    settings.coupling = options.coupling;
    return settings;
}

Expected<trace::Header> trace_header(const ModelFiles& files, const LoadedModel& loaded,
                                     const engine::StepperSettings& settings,
                                     const DrafterChoice& drafters) {
    trace::Header header;
    header.version = ESPALIER_VERSION;
    header.model = {.name = files.checkpoint->directory().filename().string(), .path = files.name};
    ESPALIER_ASSIGN_OR_RETURN(header.identity,
                              text_identity(*files.checkpoint, loaded.identity_options(),
                                            settings.schedule.prefill_segment));
    header.threads = loaded.device->workers();
    header.settings = replay::settings_of(settings, drafters.names());
    return header;
}

// The model by its name: its hash would read 10 GB of a large one, and a memory of another model
// costs speed alone.
Expected<SpeculationMemory> memory_for(const ModelFiles& files, const LoadedModel& loaded,
                                       const EngineOptions& options,
                                       const DrafterChoice& drafters) {
    SpeculationMemory::Key key{
        .model = files.checkpoint->directory().filename().string(),
        .draft = files.draft == nullptr ? "" : files.draft->directory().filename().string(),
        .drafters = drafters.names(),
        .machine = machine_name(),
        .threads = loaded.device->workers()};
    if (loaded.ranks != nullptr) key.machine += fmt::format(", {} ranks", loaded.ranks->count());
    ESPALIER_ASSIGN_OR_RETURN(key.identity,
                              identity_without_model(*files.checkpoint, loaded.identity_options(),
                                                     options.prefill_segment));
    return SpeculationMemory(options.speculation_memory, key);
}

}  // namespace

Expected<RunningEngine> RunningEngine::start(const ModelFiles& files, LoadedModel& loaded,
                                             const EngineSizes& sizes,
                                             const EngineOptions& options) {
    RunningEngine running;
    running.tokenizer_ = files.tokenizer;
    ESPALIER_ASSIGN_OR_RETURN(const DrafterChoice drafters,
                              choose_drafters(options.speculate, files));
    engine::StepperSettings settings =
        settings_for(sizes, options, drafters, loaded.model->config());
    if (!options.speculation_memory.empty() && drafters.any()) {
        ESPALIER_ASSIGN_OR_RETURN(running.memory_, memory_for(files, loaded, options, drafters));
        if (auto memory = running.memory_->load())
            settings.memory = std::move(*memory);
        else
            running.note_ = memory.error().message + "; speculation learns anew";
    }
    if (!options.trace.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(const trace::Header header,
                                  trace_header(files, loaded, settings, drafters));
        auto recorder = replay::Recorder::open(options.trace, header);
        if (!recorder)
            return fail_field(recorder.error().kind, "trace", "{}", recorder.error().message);
        running.recorder_ = std::move(*recorder);
    }
    const batch::CaptureOptions capture = capture_on(loaded, options.enforce_eager);
    ESPALIER_ASSIGN_OR_RETURN(
        EngineParts made, make_engine_parts(loaded, drafters, sizes, capture, *running.tokenizer_));
    running.taps_ = std::move(made.taps);
    running.ranks_ = std::move(made.ranks);
    engine::StepperParts parts{std::move(made.target), *running.tokenizer_,
                               std::move(made.drafters), engine::steady_clock()};
    parts.taps = running.taps_->taps();
    parts.observer = running.recorder_.get();
    ESPALIER_ASSIGN_OR_RETURN(running.engine_, engine::Engine::create(std::move(parts), settings));
    return running;
}

std::optional<trace::WriterStatus> RunningEngine::trace_status() const {
    if (!recorder_) return std::nullopt;
    return recorder_->status();
}

Expected<std::optional<trace::End>> RunningEngine::stop() {
    engine_->stop();
    // A cache that cannot be written is no failure of what was asked for.
    if (memory_) static_cast<void>(memory_->save(engine_->memory()));
    if (!recorder_) return std::nullopt;
    ESPALIER_ASSIGN_OR_RETURN(const trace::End end, recorder_->finish());
    return end;
}

}  // namespace espalier::runtime
