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
    {"heartbeat_seconds", Kind::gauge, "When the engine's thread last came round, on its clock",
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
                       s.sums.ends.of(Interruption::step_failed));
     }},
    {"requests_cancelled_total", Kind::counter, "Ended by their clients",
     [](Status s) { return number(s.sums.ends.of(Interruption::cancelled)); }},
    {"requests_expired_total", Kind::counter, "Ended by their deadlines",
     [](Status s) { return number(s.sums.ends.of(Interruption::deadline)); }},
    {"preemptions_total", Kind::counter, "Requests that made way and were computed again",
     [](Status s) { return number(s.totals.preemptions); }},
    {"prompt_tokens_total", Kind::counter, "Of requests that were admitted",
     [](Status s) { return number(s.totals.prompt_tokens); }},
    {"prompt_tokens_cached_total", Kind::counter, "Of these, found in the prefix index",
     [](Status s) { return number(s.totals.hit_tokens); }},
    {"output_tokens_total", Kind::counter, "Tokens committed",
     [](Status s) { return number(s.sums.steps.committed); }},
    {"drafts_verified_total", Kind::counter, "Draft nodes in steps",
     [](Status s) { return number(s.totals.tokens.drafts); }},
    {"drafts_accepted_total", Kind::counter, "Of these, drawn",
     [](Status s) { return number(s.sums.steps.accepted); }},
    {"slots_moved_total", Kind::counter, "Accepted nodes that did not lie where they belong",
     [](Status s) { return number(s.sums.steps.moved); }},
    {"steps_total", Kind::counter, "Passes of the model", [](Status s) { return number(s.steps); }},
    {"step_requests_total", Kind::counter, "Requests in each step, summed",
     [](Status s) { return number(s.sums.steps.requests); }},
    {"busy_seconds_total", Kind::counter, "Time in which the engine had a request",
     [](Status s) { return seconds(s.sums.busy); }},
    {"planning_seconds_total", Kind::counter, "Of this: offers, drafts and plans",
     [](Status s) { return seconds(s.sums.steps.planning); }},
    {"model_seconds_total", Kind::counter, "Of this: the model's passes",
     [](Status s) { return seconds(s.sums.steps.model); }},
    {"sampling_seconds_total", Kind::counter, "Of this: sampling",
     [](Status s) { return seconds(s.sums.steps.sampling); }},
};

}  // namespace

void EndCounts::add(const accept::Finish& finish, Interruption interruption, std::int64_t choices) {
    finished[static_cast<std::size_t>(finish.reason)] += choices;
    if (finish.reason == FinishReason::interrupted)
        interrupted[static_cast<std::size_t>(interruption)] += choices;
}

std::span<const Metric> engine_metrics() { return kMetrics; }

}  // namespace espalier::engine
