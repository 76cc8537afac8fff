// SPDX-License-Identifier: Apache-2.0
// The decisions of a step. Lessons of an outcome are in draft_policy_learn.cpp.
#include "speculate/policy/draft_policy.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

constexpr std::int32_t kFirstFreeDrafts = 16;

}  // namespace

DraftPolicy::DraftPolicy(const PolicySettings& settings) : settings_(settings) {
    const auto rows = static_cast<std::size_t>(settings.max_rows);
    facts_.rows.reserve(rows);
    offers_.reserve(rows);
    plan_rows_.reserve(rows);
    plan_index_.reserve(rows);
    prescribed_.reserve(rows);
    granted_.reserve(rows);
    first_samples_.reserve(kFirstSamples);
}

void DraftPolicy::take_any(const PolicyFact& fact) {
    std::visit([this](const auto& one) { take(one); }, fact);
}

void DraftPolicy::take(const RequestBegun& fact) {
    requests_.grown_to(fact.request) = {
        .prescribes = fact.prescribes, .free_drafts = kFirstFreeDrafts, .bias = {}};
    if (!fact.prescribes) return;
    ++prescribing_;
    for (DrafterState& drafter : drafters_)
        if (!drafter.watch.awake()) drafter.watch.wake();
}

void DraftPolicy::take(const RequestEnded& fact) {
    Request& request = requests_[fact.request];
    prescribing_ -= std::exchange(request.prescribes, false) ? 1 : 0;
}

void DraftPolicy::take(const StepFacts& facts) {
    learn_calls(facts.calls, false);
    facts_ = facts;
    step_ = {};
    granted_.assign(facts.rows.size(), 0);
    plan_rows_.clear();
    plan_index_.assign(facts.rows.size(), kNoPlan);
    open_ways();
    if (step_.asks) return start_choice();
    if (!time_ || settings_.drafters == 0) return;
    budget_.grant(*time_, facts_.load, {}, {});  // time passes until its next probe
    note_way(false);
}

bool DraftPolicy::has_free() const {
    return std::ranges::any_of(facts_.drafters,
                               [](const auto& one) { return one.works && !one.passes; });
}

// A step without prompts and drafts.
StepSize DraftPolicy::decoding_size() const {
    StepSize size{.rows = row_count(), .tokens = row_count()};
    for (const RowFacts& row : facts_.rows) size.keys += row.keys;
    return size;
}

// Seconds of a step without drafts.
double DraftPolicy::prompt_seconds() const {
    if (!time_ || facts_.load.size.tokens <= row_count()) return 0;
    return std::max(time_->seconds(facts_.load.size) - time_->seconds(decoding_size()), 0.0);
}

// Drafters without passes that are suspended are compared with what is drawn all the same, where
// that takes less than a hundredth of the time: so it is known when texts come that they are right
// about.
bool DraftPolicy::may_look() const {
    constexpr double kShare = 0.01;
    return time_ && has_free() && !is_without(PolicyPart::looks) &&
           free_seconds_ * static_cast<double>(row_count()) <
               kShare * time_->seconds({.rows = row_count(), .tokens = row_count()});
}

// While costs are unknown, and where everything is granted, no way is closed. A step of which every
// row prescribes its drafts is none of a way's.
DraftingWay DraftPolicy::next_way() {
    if (!settings_.measured || facts_.rows.empty() || starting() || is_without(PolicyPart::rates))
        return DraftingWay::passes;
    if (std::ranges::all_of(facts_.rows,
                            [](const auto& row) { return row.prescribed.has_value(); }))
        return DraftingWay::none;
    MeasuredRate::Question question;
    question.free = has_free();
    for (std::size_t d = 0; d < kMaxDrafters; ++d) {
        const DrafterFacts& drafter = facts_.drafters[d];
        question.passes = question.passes ||
                          (drafter.works && drafter.passes && awake(static_cast<DrafterId>(d)));
    }
    question.counts = !step_.prescribes;
    if (time_) question.plain_seconds = time_->seconds(decoding_size());
    return rate_.next(row_count(), question);
}

// Ways that drafters may go in this step. Those without passes that are right more than half of the
// time are suspended for 64 steps at most: what is measured may be wrong, and it costs little.
void DraftPolicy::open_ways() {
    constexpr std::int64_t kLongest = 64;
    const bool measured = settings_.measured && !facts_.rows.empty();
    step_.prescribes = std::ranges::any_of(
        facts_.rows, [](const auto& row) { return row.prescribed.has_value(); });
    if (measured && free_hits_ > 0.5 * free_places_ && !is_without(PolicyPart::short_pauses))
        rate_.hasten(row_count(), DraftingWay::free, kLongest);
    step_.way = next_way();
    const bool free_open = !measured || !rate_.suspended(row_count(), DraftingWay::free);
    step_.looks = !free_open && may_look();
    reads_ = free_open || step_.looks || prescribing_ > 0;
    step_.asks = settings_.drafters > 0 &&
                 (step_.way != DraftingWay::none || prescribing_ > 0 || step_.looks);
    step_.asks_free = step_.way == DraftingWay::none ? step_.looks : free_open;
}

bool DraftPolicy::may_draft(std::size_t row) const {
    const RowFacts& asked = facts_.rows[row];
    if (step_.way == DraftingWay::none && !step_.looks && !asked.prescribed) return false;
    return asked.drafts && asked.max_drafts > 0;
}

// Drafters without passes wait until they have read most of the texts: a step in which they draft
// for a few says neither what they cost nor what goes without them.
void DraftPolicy::start_choice() {
    std::int64_t drafting = 0, read = 0;
    for (std::size_t i = 0; i < facts_.rows.size(); ++i) {
        drafting += may_draft(i) ? 1 : 0;
        read += may_draft(i) && facts_.rows[i].read ? 1 : 0;
    }
    step_.asks_free = step_.asks_free && 2 * read >= drafting;
    const bool compares_alone = step_.looks && step_.way == DraftingWay::none;
    step_.free_rows = step_.asks_free && has_free() && !compares_alone ? read : 0;
    facts_.load.prompt_seconds = prompt_seconds();
}

bool DraftPolicy::plans() const {
    for (std::size_t d = 0; d < kMaxDrafters; ++d)
        if (facts_.drafters[d].works && facts_.drafters[d].passes &&
            awake(static_cast<DrafterId>(d)))
            return true;
    return false;
}

bool DraftPolicy::plans_row(std::size_t row) const {
    return may_draft(row) && !facts_.rows[row].prescribed && step_.way == DraftingWay::passes;
}

void DraftPolicy::add_plan_rows(const ProposedFacts& facts) {
    if (!facts.rows.empty())
        for (DrafterState& drafter : drafters_) drafter.able = 0;
    for (const ProposedFacts::Row& row : facts.rows) {
        const RowFacts& asked = facts_.rows.at(row.row);
        plan_index_[row.row] = plan_rows_.size();
        plan_rows_.push_back({.bias = &requests_[asked.request].bias,
                              .coupled = asked.coupled,
                              .unable = row.unable,
                              .keys = asked.keys,
                              .max_drafts = asked.max_drafts,
                              .drafts = row.drafts,
                              .reach = row.reach});
        bool able = false;
        for (std::size_t d = 0; d < kMaxDrafters; ++d) {
            drafters_[d].able += row.unable[d] ? 0 : 1;
            able = able || !row.unable[d];
        }
        step_.planned_rows += able ? 1 : 0;
    }
}

// Plan of draft models, beside what the drafters without passes have proposed and what rows
// prescribe.
void DraftPolicy::take(const ProposedFacts& facts) {
    add_plan_rows(facts);
    if (!time_ || !settings_.measured) return;
    StepLoad load = facts_.load;
    load.draft_seconds += facts.free_seconds;
    for (std::size_t i = 0; i < facts_.rows.size(); ++i) {
        const RowFacts& row = facts_.rows[i];
        if (!row.prescribed || !may_draft(i)) continue;
        const std::int64_t drafts = within(*row.prescribed, row.max_drafts).nodes - 1;
        load.size.tokens += drafts;
        load.size.keys += static_cast<double>(drafts) * row.keys;
        load.max_drafts = std::max<std::int64_t>(load.max_drafts - drafts, 0);
    }
    std::array<const DraftTime*, kMaxDrafters> times = {};
    for (std::size_t d = 0; d < kMaxDrafters; ++d)
        if (std::ranges::any_of(plan_rows_, [d](const auto& row) { return !row.unable[d]; }))
            times[d] = &drafters_[d].time;
    planner_.plan(
        {.target = *time_, .table = table_, .times = times, .load = load, .rows = plan_rows_});
    for (std::size_t d = 0; d < kMaxDrafters; ++d)
        if (times[d] != nullptr) note_plan(static_cast<DrafterId>(d));
}

// Acceptance of a drafter that is not asked fades, so that it is asked once more some day.
void DraftPolicy::note_plan(DrafterId drafter) {
    if (planner_.probes(drafter)) table_.fade(drafter);
    for (std::size_t i = 0; i < facts_.rows.size(); ++i)
        if (plan_index_[i] != kNoPlan && planner_.shape(drafter, plan_index_[i]).depth == 0)
            requests_[facts_.rows[i].request].bias.relax(drafter);
}

DraftShape DraftPolicy::shape(DrafterId drafter, std::size_t row) const {
    const RowFacts& asked = facts_.rows[row];
    const bool passes = facts_.drafters.at(drafter).passes;
    if (!may_draft(row)) return DraftPlanner::kNotAsked;
    if (passes && !awake(drafter)) return DraftPlanner::kNotAsked;
    if (!passes && (!asked.read || !(step_.asks_free || asked.prescribed)))
        return DraftPlanner::kNotAsked;
    if (asked.prescribed) return within(*asked.prescribed, asked.max_drafts);
    if (!settings_.measured) return within({}, asked.max_drafts);
    if (!passes)
        return within({.nodes = 1 + requests_[asked.request].free_drafts}, asked.max_drafts);
    if (plan_index_[row] == kNoPlan) return DraftPlanner::kNotAsked;
    if (!time_ || is_without(PolicyPart::shapes))
        return within(DraftPlanner::kFirstShape, asked.max_drafts);
    return planner_.shape(drafter, plan_index_[row]);
}

void DraftPolicy::take(const OfferedFacts& facts) {
    CHECK(facts.drafts.size() == facts_.rows.size(), "offers of {} rows, the step has {}",
          facts.drafts.size(), facts_.rows.size());
    step_.planning_seconds = facts.planning_seconds;
    if (step_.asks_free && row_count() > 0)
        free_seconds_ = facts.free_seconds / static_cast<double>(row_count());
    StepLoad load = facts_.load;
    load.draft_seconds += facts.free_seconds + facts.model_seconds;
    offers_.clear();
    std::size_t first = 0;
    for (std::size_t i = 0; i < facts.drafts.size(); ++i) {
        const auto count = static_cast<std::size_t>(facts.drafts[i]);
        offers_.push_back({std::span(facts.survival).subspan(first, count), facts_.rows[i].keys});
        first += count;
    }
    grant_prescribed(load);
    if (step_.looks && step_.way == DraftingWay::none)
        note_way(false);
    else if (settings_.measured)
        grant_measured(load);
    else
        grant_everything(load);
    if (step_.asks_free && !starting()) note_granted();
    for (std::size_t i = 0; i < granted_.size(); ++i) granted_[i] += prescribed_[i];
}

// Prescribed drafts come first, and are part of the step that the others are weighed in.
void DraftPolicy::grant_prescribed(StepLoad& load) {
    prescribed_.assign(facts_.rows.size(), 0);
    for (std::size_t i = 0; i < facts_.rows.size(); ++i) {
        if (!facts_.rows[i].prescribed) continue;
        OfferedDrafts& offer = offers_[i];
        const std::int64_t count = std::min(std::ssize(offer.survival), load.max_drafts);
        prescribed_[i] = static_cast<std::int32_t>(count);
        for (std::int64_t n = 0; n < count; ++n)
            load.expected_tokens += offer.survival[static_cast<std::size_t>(n)];
        load.size.tokens += count;
        load.size.keys += static_cast<double>(count) * offer.keys;
        load.max_drafts -= count;
        offer.survival = {};
    }
}

void DraftPolicy::grant_measured(const StepLoad& load) {
    const bool any = std::ranges::any_of(
        offers_, [](const OfferedDrafts& offer) { return !offer.survival.empty(); });
    std::int64_t paying = kMaxDrafts;
    if (time_) {
        const GrantedNodes granted = budget_.grant(*time_, load, offers_, granted_);
        paying = granted.drafts;
        note_way(granted.probe || (any && starting()));
    }
    if (is_without(PolicyPart::grant) && !starting()) return grant_everything(load);
    if (!any || !starting()) return;
    // One size further than what seems to pay: what few samples say may be wrong.
    const std::int64_t near = 2 * paying + NodeBudget::kProbeDrafts;
    const std::int64_t first = std::min(kFirstDrafts[first_grants_++], near);
    budget_.grant_surest(std::min(first, load.max_drafts), offers_, granted_);
}

void DraftPolicy::grant_everything(const StepLoad& load) {
    std::int64_t left = load.max_drafts;
    for (std::size_t i = 0; i < granted_.size(); ++i) {
        granted_[i] = static_cast<std::int32_t>(std::min(std::ssize(offers_[i].survival), left));
        left -= granted_[i];
    }
}

// Drafters without passes are asked for what the request may be granted, not for all they have:
// with 128 texts in a step that is 4 nodes of 63 for most of them, and proposing, merging and
// ranking the others took a fifth of the step.
void DraftPolicy::note_granted() {
    for (std::size_t i = 0; i < facts_.rows.size(); ++i) {
        Request& request = requests_[facts_.rows[i].request];
        const std::int32_t wanted = is_without(PolicyPart::free_drafts)
                                        ? kMaxDrafts
                                        : std::min(2 * granted_[i] + 4, kMaxDrafts);
        if (wanted >= request.free_drafts) {
            request.free_drafts = wanted;
            request.fewer_steps = 0;
        } else if (++request.fewer_steps % 4 == 0) {
            request.free_drafts -= std::max((request.free_drafts - wanted) / 4, 1);
        }
    }
}

// Way under which the step's rate is booked: the one that it was allowed; none where a part of the
// step is there to learn. A way that is open to few of the texts says nothing of it.
void DraftPolicy::note_way(bool learns) {
    const bool planned = step_.way == DraftingWay::passes;  // otherwise the planner was not asked
    if (step_.prescribes || learns || (planned && planner_.learns())) return;
    if (planned && 2 * step_.planned_rows >= row_count())
        step_.measured_as = DraftingWay::passes;
    else
        step_.measured_as =
            2 * step_.free_rows >= row_count() ? DraftingWay::free : DraftingWay::none;
}

}  // namespace espalier::speculate
