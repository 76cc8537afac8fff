// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace espalier::engine {

using speculate::DrafterId;
using speculate::Proposal;

Speculation::Speculation(const SpeculationSettings& settings,
                         std::vector<std::unique_ptr<speculate::Drafter>> drafters)
    : settings_(settings),
      policy_({.measured = settings.grant == NodeGrant::measured,
               .drafters = drafters.size(),
               .max_rows = settings.max_rows,
               .without = settings.without}) {
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
    call_rows_.reserve(rows);
    step_.rows.reserve(rows);
    proposed_.rows.reserve(rows);
    offered_.drafts.reserve(rows);
    offered_.survival.reserve(rows * kMaxDrafts);
    compared_.comparisons.reserve(speculate::kMaxCandidates * kMaxDrafters);
}

const Speculation::Slot& Speculation::slot(RequestSlot request) const {
    CHECK(slots_.has(request), "request slot {} of {}", request.value(), slots_.values().size());
    return slots_[request];
}

Speculation::Slot& Speculation::slot(RequestSlot request) {
    return const_cast<Slot&>(std::as_const(*this).slot(request));
}

template <typename Fact>
void Speculation::tell(const Fact& fact) {
    policy_.take(fact);
    if (settings_.policy_observer) settings_.policy_observer(speculate::PolicyFact(fact), policy_);
}

double Speculation::seconds_since(schedule::Time begin) const {
    return static_cast<double>(now() - begin) * 1e-9;
}

bool Speculation::is_awake(std::size_t source) const {
    return policy_.awake(static_cast<DrafterId>(source));
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
        const std::int64_t pause = policy_.pause(static_cast<DrafterId>(i), source.passes());
        report.suspended_steps[i] = source.works() ? pause : 0;
        report.drafter_states[i] = !source.works() ? DrafterState::failed
                                   : pause > 0     ? DrafterState::slower
                                   : !is_awake(i)  ? DrafterState::left_behind
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
    state.proposed = false;
    tell(speculate::RequestBegun{request, drafts == Drafts::prescribed});
    const bool expects = state.drafts && !expected_output.empty();
    const bool reads = policy_.reads() || policy_.prescribes() || expects;
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
    tell(speculate::RequestEnded{request});
    for (Source& source : sources_)
        if (shown_to(state, source)) source.drafter->end(request);
}

void Speculation::preempted(RequestSlot request) {
    for (Source& source : sources_)
        if (shown_to(slot(request), source)) source.drafter->preempted(request);
}

void Speculation::read(std::span<const Text> texts) {
    if (!reads()) return;
    const schedule::Time begin = now();
    for (const Text& text : texts)
        if (std::ssize(text.tokens) - slot(text.request).read <= kMaxNodes)
            read_on(text, kMaxNodes);
    outcome_.reading += seconds_since(begin);
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
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (sources_[i].works() && sources_[i].drafter->needs().draft_cache && is_awake(i))
            return true;
    return false;
}

bool Speculation::wants_hidden_states() const {
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (sources_[i].looks_on() && is_awake(i)) return true;
    return false;
}

void Speculation::extend(std::span<const speculate::Extension> extensions) {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        Source& source = sources_[i];
        if (!source.looks_on() || !is_awake(i)) continue;
        const schedule::Time begin = now();
        if (const auto extended = source.drafter->extend(extensions); !extended)
            give_up(source, extended.error());
        outcome_.look_on[i] = seconds_since(begin);
    }
}

void Speculation::learn(RequestSlot request, std::span<const std::int32_t> drawn) {
    Slot& state = slot(request);
    if (!std::exchange(state.proposed, false)) return;
    compared_.request = request;
    state.candidates.compare(drawn, compared_.comparisons);
    tell(compared_);
}

bool Speculation::learn(const Step& step) {
    if (settings_.script != nullptr) return false;
    outcome_.size = step.size;
    outcome_.prompt_tokens = step.prompts;
    outcome_.tokens = step.tokens;
    outcome_.seconds = step.seconds;
    outcome_.drafting = step.drafting;
    std::array<bool, kMaxDrafters> was_awake = {};
    for (std::size_t i = 0; i < sources_.size(); ++i) was_awake[i] = is_awake(i);
    tell(outcome_);
    outcome_.calls = {};
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (was_awake[i] && !is_awake(i) && sources_[i].works()) sources_[i].drafter->forget();
    return policy_.disturbed();
}

}  // namespace espalier::engine
