// SPDX-License-Identifier: Apache-2.0
#include "runtime/running_engine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>
#include <utility>

#include "engine/model_target.hpp"
#include "speculate/ngram.hpp"

namespace espalier::runtime {
namespace {

std::uint64_t random_bits() {
    return (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
}

using Drafters = std::vector<std::unique_ptr<speculate::Drafter>>;

Expected<Drafters> make_drafters(const std::string& name) {
    Drafters drafters;
    if (name == "ngram")
        drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    else if (name != "off")
        return fail_field(ErrorKind::invalid, "speculate", "{}, not one of {}", name,
                          fmt::join(kDrafterNames, ", "));
    return drafters;
}

engine::StepperSettings settings_for(const EngineSizes& sizes, const EngineOptions& options) {
    engine::StepperSettings settings;
    static_cast<EngineSizes&>(settings.schedule) = sizes;
    settings.schedule.prefill_segment = options.prefill_segment;
    settings.schedule.prefix_cache = options.prefix_cache;
    settings.schedule.reuse_generated = options.reuse_generated;
    settings.schedule.hash_seed = options.hash_seed ? *options.hash_seed : random_bits();
    settings.grant = options.grant;
    return settings;
}

std::optional<std::string> kv_format_name(const LoadedModel& loaded) {
    if (!loaded.kv_format) return std::nullopt;
    return std::string(mla::name_of(*loaded.kv_format));
}

}  // namespace

Expected<RunningEngine> RunningEngine::start(const ModelFiles& files, LoadedModel& loaded,
                                             const EngineSizes& sizes,
                                             const EngineOptions& options) {
    RunningEngine running;
    running.tokenizer_ = files.tokenizer;
    const engine::StepperSettings settings = settings_for(sizes, options);
    if (!options.trace.empty()) {
        std::vector<std::string> drafters;
        if (options.speculate != "off") drafters.push_back(options.speculate);
        ESPALIER_ASSIGN_OR_RETURN(const trace::Header header,
                                  replay::describe({*files.checkpoint, files.name, loaded.variant,
                                                    loaded.device->workers(), settings,
                                                    std::move(drafters), kv_format_name(loaded)}));
        ESPALIER_ASSIGN_OR_RETURN(running.recorder_, replay::Recorder::open(options.trace, header));
    }
    ESPALIER_ASSIGN_OR_RETURN(auto target,
                              engine::ModelTarget::create(*loaded.model, sizes.page_count));
    engine::StepperParts parts{std::move(target), *running.tokenizer_, {}, engine::steady_clock()};
    ESPALIER_ASSIGN_OR_RETURN(parts.drafters, make_drafters(options.speculate));
    parts.observer = running.recorder_.get();
    ESPALIER_ASSIGN_OR_RETURN(running.engine_, engine::Engine::create(std::move(parts), settings));
    return running;
}

Expected<std::optional<trace::End>> RunningEngine::stop() {
    engine_->stop();
    if (!recorder_) return std::nullopt;
    ESPALIER_ASSIGN_OR_RETURN(const trace::End end, recorder_->finish());
    return end;
}

}  // namespace espalier::runtime
