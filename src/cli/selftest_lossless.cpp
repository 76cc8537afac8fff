// SPDX-License-Identifier: Apache-2.0
// espalier selftest lossless: the engine's promise on a given model. Random workloads, each request
// held to itself alone and plainly, as equality of bits, until the time is over.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/lossless_findings.hpp"
#include "cli/rank_world.hpp"
#include "runtime/engine_parts.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

struct SelftestLosslessOptions {
    std::string model;
    double seconds = 10;
    std::uint64_t seed = 1;
    runtime::LoadOptions load;
    RankFlags ranks;
    std::string draft;
    std::vector<std::string> speculate = {"off"};
    bool enforce_eager = false;
    bool poison_pads = false;
};

// With several ranks the plain run is on a model that this process has whole.
Expected<std::optional<runtime::LoadedModel>> load_reference(const SelftestLosslessOptions& options,
                                                             const runtime::ModelFiles& files,
                                                             const EngineSizes& sizes) {
    if (options.load.channel == nullptr) return std::nullopt;
    runtime::LoadOptions alone = options.load;
    alone.channel = nullptr;
    ESPALIER_ASSIGN_OR_RETURN(runtime::LoadedModel loaded,
                              load_model(files.checkpoint, sizes, alone));
    return loaded;
}

Expected<void> run(SelftestLosslessOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const auto ranks, RankWorld::start(options.ranks, options.load));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              runtime::ModelFiles::open(options.model, options.draft));
    ESPALIER_ASSIGN_OR_RETURN(runtime::DrafterChoice drafters,
                              runtime::choose_drafters(options.speculate, files));
    drafters.ngram = drafters.grammar = false;  // workloads have them at random
    EngineSizes sizes;
    sizes.max_model_len = files.checkpoint->config().max_position_embeddings;
    sizes.max_step_tokens = lossless::kWorkloadTokens;
    sizes.max_step_gather = lossless::kWorkloadGather;
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::LoadedModel loaded,
        load_model(files.checkpoint, sizes, runtime::with_drafters(options.load, drafters, files)));
    ESPALIER_ASSIGN_OR_RETURN(const auto reference, load_reference(options, files, sizes));
    lossless::Subject target{reference ? *reference->model : *loaded.model, *files.tokenizer};
    target.capture = workload_capture(loaded, options.enforce_eager);
    target.capture.poison = options.poison_pads;
    if (drafters.runs_models())
        target.make_parts = [&](const schedule::SchedulerOptions& of) {
            return parts_with(drafters, loaded, of, target.capture, *files.tokenizer);
        };
    if (reference)
        target.make_target =
            [&](const schedule::SchedulerOptions& of) -> Expected<std::unique_ptr<engine::Target>> {
            ESPALIER_ASSIGN_OR_RETURN(
                auto parts, runtime::make_engine_parts(loaded, runtime::DrafterChoice{}, of,
                                                       target.capture, *files.tokenizer));
            return std::move(parts.target);
        };
    ESPALIER_RETURN_IF_ERROR(lossless::check_subject(target));
    const LosslessFindings findings = run_workloads(options.seed, options.seconds, target);
    const std::string of_ranks =
        reference ? fmt::format("{} ranks with ", ranks->count()) : std::string();
    fmt::print("{}\n{} on {}, {}{} threads: {:.0f} s, workloads {} to {}.\n",
               table_of(findings).text(TableFormat::markdown), options.model,
               loaded.backend->name(), of_ranks, loaded.device->workers(), findings.seconds,
               options.seed, options.seed + static_cast<std::uint64_t>(findings.workloads - 1));
    if (findings.failed == 0) {
        fmt::print("Every request gave the bits it gives alone, without drafts, cache or batch.\n");
        return {};
    }
    fmt::print("FAILED\n  {}\n  again: the same command with --seed {} --seconds 0\n",
               fmt::join(findings.first_failure, "\n  "), findings.failing_seed);
    return fail(ErrorKind::invalid, "selftest lossless: {} of {} workloads failed", findings.failed,
                findings.workloads);
}

}  // namespace

Run add_selftest_lossless(CLI::App& selftest) {
    const auto options = std::make_shared<SelftestLosslessOptions>();
    CLI::App* command = selftest.add_subcommand(
        "lossless", "Hold the engine to each request run alone, on random workloads");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    command->add_option("--seconds", options->seconds, "Time for new workloads; one at least")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command
        ->add_option("--seed", options->seed, "Seed of the first workload; the next ones count up")
        ->capture_default_str();
    command->add_option("--draft", options->draft, "EAGLE3 draft for the model");
    command
        ->add_option(
            "--speculate", options->speculate,
            "Drafters of the model beside random ones: mtp, eagle3, auto (all there are) or off")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember({"mtp", "eagle3", "auto", "off"}))
        ->capture_default_str();
    add_weights_flag(*command, options->load.rounding);
    add_head_flag(*command, options->load.head_rounding);
    add_activations_flag(*command, options->load.activations);
    add_mmap_experts_flag(*command, options->load.mmap_experts);
    command->add_flag("--poison-pads", options->poison_pads,
                      "Before each step, 0xFF in everything that it may not read");
    add_enforce_eager_flag(*command, options->enforce_eager);
    add_kv_format_flag(*command, options->load.kv_format);
    add_device_flag(*command, options->load.device);
    add_threads_flag(*command, options->load.threads);
    options->ranks.add_to(*command);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
