// SPDX-License-Identifier: Apache-2.0
#include "replay/convert.hpp"

#include <utility>

namespace espalier::replay {
namespace {

trace::Reason reason_of(const engine::Ending& ending) {
    using accept::FinishReason;
    using engine::Interruption;
    using trace::Reason;
    switch (ending.finish.reason) {
        case FinishReason::eos:
            return Reason::eos;
        case FinishReason::stop_token:
            return Reason::stop_token;
        case FinishReason::stop_string:
            return Reason::stop_string;
        case FinishReason::length:
            return Reason::length;
        case FinishReason::bad_numbers:
            return Reason::bad_numbers;
        case FinishReason::nothing_left:
            return Reason::nothing_left;
        case FinishReason::interrupted:
            break;
    }
    switch (ending.interruption) {
        case Interruption::deadline:
            return Reason::deadline;
        case Interruption::step_failed:
            return Reason::step_failed;
        case Interruption::stopped:
            return Reason::stopped;
        case Interruption::grammar_failed:
            return Reason::grammar_failed;
        case Interruption::none:
        case Interruption::cancelled:
            break;
    }
    return Reason::cancelled;
}

}  // namespace

trace::Settings settings_of(const engine::StepperSettings& settings,
                            std::vector<std::string> drafters) {
    const schedule::SchedulerOptions& options = settings.schedule;
    trace::Settings out;
    out.page_count = options.page_count;
    out.max_model_len = options.max_model_len;
    out.max_rows = options.max_rows;
    out.max_step_tokens = options.max_step_tokens;
    out.max_step_gather = options.max_step_gather;
    if (options.max_step_splits > 0) out.max_step_splits = options.max_step_splits;
    out.max_waiting = options.max_waiting;
    out.max_waiting_tokens = options.max_waiting_tokens;
    out.prompt_quantum = options.prompt_quantum;
    out.prefill_segment = options.prefill_segment;
    out.prefix_cache = options.prefix_cache;
    out.reuse_generated = options.reuse_generated;
    out.reserve_windows = options.reserve_windows;
    out.hash_seed = options.hash_seed;
    out.grant = settings.grant == engine::NodeGrant::measured ? trace::Grant::measured
                                                              : trace::Grant::everything;
    out.drafters = std::move(drafters);
    return out;
}

engine::StepperSettings stepper_settings_of(const trace::Settings& settings) {
    engine::StepperSettings out;
    schedule::SchedulerOptions& options = out.schedule;
    options.page_count = settings.page_count;
    options.max_model_len = settings.max_model_len;
    options.max_rows = settings.max_rows;
    options.max_step_tokens = settings.max_step_tokens;
    options.max_step_gather = settings.max_step_gather;
    options.max_step_splits = settings.max_step_splits.value_or(0);
    options.max_waiting = settings.max_waiting;
    options.max_waiting_tokens = settings.max_waiting_tokens;
    options.prompt_quantum = settings.prompt_quantum;
    options.prefill_segment = settings.prefill_segment;
    options.prefix_cache = settings.prefix_cache;
    options.reuse_generated = settings.reuse_generated;
    options.reserve_windows = settings.reserve_windows;
    options.hash_seed = settings.hash_seed;
    out.grant = settings.grant == trace::Grant::measured ? engine::NodeGrant::measured
                                                         : engine::NodeGrant::everything;
    return out;
}

trace::Submission submission_of(const engine::CheckedRequest& checked, std::int64_t first_request,
                                schedule::Time now) {
    const engine::Request& request = checked.request;
    const accept::OutputOptions& output = checked.rules.options();
    trace::Submission out;
    out.request = first_request;
    out.choices = request.choices;
    out.time = now;
    out.priority = request.priority;
    // Beyond the range of the format lies no time that will come.
    if (request.deadline <= trace::kMaxTime) out.deadline = request.deadline;
    out.salt = request.salt;
    out.speculate = request.speculate;
    if (request.draft_depth > 0) out.draft_depth = request.draft_depth;
    if (request.draft_width > 0) out.draft_width = request.draft_width;
    if (request.draft_nodes > 0) out.draft_nodes = request.draft_nodes;
    out.logprobs = request.logprobs;
    out.prompt = request.prompt;
    out.forced_output = request.forced_output;
    out.sampling = trace::Sampling(request.sampling);
    out.output = {.max_tokens = output.max_tokens,
                  .min_tokens = output.min_tokens,
                  .eos_token_ids = output.eos_token_ids,
                  .stop_token_ids = output.stop_token_ids,
                  .ignore_eos = output.ignore_eos,
                  .stop = output.stop,
                  .include_stop = output.include_stop,
                  .skip_special_tokens = output.skip_special_tokens,
                  .top_logprobs = output.top_logprobs,
                  .prompt_top_logprobs = output.prompt_top_logprobs};
    if (request.grammar) {
        const grammar::Specification& specification = request.grammar->specification();
        out.grammar = {.kind = std::string(grammar::name(specification.kind)),
                       .text = specification.text,
                       .choices = specification.choices,
                       .strict = specification.strict,
                       .any_whitespace = specification.any_whitespace};
    }
    if (request.reasoning)
        out.reasoning = {.end_token_ids = request.reasoning->end_token_ids,
                         .open = request.reasoning->open,
                         .budget = request.reasoning->budget};
    return out;
}

Expected<grammar::Specification> specification_of(const trace::Grammar& grammar) {
    const std::optional<grammar::Kind> kind = grammar::kind_named(grammar.kind);
    if (!kind)
        return fail(ErrorKind::invalid, "grammar.kind: '{}' is no kind of grammar", grammar.kind);
    return grammar::Specification{.kind = *kind,
                                  .text = grammar.text,
                                  .choices = grammar.choices,
                                  .strict = grammar.strict,
                                  .any_whitespace = grammar.any_whitespace};
}

engine::Request request_of(const trace::Submission& submission) {
    const trace::Output& output = submission.output;
    engine::Request out;
    out.prompt = submission.prompt;
    out.forced_output = submission.forced_output;
    out.logprobs = submission.logprobs;
    out.choices = submission.choices;
    out.priority = submission.priority;
    out.deadline = submission.deadline.value_or(schedule::kNoDeadline);
    out.salt = submission.salt;
    out.speculate = submission.speculate;
    out.draft_depth = submission.draft_depth.value_or(0);
    out.draft_width = submission.draft_width.value_or(0);
    out.draft_nodes = submission.draft_nodes.value_or(0);
    out.sampling = submission.sampling;
    out.output.max_tokens = output.max_tokens;
    out.output.min_tokens = output.min_tokens;
    out.output.eos_token_ids = output.eos_token_ids;
    out.output.stop_token_ids = output.stop_token_ids;
    out.output.ignore_eos = output.ignore_eos;
    out.output.stop = output.stop;
    out.output.include_stop = output.include_stop;
    out.output.skip_special_tokens = output.skip_special_tokens;
    out.output.top_logprobs = output.top_logprobs;
    out.output.prompt_top_logprobs = output.prompt_top_logprobs;
    if (submission.reasoning)
        out.reasoning = accept::ReasoningRule{.end_token_ids = submission.reasoning->end_token_ids,
                                              .open = submission.reasoning->open,
                                              .budget = submission.reasoning->budget};
    return out;
}

trace::Ended ended_of(std::int64_t request, const engine::Ending& ending,
                      const accept::Usage& usage) {
    return {.request = request,
            .reason = reason_of(ending),
            .which = ending.finish.which,
            .tokens = usage.completion_tokens};
}

}  // namespace espalier::replay
