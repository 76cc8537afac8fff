// SPDX-License-Identifier: Apache-2.0
#include "engine/status.hpp"

namespace espalier::engine {
namespace {

using accept::FinishReason;
using Kind = Metric::Kind;
using Status = const EngineStatus&;

double number(std::int64_t value) { return static_cast<double>(value); }
double seconds(schedule::Time time) { return number(time) * 1e-9; }

const Metric kMetrics[] = {
    {"requests_running", Kind::gauge, "Requests that draw tokens",
     [](Status s) { return number(s.gauges.running); }},
    {"requests_prefilling", Kind::gauge, "Requests whose prompts are being computed",
     [](Status s) { return number(s.gauges.prefilling); }},
    {"requests_waiting", Kind::gauge, "Requests in the queue, the preempted ones too",
     [](Status s) { return number(s.queued + s.gauges.waiting); }},
    {"pages_owned", Kind::gauge, "Pages of the cache that requests hold",
     [](Status s) { return number(s.gauges.pages.owned); }},
    {"pages", Kind::gauge, "Pages of the cache",
     [](Status s) { return number(s.gauges.pages.total); }},
    {"heartbeat_seconds", Kind::gauge, "Last round of the engine's thread, on its clock",
     [](Status s) { return seconds(s.heartbeat); }},

    {"requests_submitted_total", Kind::counter, "Requests (choices) taken",
     [](Status s) { return number(s.totals.submitted); }},
    {"requests_refused_total", Kind::counter, "Requests that the queue had no room for",
     [](Status s) { return number(s.sums.refused); }},
    {"requests_stopped_total", Kind::counter, "Ended by a stop condition",
     [](Status s) {
         const EndCounts& ends = s.sums.ends;
         return number(ends.of(FinishReason::eos) + ends.of(FinishReason::stop_token) +
                       ends.of(FinishReason::stop_string));
     }},
    {"requests_length_total", Kind::counter, "Ended by their max_tokens",
     [](Status s) { return number(s.sums.ends.of(FinishReason::length)); }},
    {"requests_failed_total", Kind::counter, "Ended by bad numbers, or with nothing to choose",
     [](Status s) {
         return number(s.sums.ends.of(FinishReason::bad_numbers) +
                       s.sums.ends.of(FinishReason::nothing_left) +
                       s.sums.ends.of(Interruption::step_failed) +
                       s.sums.ends.of(Interruption::grammar_failed));
     }},
    {"requests_cancelled_total", Kind::counter, "Ended by their clients",
     [](Status s) { return number(s.sums.ends.of(Interruption::cancelled)); }},
    {"requests_expired_total", Kind::counter, "Ended by their deadlines",
     [](Status s) { return number(s.sums.ends.of(Interruption::deadline)); }},
    {"preemptions_total", Kind::counter, "Preempted requests, which were computed again",
     [](Status s) { return number(s.totals.preemptions); }},
    {"prompt_tokens_total", Kind::counter, "Prompt tokens of admitted requests",
     [](Status s) { return number(s.totals.prompt_tokens); }, true},
    {"prompt_tokens_cached_total", Kind::counter, "Prompt tokens found in the prefix index",
     [](Status s) { return number(s.totals.hit_tokens); }, true},
    {"output_tokens_total", Kind::counter, "Tokens committed",
     [](Status s) { return number(s.sums.steps.committed); }},
    {"drafts_verified_total", Kind::counter, "Draft nodes in steps",
     [](Status s) { return number(s.totals.tokens.drafts); }},
    {"drafts_accepted_total", Kind::counter, "Draft nodes accepted",
     [](Status s) { return number(s.sums.steps.accepted); }},
    {"slots_moved_total", Kind::counter,
     "Cache slots moved because an accepted draft was not on its tree's first branch",
     [](Status s) { return number(s.sums.steps.moved); }},
    {"steps_total", Kind::counter, "Passes of the model", [](Status s) { return number(s.steps); }},
    {"step_requests_total", Kind::counter, "Requests in each step, summed",
     [](Status s) { return number(s.sums.steps.requests); }},
    {"busy_seconds_total", Kind::counter, "Time in which the engine had a request",
     [](Status s) { return seconds(s.sums.busy); }},
    {"planning_seconds_total", Kind::counter, "Part of it: offers, drafts and plans",
     [](Status s) { return seconds(s.sums.steps.planning); }},
    {"model_seconds_total", Kind::counter,
     "Part of it: the model's passes, by the device's own time",
     [](Status s) { return seconds(s.sums.steps.model); }},
    {"masking_seconds_total", Kind::counter,
     "Part of it: what draws are asked for, with grammars' masks",
     [](Status s) { return seconds(s.sums.steps.masking); }},
    {"sampling_seconds_total", Kind::counter, "Part of it: sampling, by the device's own time",
     [](Status s) { return seconds(s.sums.steps.sampling); }},
    {"drafting_seconds_total", Kind::counter,
     "Part of it: drafters, proposing and taking hidden states",
     [](Status s) { return seconds(s.sums.steps.drafting); }},
    {"draft_levels_total", Kind::counter, "Passes of draft models",
     [](Status s) { return number(s.sums.steps.draft_levels); }},
    {"disturbed_steps_total", Kind::counter,
     "Steps that took far longer than their like; speculation learns nothing from them",
     [](Status s) { return number(s.sums.steps.disturbed); }},
};

// Positions that any tree has reached so far.
std::size_t positions(Status s) {
    std::size_t reached = 0;
    for (std::size_t depth = 1; depth < s.sums.steps.accepted_at_depth.size(); ++depth)
        if (s.sums.steps.accepted_at_depth[depth] > 0) reached = depth;
    return reached;
}

const MetricFamily kFamilies[] = {
    {"drafts_accepted_at_position_total", Kind::counter,
     "Accepted drafts by depth below the root, from 0", "position", positions,
     [](Status, std::size_t i) { return std::to_string(i); },
     [](Status s, std::size_t i) { return number(s.sums.steps.accepted_at_depth[i + 1]); }},
    {"drafts_verified_by_drafter_total", Kind::counter,
     "Draft nodes in steps, by the drafter that was surest", "drafter",
     [](Status s) { return s.drafters.size(); },
     [](Status s, std::size_t i) { return s.drafters[i]; },
     [](Status s, std::size_t i) { return number(s.sums.steps.drafted_from[i]); }},
    {"drafts_accepted_by_drafter_total", Kind::counter, "Draft nodes accepted", "drafter",
     [](Status s) { return s.drafters.size(); },
     [](Status s, std::size_t i) { return s.drafters[i]; },
     [](Status s, std::size_t i) { return number(s.sums.steps.accepted_from[i]); }},
    {"drafter_suspended", Kind::gauge,
     "State of a drafter: 0, asked; 1, suspended, since steps with it gave fewer tokens per "
     "second; 2, left behind, since it gained less than its upkeep; 3, failed",
     "drafter", [](Status s) { return s.drafters.size(); },
     [](Status s, std::size_t i) { return s.drafters[i]; },
     [](Status s, std::size_t i) { return static_cast<double>(s.report.drafter_states[i]); }},
    {"drafter_suspended_steps", Kind::gauge, "Steps until a suspended drafter is asked again",
     "drafter", [](Status s) { return s.drafters.size(); },
     [](Status s, std::size_t i) { return s.drafters[i]; },
     [](Status s, std::size_t i) { return number(s.report.suspended_steps[i]); }},
};

}  // namespace

void EndCounts::add(const accept::Finish& finish, Interruption interruption, std::int64_t choices) {
    finished[static_cast<std::size_t>(finish.reason)] += choices;
    if (finish.reason == FinishReason::interrupted)
        interrupted[static_cast<std::size_t>(interruption)] += choices;
}

std::vector<std::string_view> drafter_states(const EngineStatus& status) {
    std::vector<std::string_view> states;
    for (std::size_t i = 0; i < status.drafters.size(); ++i)
        states.push_back(kDrafterStates[static_cast<std::size_t>(status.report.drafter_states[i])]);
    return states;
}

std::span<const Metric> engine_metrics() { return kMetrics; }
std::span<const MetricFamily> engine_metric_families() { return kFamilies; }

}  // namespace espalier::engine
