// SPDX-License-Identifier: Apache-2.0
// The flags that say what an engine is like, in one table for every command that runs one. They
// only carry what was written: what is in range, runtime::derive_sizes says.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/rank_world.hpp"
#include "cli/terminal.hpp"
#include "runtime/runtime.hpp"

namespace espalier::cli {

struct EngineFlags {
    runtime::EngineOptions engine;
    runtime::LoadOptions load;
    RankFlags ranks;
    std::string draft;  // an EAGLE3 draft: a directory or ORG/NAME

    // Texts for the help: how a command chooses rows and pages that are not given.
    struct Defaults {
        const char* rows;
        const char* pages;
    };
    // All but --speculate, which bench takes as a list to compare.
    void add_to(CLI::App& command, const Defaults& defaults);
    void add_speculate_to(CLI::App& command);
    // Starts the ranks that were asked for; see RankWorld::start.
    Expected<std::unique_ptr<RankWorld>> start_ranks() { return RankWorld::start(ranks, load); }
    // Flags of what is kept for the next start. A bench has none: its engines start cold.
    void add_kept_to(CLI::App& command);

    static constexpr const char* kSpeculateHelp =
        "Drafters: ngram (repeats of the text), mtp (the model's prediction layer), eagle3 (of "
        "--draft), grammar (text that a grammar forces), several of them, auto (all there are) or "
        "off";
};

void add_threads_flag(CLI::App& command, int& threads);
void add_device_flag(CLI::App& command, DeviceKind& device);
void add_weights_flag(CLI::App& command, std::optional<WeightCode>& rounding);
void add_head_flag(CLI::App& command, std::optional<WeightCode>& rounding);
void add_activations_flag(CLI::App& command, std::optional<NumberMode>& mode);
void add_mmap_experts_flag(CLI::App& command, bool& mmap_experts);
void add_enforce_eager_flag(CLI::App& command, bool& enforce_eager);
void add_kv_format_flag(CLI::App& command, std::optional<mla::KvFormat>& format);

// Reads the weights behind a progress bar.
Expected<runtime::LoadedModel> load_model(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                          const EngineSizes& sizes, runtime::LoadOptions options);

// Stops the engine, and says on standard error if its trace could not hold all.
Expected<void> stop_engine(runtime::RunningEngine& running);

}  // namespace espalier::cli
