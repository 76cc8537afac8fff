// SPDX-License-Identifier: Apache-2.0
#include "cli/lossless_findings.hpp"

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "runtime/engine_parts.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;

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

}  // namespace

LosslessFindings run_workloads(std::uint64_t first_seed, double seconds,
                               const lossless::Subject& target) {
    StatusLine status;
    LosslessFindings findings;
    const auto start = Clock::now();
    do {
        const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(findings.workloads);
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
    } while (findings.seconds < seconds);
    return findings;
}

Table table_of(const LosslessFindings& findings) {
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

batch::CaptureOptions workload_capture(const runtime::LoadedModel& loaded, bool enforce_eager) {
    batch::CaptureOptions capture = runtime::capture_on(loaded, enforce_eager);
    capture.ahead = 0;      // an engine for each workload: what it does not need is not recorded
    capture.sightings = 1;  // and what it does need may come twice only
    return capture;
}

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

}  // namespace espalier::cli
