// SPDX-License-Identifier: Apache-2.0
#include "replay/convert.hpp"

#include <optional>
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

// Pairs of fields, each pair once for both ways. A field that either side gains does not compile
// until it stands here.
template <typename Traced, typename Ours, typename Copy>
void each_grammar_field(Traced& traced, Ours& specification, Copy copy) {
    auto& [traced_kind, traced_text, traced_choices, traced_strict, traced_whitespace] = traced;
    auto& [kind, text, choices, strict, any_whitespace] = specification;
    copy(traced_kind, kind);
    copy(traced_text, text);
    copy(traced_choices, choices);
    copy(traced_strict, strict);
    copy(traced_whitespace, any_whitespace);
}

// Beside the number and the time that a submission has, what it was checked to (its output), and
// its grammar, which a request has compiled. Trees are reported to clients, not to traces, and what
// came of an expected output stands in a trace's own trees.
template <typename Traced, typename Ours, typename Copy>
void each_request_field(Traced& traced, Ours& request, Copy copy) {
    [[maybe_unused]] auto& [number, traced_choices, time, traced_priority, traced_deadline,
                            traced_salt, traced_speculate, traced_depth, traced_width, traced_nodes,
                            traced_logprobs, traced_prompt, traced_forced, traced_sampling,
                            traced_output, traced_grammar, traced_reasoning, traced_id,
                            traced_parent] = traced;
    [[maybe_unused]] auto& [prompt, sampling, output, choices, priority, deadline, salt, speculate,
                            depth, width, nodes, report_trees, logprobs, forced, expected, grammar,
                            reasoning, request_id, traceparent] = request;
    copy(traced_choices, choices);
    copy(traced_priority, priority);
    copy(traced_deadline, deadline);
    copy(traced_salt, salt);
    copy(traced_speculate, speculate);
    copy(traced_depth, depth);
    copy(traced_width, width);
    copy(traced_nodes, nodes);
    copy(traced_logprobs, logprobs);
    copy(traced_prompt, prompt);
    copy(traced_forced, forced);
    copy(traced_sampling, sampling);
    copy(traced_reasoning, reasoning);
    copy(traced_id, request_id);
    copy(traced_parent, traceparent);
}

struct ToTrace {
    template <typename Traced, typename Ours>
    void operator()(Traced& traced, const Ours& ours) const {
        traced = Traced(ours);
    }
    // Beyond the range of the format lies no time that will come.
    void operator()(std::optional<std::int64_t>& traced, schedule::Time deadline) const {
        traced.reset();
        if (deadline <= trace::kMaxTime) traced = deadline;
    }
    // Number of prescribed drafts; 0: none are.
    void operator()(std::optional<std::int32_t>& traced, std::int32_t drafts) const {
        traced.reset();
        if (drafts > 0) traced = drafts;
    }
    void operator()(std::optional<std::string>& traced, const std::string& name) const {
        traced.reset();
        if (!name.empty()) traced = name;
    }
    void operator()(std::string& traced, grammar::Kind kind) const { traced = grammar::name(kind); }
};

struct FromTrace {
    template <typename Traced, typename Ours>
    void operator()(const Traced& traced, Ours& ours) const {
        ours = traced;
    }
    void operator()(const std::optional<std::int64_t>& traced, schedule::Time& deadline) const {
        deadline = traced.value_or(schedule::kNoDeadline);
    }
    void operator()(const std::optional<std::int32_t>& traced, std::int32_t& drafts) const {
        drafts = traced.value_or(0);
    }
    void operator()(const std::optional<std::string>& traced, std::string& name) const {
        name = traced.value_or("");
    }
    // Set before, where the name is known.
    void operator()(const std::string&, grammar::Kind&) const {}
};

}  // namespace

trace::Settings settings_of(const engine::StepperSettings& settings,
                            std::vector<std::string> drafters) {
    trace::Settings out;
    static_cast<EngineSizes&>(out) = settings.schedule;
    static_cast<SchedulingRules&>(out) = settings.schedule;
    out.grant = settings.grant == engine::NodeGrant::measured ? trace::Grant::measured
                                                              : trace::Grant::everything;
    out.drafters = std::move(drafters);
    return out;
}

engine::StepperSettings stepper_settings_of(const trace::Settings& settings) {
    engine::StepperSettings out;
    static_cast<EngineSizes&>(out.schedule) = settings;
    static_cast<SchedulingRules&>(out.schedule) = settings;
    out.grant = settings.grant == trace::Grant::measured ? engine::NodeGrant::measured
                                                         : engine::NodeGrant::everything;
    return out;
}

trace::Grammar grammar_of(const grammar::Specification& specification) {
    trace::Grammar out;
    each_grammar_field(out, specification, ToTrace());
    return out;
}

trace::Submission submission_of(const engine::CheckedRequest& checked, std::int64_t first_request,
                                schedule::Time now) {
    trace::Submission out;
    each_request_field(out, checked.request, ToTrace());
    out.request = first_request;
    out.time = now;
    out.output = checked.rules.options();
    out.output.count_tokens = false;  // follows from sampling when it is checked again
    if (checked.request.grammar) out.grammar = grammar_of(checked.request.grammar->specification());
    return out;
}

Expected<grammar::Specification> specification_of(const trace::Grammar& grammar) {
    const std::optional<grammar::Kind> kind = grammar::kind_named(grammar.kind);
    if (!kind)
        return fail(ErrorKind::invalid, "grammar.kind: '{}' is no kind of grammar", grammar.kind);
    grammar::Specification out{.kind = *kind};
    each_grammar_field(grammar, out, FromTrace());
    return out;
}

engine::Request request_of(const trace::Submission& submission) {
    engine::Request out;
    each_request_field(submission, out, FromTrace());
    out.output = submission.output;
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
