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
#include "cli/terminal.hpp"
#include "lossless/check.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string model;
    double seconds = 10;
    std::uint64_t seed = 1;
    int threads = 0;
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

Findings run_workloads(const Options& options, const lossless::Subject& target) {
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

Expected<void> run(const Options& options) {
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              runtime::ModelFiles::open(options.model));
    EngineSizes sizes;
    sizes.max_model_len = files.checkpoint->config().max_position_embeddings;
    sizes.max_step_tokens = lossless::kWorkloadTokens;
    sizes.max_step_gather = lossless::kWorkloadGather;
    ESPALIER_ASSIGN_OR_RETURN(runtime::LoadedModel loaded,
                              load_model(files.checkpoint, sizes, {.threads = options.threads}));
    const lossless::Subject target{*loaded.model, *files.tokenizer};
    ESPALIER_RETURN_IF_ERROR(lossless::check_subject(target));
    const Findings findings = run_workloads(options, target);
    fmt::print("{}\n{} on {}, {} threads: {:.0f} s, workloads {} to {}.\n",
               table_of(findings).text(TableFormat::markdown), options.model,
               loaded.backend->name(), loaded.device->workers(), findings.seconds, options.seed,
               options.seed + static_cast<std::uint64_t>(findings.workloads - 1));
    if (findings.failed == 0) {
        fmt::print("Every request gave the bits it gives alone, without drafts, cache or batch.\n");
        return {};
    }
    fmt::print("FAILED\n  {}\n  espalier selftest lossless {} --seed {} --seconds 0 --threads {}\n",
               fmt::join(findings.first_failure, "\n  "), options.model, findings.failing_seed,
               options.threads);
    return fail(ErrorKind::invalid, "selftest lossless: {} of {} workloads failed", findings.failed,
                findings.workloads);
}

}  // namespace

Run add_selftest_lossless(CLI::App& selftest) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = selftest.add_subcommand(
        "lossless", "Hold the engine to each request run alone, on random workloads");
    command
        ->add_option("model", options->model, "Model directory or ORG/NAME in the local hub cache")
        ->required();
    command
        ->add_option("--seconds", options->seconds,
                     "Go on with new workloads until then; one at least")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command->add_option("--seed", options->seed, "Of the first workload; the next ones count up")
        ->capture_default_str();
    add_threads_flag(*command, options->threads);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
