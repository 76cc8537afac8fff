// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"

namespace espalier::engine {

using speculate::DrafterId;
using speculate::Proposal;

namespace {

constexpr std::size_t kFirstSamples = 32;
constexpr std::int32_t kFirstFreeDrafts = 16;

}  // namespace

Speculation::Speculation(const SpeculationSettings& settings,
                         std::vector<std::unique_ptr<speculate::Drafter>> drafters)
    : settings_(settings) {
    CHECK(drafters.size() <= static_cast<std::size_t>(speculate::kMaxDrafters),
          "{} drafters, at most {}", drafters.size(), speculate::kMaxDrafters);
    for (auto& drafter : drafters) {
        Source& source = sources_.emplace_back();
        source.name = drafter->name();
        source.drafter = std::move(drafter);
    }
    const auto rows = static_cast<std::size_t>(settings.max_rows);
    proposals_.assign(rows, Proposal(0, 0));
    calls_.reserve(rows);
    offers_.reserve(rows);
    plan_rows_.reserve(rows);
    plan_index_.reserve(rows);
    prescribed_.reserve(rows);
    first_samples_.reserve(kFirstSamples);
}

const Speculation::Slot& Speculation::slot(RequestSlot request) const {
    CHECK(slots_.has(request), "request slot {} of {}", request.value(), slots_.values().size());
    return slots_[request];
}

Speculation::Slot& Speculation::slot(RequestSlot request) {
    return const_cast<Slot&>(std::as_const(*this).slot(request));
}

void Speculation::set_step_time(const speculate::StepTime& time) {
    time_ = time;
    first_grants_ = kFirstDrafts.size();
}

void Speculation::remember(const speculate::Memory& memory) {
    for (std::size_t i = 0; i < sources_.size(); ++i)
        for (const speculate::DrafterMemory& drafter : memory.drafters) {
            if (drafter.name != sources_[i].name) continue;
            table_.restore(static_cast<DrafterId>(i), drafter.acceptance);
            sources_[i].time.restore(drafter.calls);
        }
    rate_.restore(memory.rates);
    if (const auto time = speculate::StepTime::restore(memory.step_time)) set_step_time(*time);
}

speculate::Memory Speculation::memory() const {
    speculate::Memory memory;
    for (std::size_t i = 0; i < sources_.size(); ++i)
        memory.drafters.push_back({.name = sources_[i].name,
                                   .acceptance = table_.save(static_cast<DrafterId>(i)),
                                   .calls = sources_[i].time.save()});
    memory.rates = rate_.save();
    if (time_ && !starting()) memory.step_time = time_->save();
    return memory;
}

void Speculation::give_up(Source& source, const Error& error) {
    source.failure = error.message.empty() ? "failed without a word" : error.message;
    source.drafter.reset();
}

std::vector<std::string> Speculation::names() const {
    std::vector<std::string> names;
    for (const Source& source : sources_) names.push_back(source.name);
    return names;
}

std::vector<std::string> Speculation::failures() const {
    std::vector<std::string> failures;
    for (const Source& source : sources_) failures.push_back(source.failure);
    return failures;
}

void Speculation::describe(StepReport& report) const {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        const Source& source = sources_[i];
        const auto way =
            source.passes() ? speculate::DraftingWay::passes : speculate::DraftingWay::free;
        const std::int64_t pause = decoding_rows_ > 0 ? rate_.pause(decoding_rows_, way) : 0;
        report.suspended_steps[i] = source.works() ? pause : 0;
        report.drafter_states[i] = !source.works()         ? DrafterState::failed
                                   : pause > 0             ? DrafterState::slower
                                   : !source.watch.awake() ? DrafterState::left_behind
                                                           : DrafterState::drafting;
    }
}

bool Speculation::shown_to(const Slot& state, const Source& source) {
    return source.works() && (state.drafts || source.drafter->needs().hidden_states);
}

void Speculation::begin(RequestSlot request, std::span<const std::int32_t> prompt,
                        std::int64_t max_tokens, Drafts drafts,
                        std::span<const std::int32_t> expected_output) {
    Slot& state = slots_.grown_to(request);
    CHECK(!state.open, "request slot {} begins twice", request.value());
    state.open = true;
    state.drafts = drafts != Drafts::none && !sources_.empty();
    state.needs_watch = drafts == Drafts::prescribed;
    prescribing_ += state.needs_watch ? 1 : 0;
    state.proposed = false;
    state.free_drafts = kFirstFreeDrafts;
    state.fewer_steps = 0;
    state.bias = {};
    for (Source& source : sources_)
        if (state.needs_watch && !source.watch.awake()) source.watch.wake();
    const bool expects = state.drafts && !expected_output.empty();
    const bool reads = reads_ || prescribing_ > 0 || expects;
    const std::size_t first = reads ? std::min<std::size_t>(prompt.size(), kReadTokens) : 0;
    state.read = static_cast<std::int64_t>(first);
    for (Source& source : sources_) {
        if (!shown_to(state, source)) continue;
        if (expects) source.drafter->expect(request, prompt, expected_output);
        source.drafter->begin(request, prompt.first(first), max_tokens);
    }
}

void Speculation::end(RequestSlot request) {
    Slot& state = slot(request);
    CHECK(state.open, "request slot {} ends before it began", request.value());
    state.open = false;
    prescribing_ -= state.needs_watch ? 1 : 0;
    for (Source& source : sources_)
        if (shown_to(state, source)) source.drafter->end(request);
}

void Speculation::preempted(RequestSlot request) {
    for (Source& source : sources_)
        if (shown_to(slot(request), source)) source.drafter->preempted(request);
}

void Speculation::read(std::span<const Text> texts) {
    if (!reads()) return;
    const schedule::Time begin = settings_.clock ? settings_.clock() : 0;
    for (const Text& text : texts)
        if (std::ssize(text.tokens) - slot(text.request).read <= kMaxNodes)
            read_on(text, kMaxNodes);
    const schedule::Time end = settings_.clock ? settings_.clock() : 0;
    upkeep_.reading += static_cast<double>(end - begin) * 1e-9;
}

void Speculation::catch_up(std::span<const Text> texts, std::int64_t tokens) {
    if (!reads()) return;
    for (const Text& text : texts)
        if (tokens > 0) tokens -= read_on(text, tokens);
}

// Returns how many tokens were read.
std::int64_t Speculation::read_on(const Text& text, std::int64_t most) {
    Slot& state = slot(text.request);
    const std::int64_t count = std::min(std::ssize(text.tokens) - state.read, most);
    if (!state.drafts || count <= 0) return 0;
    const speculate::Commitment commitment = {
        text.request,
        text.tokens.subspan(static_cast<std::size_t>(state.read), static_cast<std::size_t>(count))};
    state.read += count;
    for (Source& source : sources_)
        if (shown_to(state, source)) source.drafter->commit({&commitment, 1});
    return count;
}

std::span<const DraftOrigin> Speculation::origins(RequestSlot request, std::int32_t drafts) const {
    return std::span(slot(request).ranked.origins).first(static_cast<std::size_t>(1 + drafts));
}

bool Speculation::may_write_kv() const {
    if (settings_.script != nullptr) return settings_.script->reserves_windows();
    return std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
        return source.works() && source.drafter->needs().draft_cache && source.watch.awake();
    });
}

bool Speculation::wants_hidden_states() const {
    return std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
        return source.looks_on() && source.watch.awake();
    });
}

void Speculation::extend(std::span<const speculate::Extension> extensions) {
    for (Source& source : sources_) {
        if (!source.looks_on() || !source.watch.awake()) continue;
        const schedule::Time begin = settings_.clock ? settings_.clock() : 0;
        if (const auto extended = source.drafter->extend(extensions); !extended)
            give_up(source, extended.error());
        const schedule::Time end = settings_.clock ? settings_.clock() : 0;
        source.look_on = static_cast<double>(end - begin) * 1e-9;
    }
}

void Speculation::learn(RequestSlot request, std::span<const std::int32_t> drawn) {
    Slot& state = slot(request);
    if (!state.proposed) return;
    state.proposed = false;
    const auto shown = state.candidates.observe(drawn, table_, state.bias);
    if (settings_.without == PolicyPart::acceptance) table_ = {};
    if (settings_.without == PolicyPart::request_bias) state.bias = {};
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (!sources_[i].passes()) note_free(shown[i]);
}

// Average over the last ~32 places.
void Speculation::note_free(const speculate::Candidates::Shown& shown) {
    const double kept = std::pow(1 - 1.0 / 32, static_cast<double>(shown.places));
    free_places_ = free_places_ * kept + static_cast<double>(shown.places);
    free_hits_ = free_hits_ * kept + static_cast<double>(shown.hits);
}

void Speculation::learn_calls(bool disturbed) {
    for (Source& source : sources_) {
        const bool fixed = disturbed || settings_.without == PolicyPart::draft_time;
        if (source.call && !(fixed && source.time.known()))
            source.time.observe(source.call->levels, source.call->tokens, source.call->seconds);
        source.call.reset();
    }
}

// While the first steps are being watched, a new size is fitted with those before it; more of a
// size that is known corrects what was fitted. Returns whether the step was disturbed.
bool Speculation::learn_time(const speculate::StepSample& sample) {
    if (settings_.grant != NodeGrant::measured || sources_.empty()) return false;
    const auto alike =
        std::count_if(first_samples_.begin(), first_samples_.end(),
                      [&](const auto& one) { return one.size.tokens == sample.size.tokens; });
    if (starting() && alike < 4 && first_samples_.size() < kFirstSamples) {
        first_samples_.push_back(sample);
        if (const auto fitted = speculate::StepTime::fit(first_samples_)) {
            time_ = *fitted;
            return false;
        }
        first_samples_.pop_back();  // no measurement: the clock stood still
    }
    return time_ && settings_.without != PolicyPart::step_time && time_->observe(sample);
}

// Steps that were disturbed say nothing of what drafts bring, nor do those that a request
// prescribes its drafts in.
bool Speculation::learn(const Step& step) {
    // Without what drafters take: what is left grows with rows and tokens, on the host too.
    const bool disturbed =
        learn_time({.size = step.size, .seconds = step.seconds - step.drafting - upkeep_.reading});
    learn_calls(disturbed);
    const bool measured = settings_.grant == NodeGrant::measured && decoding_rows_ > 0;
    if (measured && !starting() && !disturbed && !prescribes_) learn_rate(step);
    return disturbed;
}

// With many short texts hardly a step is without prompts, so their part is taken out by the model
// of a step, whose error must stay small beside the rest: no more than three fifths may be theirs.
void Speculation::learn_rate(const Step& step) {
    watch(step.seconds);
    speculate::MeasuredRate::Upkeep upkeep = upkeep_;
    // Drafters without passes that only look take time from no way.
    if (looks_) upkeep.reading = 0;
    for (const Source& source : sources_) upkeep.look_on += source.look_on;
    double prompt_seconds = 0;
    if (step.prompts > 0 && time_) {
        speculate::StepSize decoding = step.size;
        decoding.tokens -= step.prompts;
        prompt_seconds = time_->seconds(step.size) - time_->seconds(decoding);
    }
    if (!went_ || (step.prompts > 0 && !time_) || prompt_seconds > 0.6 * step.seconds) return;
    rate_.observe(decoding_rows_, {.way = *went_,
                                   .tokens = step.tokens,
                                   .seconds = step.seconds - prompt_seconds,
                                   .upkeep = upkeep});
}

// Which draft models are kept up to date from here on.
void Speculation::watch(double seconds) {
    if (prescribing_ > 0 || settings_.without == PolicyPart::watch) return;
    const bool planned = way_ == speculate::DraftingWay::passes;
    const std::int64_t pause = rate_.pause(decoding_rows_, speculate::DraftingWay::passes);
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        Source& source = sources_[i];
        if (!source.looks_on()) continue;
        const auto id = static_cast<DrafterId>(i);
        const bool was_awake = source.watch.awake();
        source.watch.observe({.rows = decoding_rows_,
                              .seconds = seconds,
                              .look_on = source.look_on,
                              .gain = planned ? planner_.saves(id) : 0,
                              .pause = pause,
                              .able = planned && 2 * source.able >= decoding_rows_});
        if (was_awake && !source.watch.awake()) source.drafter->forget();
    }
}

}  // namespace espalier::engine
