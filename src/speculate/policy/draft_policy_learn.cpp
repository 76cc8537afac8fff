// SPDX-License-Identifier: Apache-2.0
// Lessons of an outcome, and the part of them that is kept from run to run.
#include <algorithm>
#include <cmath>

#include "speculate/policy/draft_policy.hpp"

namespace espalier::speculate {

void DraftPolicy::set_step_time(const StepTime& time) {
    time_ = time;
    first_grants_ = kFirstDrafts.size();
}

void DraftPolicy::remember(const Memory& memory, std::span<const std::string> names) {
    for (std::size_t i = 0; i < names.size(); ++i)
        for (const DrafterMemory& drafter : memory.drafters) {
            if (drafter.name != names[i]) continue;
            table_.restore(static_cast<DrafterId>(i), drafter.acceptance);
            drafters_.at(i).time.restore(drafter.calls);
        }
    rate_.restore(memory.rates);
    if (const auto time = StepTime::restore(memory.step_time)) set_step_time(*time);
}

Memory DraftPolicy::memory(std::span<const std::string> names) const {
    Memory memory;
    for (std::size_t i = 0; i < names.size(); ++i)
        memory.drafters.push_back({.name = names[i],
                                   .acceptance = table_.save(static_cast<DrafterId>(i)),
                                   .calls = drafters_.at(i).time.save()});
    memory.rates = rate_.save();
    if (time_ && !starting()) memory.step_time = time_->save();
    return memory;
}

std::int64_t DraftPolicy::pause(DrafterId drafter, bool passes) const {
    if (facts_.rows.empty() || drafter >= settings_.drafters) return 0;
    return rate_.pause(row_count(), passes ? DraftingWay::passes : DraftingWay::free);
}

void DraftPolicy::take(const ComparedFacts& facts) {
    RequestBias& bias = requests_[facts.request].bias;
    const auto shown = observe(facts.comparisons, table_, bias);
    if (is_without(PolicyPart::acceptance)) table_ = {};
    if (is_without(PolicyPart::request_bias)) bias = {};
    for (std::size_t d = 0; d < kMaxDrafters; ++d)
        if (!facts_.drafters[d].passes) note_free(shown[d]);
}

// Average over the last ~32 places.
void DraftPolicy::note_free(const Shown& shown) {
    const double kept = std::pow(1 - 1.0 / 32, static_cast<double>(shown.places));
    free_places_ = free_places_ * kept + static_cast<double>(shown.places);
    free_hits_ = free_hits_ * kept + static_cast<double>(shown.hits);
}

void DraftPolicy::learn_calls(const DraftCallTimes& calls, bool disturbed) {
    const bool fixed = disturbed || is_without(PolicyPart::draft_time);
    for (std::size_t d = 0; d < kMaxDrafters; ++d)
        if (calls[d] && !(fixed && drafters_[d].time.known()))
            drafters_[d].time.observe(calls[d]->levels, calls[d]->tokens, calls[d]->seconds);
}

// While the first steps are being watched, a new size is fitted with those before it; more of a
// size that is known corrects what was fitted. Returns whether the step was disturbed.
bool DraftPolicy::learn_time(const StepSample& sample) {
    if (!settings_.measured || settings_.drafters == 0) return false;
    const auto alike = std::ranges::count_if(first_samples_, [&](const StepSample& one) {
        return one.size.tokens == sample.size.tokens;
    });
    if (starting() && alike < 4 && first_samples_.size() < kFirstSamples) {
        first_samples_.push_back(sample);
        if (const auto fitted = StepTime::fit(first_samples_)) {
            time_ = *fitted;
            return false;
        }
        first_samples_.pop_back();  // no measurement: the clock stood still
    }
    return time_ && !is_without(PolicyPart::step_time) && time_->observe(sample);
}

// Steps that were disturbed say nothing of what drafts bring, nor do those that a request
// prescribes its drafts in.
void DraftPolicy::take(const OutcomeFacts& facts) {
    // Without what drafters take: what is left grows with rows and tokens, on the host too.
    disturbed_ =
        learn_time({.size = facts.size, .seconds = facts.seconds - facts.drafting - facts.reading});
    learn_calls(facts.calls, disturbed_);
    const bool measured = settings_.measured && row_count() > 0;
    if (measured && !starting() && !disturbed_ && !step_.prescribes) learn_rate(facts);
}

// With many short texts hardly a step is without prompts, so their part is taken out by the model
// of a step, whose error must stay small beside the rest: no more than three fifths may be theirs.
void DraftPolicy::learn_rate(const OutcomeFacts& facts) {
    watch(facts);
    // Drafters without passes that only look take time from no way.
    MeasuredRate::Upkeep upkeep = {.reading = step_.looks ? 0 : facts.reading,
                                   .look_on = step_.planning_seconds};
    for (const double seconds : facts.look_on) upkeep.look_on += seconds;
    double prompt_seconds = 0;
    if (facts.prompt_tokens > 0 && time_) {
        StepSize decoding = facts.size;
        decoding.tokens -= facts.prompt_tokens;
        prompt_seconds = time_->seconds(facts.size) - time_->seconds(decoding);
    }
    if (!step_.measured_as || (facts.prompt_tokens > 0 && !time_) ||
        prompt_seconds > 0.6 * facts.seconds)
        return;
    rate_.observe(row_count(), {.way = *step_.measured_as,
                                .tokens = facts.tokens,
                                .seconds = facts.seconds - prompt_seconds,
                                .upkeep = upkeep});
}

// Draft models that are kept up to date from here on.
void DraftPolicy::watch(const OutcomeFacts& facts) {
    if (prescribing_ > 0 || is_without(PolicyPart::watch)) return;
    const bool planned = step_.way == DraftingWay::passes;
    const std::int64_t pause = rate_.pause(row_count(), DraftingWay::passes);
    for (std::size_t d = 0; d < kMaxDrafters; ++d) {
        if (!facts_.drafters[d].works || !facts_.drafters[d].looks_on) continue;
        DrafterState& drafter = drafters_[d];
        drafter.watch.observe({.rows = row_count(),
                               .seconds = facts.seconds,
                               .look_on = facts.look_on[d],
                               .gain = planned ? planner_.saves(static_cast<DrafterId>(d)) : 0,
                               .pause = pause,
                               .able = planned && 2 * drafter.able >= row_count()});
    }
}

}  // namespace espalier::speculate
