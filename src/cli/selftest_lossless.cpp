// SPDX-License-Identifier: Apache-2.0
// espalier selftest lossless: the engine's promise on a given model. Random workloads, each request
// held to itself alone and plainly, as equality of bits, until the time is over.
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/rank_world.hpp"
#include "cli/terminal.hpp"
#include "lossless/check.hpp"
#include "runtime/engine_parts.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;

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

struct Findings {
    std::int64_t workloads = 0, failed = 0;
    std::uint64_t failing_seed = 0;  // the first
    std::vector<std::string> first_failure;
    lossless::Coverage coverage;
    double seconds = 0;
};

// A failed CHECK of the engine is a finding like any other.
lossless::Verdict verdict_of(std::uint64_t seed, const lossless::Subject& target) {
    lossless::Verdict broken;
    try {
        auto verdict = lossless::check_workload(lossless::random_workload(seed, target), target);
        if (verdict) return std::move(*verdict);
        broken.differences = {verdict.error().message};
    } catch (const std::exception& error) {
        broken.differences = {error.what()};
    }
    return broken;
}

Findings run_workloads(const SelftestLosslessOptions& options, const lossless::Subject& target) {
    StatusLine status;
    Findings findings;
    const auto start = Clock::now();
    do {
        const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(findings.workloads);
        status.update("{:.0f} s, workload {} · {} requests, {} tokens, {} failed", findings.seconds,
                      seed, findings.coverage.requests, findings.coverage.tokens, findings.failed);
        const lossless::Verdict verdict = verdict_of(seed, target);
        ++findings.workloads;
        findings.coverage.add(verdict.coverage);
        if (!verdict.differences.empty() && findings.failed++ == 0) {
            findings.failing_seed = seed;
            findings.first_failure = verdict.differences;
        }
        findings.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    } while (findings.seconds < options.seconds);
    return findings;
}

Table table_of(const Findings& findings) {
    const lossless::Coverage& seen = findings.coverage;
    Table table;
    table.columns = {"what was compared", "count"};
    const auto add = [&](const char* what, std::int64_t count) {
        table.rows.push_back({what, std::to_string(count)});
    };
    add("workloads", findings.workloads);
    add("requests, every choice counted", seen.requests);
    add("prompt tokens", seen.prompt_tokens);
    add("output tokens, each with its logprob", seen.tokens);
    add("prompts with their logprobs", seen.prompt_logprobs);
    add("steps", seen.steps);
    add("drafts verified", seen.drafts);
    add("drafts accepted", seen.accepted);
    add("cache slots moved by commits", seen.moved);
    add("preemptions", seen.preemptions);
    add("prompt tokens found in the prefix index", seen.hits);
    add("requests cancelled or out of time", seen.interrupted);
    add("ended by a stop string", seen.stop_strings);
    add("ended by an end-of-text token", seen.eos);
    add("drafters that broke and were given up", seen.broken);
    add("workloads that FAILED", findings.failed);
    return table;
}

// Parts of an engine with the model's own drafters.
Expected<lossless::Subject::Parts> parts_with(const runtime::DrafterChoice& drafters,
                                              runtime::LoadedModel& loaded,
                                              const EngineSizes& sizes,
                                              const batch::CaptureOptions& capture,
                                              const text::Tokenizer& tokenizer) {
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::EngineParts made,
        runtime::make_engine_parts(loaded, drafters, sizes, capture, tokenizer));
    lossless::Subject::Parts parts;
    parts.taps = made.taps->taps();
    parts.target = std::move(made.target);
    parts.drafters = std::move(made.drafters);
    parts.memory = std::make_shared<runtime::EngineParts>(std::move(made));
    return parts;
}

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
    target.capture = runtime::capture_on(loaded, options.enforce_eager);
    target.capture.ahead = 0;  // an engine for each workload: what it does not need is not recorded
    target.capture.sightings = 1;  // and what it does need may come twice only
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
    const Findings findings = run_workloads(options, target);
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
