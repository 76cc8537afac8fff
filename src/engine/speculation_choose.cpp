// SPDX-License-Identifier: Apache-2.0
// The first half of Speculation's step: what drafters are asked for, and what they propose. How
// many nodes each request verifies is in speculation_grant.cpp.
#include <algorithm>
#include <array>

#include "base/at.hpp"
#include "base/check.hpp"
#include "engine/speculation.hpp"
#include "ops/draw.hpp"

namespace espalier::engine {

using speculate::DrafterId;
using speculate::DraftingWay;
using speculate::DraftPlanner;
using speculate::DraftShape;
using speculate::Proposal;

namespace {

// Survival from which a draft that is proposed for nothing counts as there, for a plan.
constexpr double kThere = 0.2;

DraftShape within(const DraftShape& shape, std::int32_t max_drafts) {
    return {.depth = std::min(shape.depth, max_drafts),
            .width = std::min(shape.width, max_drafts),
            .nodes = std::min(shape.nodes, 1 + max_drafts)};
}

// The legal nodes of a proposal: those below an illegal one go with it.
Proposal legal_part(const Proposal& proposal, accept::Constraint& constraint) {
    const speculate::Tree& tree = proposal.tree;
    std::array<bool, kMaxNodes> legal = {};
    accept::visit_legal({tree.parents(), tree.tokens()}, constraint,
                        [&](std::int32_t node) { at(legal, node) = true; });
    Proposal kept(proposal.drafter, tree.token(0));
    kept.coupled = proposal.coupled;
    std::array<std::int32_t, kMaxNodes> place = {};
    for (std::int32_t node = 1; node < tree.size(); ++node)
        if (at(legal, node))
            at(place, node) =
                kept.add(at(place, tree.parent(node)), tree.token(node), at(proposal.score, node));
    return kept;
}

// The nodes of a proposal that a text can reach: none below a token that ends the output.
void remove_below_ends(Proposal& proposal, const accept::OutputRules& rules) {
    const speculate::Tree& tree = proposal.tree;
    std::array<bool, kMaxNodes> beyond = {};
    bool any = false;
    for (std::int32_t node = 1; node < tree.size(); ++node) {
        const std::int32_t parent = tree.parent(node);
        at(beyond, node) =
            at(beyond, parent) || (parent > 0 && rules.ends_output(tree.token(parent)));
        any = any || at(beyond, node);
    }
    if (!any) return;
    Proposal kept(proposal.drafter, tree.token(0));
    kept.coupled = proposal.coupled;
    std::array<std::int32_t, kMaxNodes> place = {};
    for (std::int32_t node = 1; node < tree.size(); ++node)
        if (!at(beyond, node))
            at(place, node) =
                kept.add(at(place, tree.parent(node)), tree.token(node), at(proposal.score, node));
    proposal = kept;
}

double keys_of(const SpeculationSettings& settings, const DraftRow& row) {
    return settings.key_cost * static_cast<double>(row.tokens.size());
}

}  // namespace

bool Speculation::may_draft(const DraftRow& row) const {
    const Slot& state = slot(row.request);
    if (way_ == DraftingWay::none && !looks_ && row.prescribed == nullptr) return false;
    return state.drafts && row.max_drafts > 0;
}

// While costs are unknown, and where everything is granted, no way is closed. A step of which every
// row prescribes its drafts is none of a way's.
DraftingWay Speculation::way_of(std::span<const DraftRow> rows) {
    if (settings_.grant != NodeGrant::measured || rows.empty() || starting() ||
        settings_.without == PolicyPart::rates)
        return DraftingWay::passes;
    if (std::ranges::all_of(rows, [](const DraftRow& row) { return row.prescribed != nullptr; }))
        return DraftingWay::none;
    speculate::MeasuredRate::Question question;
    question.free = has_free();
    for (const Source& source : sources_)
        question.passes = question.passes || (source.passes() && source.watch.awake());
    question.counts = !prescribes_;
    if (time_) question.plain_seconds = time_->seconds(decoding_size(rows));
    return rate_.next(std::ssize(rows), question);
}

bool Speculation::has_read(const DraftRow& row) const {
    return slot(row.request).read == std::ssize(row.tokens);
}

bool Speculation::can_ask(const Source& source, const DraftRow& row) const {
    if (!source.passes()) return (asks_free_ || row.prescribed != nullptr) && has_read(row);
    return source.watch.awake() && source.drafter->follows(row.request, std::ssize(row.tokens) - 1);
}

// Drafters without passes that are suspended are compared with what is drawn all the same, where
// that takes less than a hundredth of the time: so it is known when texts come that they are right
// about.
bool Speculation::may_look(std::span<const DraftRow> rows) const {
    constexpr double kShare = 0.01;
    const auto count = static_cast<double>(rows.size());
    return time_ && has_free() && settings_.without != PolicyPart::looks &&
           free_seconds_ * count <
               kShare * time_->seconds({.rows = std::ssize(rows), .tokens = std::ssize(rows)});
}

// Ways that drafters may go in this step. Those without passes that are right more than half of the
// time are suspended for 64 steps at most: what is measured may be wrong, and it costs little.
void Speculation::open_ways(std::span<const DraftRow> rows) {
    constexpr std::int64_t kLongest = 64;
    const bool measured = settings_.grant == NodeGrant::measured && !rows.empty();
    prescribes_ =
        std::ranges::any_of(rows, [](const DraftRow& row) { return row.prescribed != nullptr; });
    if (measured && free_hits_ > 0.5 * free_places_ &&
        settings_.without != PolicyPart::short_pauses)
        rate_.hasten(std::ssize(rows), DraftingWay::free, kLongest);
    way_ = way_of(rows);
    free_open_ = !measured || !rate_.suspended(std::ssize(rows), DraftingWay::free);
    looks_ = !free_open_ && may_look(rows);
    reads_ = free_open_ || looks_ || prescribing_ > 0;
    asks_free_ = false;
    free_rows_ = 0;
    for (Source& source : sources_) source.look_on = 0;
}

// The roots alone, where no drafter is asked.
void Speculation::choose_roots(std::span<const DraftRow> rows, const speculate::StepLoad& load) {
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        state.proposed = false;
        state.ranked.reset(row.tokens.back());
    }
    if (!time_ || sources_.empty()) return;
    budget_.grant(*time_, load, {}, {});  // time passes until its next probe
    note_way(false);
}

// Drafters without passes wait until they have read most of the texts: a step in which they draft
// for a few says neither what they cost nor what goes without them.
void Speculation::start_choice(std::span<const DraftRow> rows) {
    plan_rows_.clear();
    plan_index_.assign(rows.size(), kNoPlan);
    std::int64_t drafting = 0, read = 0;
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        state.proposed = may_draft(row);
        drafting += state.proposed ? 1 : 0;
        read += state.proposed && has_read(row) ? 1 : 0;
        state.prescribed = row.prescribed != nullptr;
        state.candidates.reset(row.tokens.back());
        state.coupled = settings_.coupling == Coupling::coupled && row.sampling != nullptr &&
                        row.sampling->draw().temperature >= ops::kGreedyBelow;
    }
    const bool looks = looks_ && way_ == DraftingWay::none;
    asks_free_ = ((way_ != DraftingWay::none && free_open_) || looks) && 2 * read >= drafting;
    free_rows_ = asks_free_ && has_free() && !looks ? read : 0;
}

// A request whose shape is to be planned, with what is proposed for it already.
speculate::PlanRow Speculation::plan_row(const DraftRow& row) const {
    const Slot& state = slot(row.request);
    speculate::PlanRow planned{.bias = &state.bias,
                               .coupled = state.coupled,
                               .keys = keys_of(settings_, row),
                               .max_drafts = row.max_drafts};
    if (state.candidates.size() == 1) return planned;
    const speculate::RankedTree ranked =
        state.candidates.rank(table_, state.bias, std::min(1 + row.max_drafts, kMaxNodes));
    for (std::int32_t node = 1; node < ranked.tree.size(); ++node) {
        const auto depth = static_cast<std::size_t>(ranked.tree.depth(node));
        const double survival = ranked.survival[static_cast<std::size_t>(node)];
        if (survival < kThere || depth > planned.reach.size()) break;
        planned.reach[depth - 1] += static_cast<float>(survival);
        ++planned.drafts;
    }
    return planned;
}

// After the drafters that cost nothing have proposed: what the others are asked for.
void Speculation::plan_drafting(std::span<const DraftRow> rows, speculate::StepLoad load) {
    std::array<const speculate::DraftTime*, speculate::kMaxDrafters> times = {};
    bool any = false;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (!sources_[i].passes() || !sources_[i].watch.awake()) continue;
        any = true;
        times[i] = &sources_[i].time;
    }
    if (!any) return;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (!may_draft(rows[i])) continue;
        if (rows[i].prescribed != nullptr) {
            const std::int64_t drafts = within(*rows[i].prescribed, rows[i].max_drafts).nodes - 1;
            load.size.tokens += drafts;
            load.size.keys += static_cast<double>(drafts) * keys_of(settings_, rows[i]);
            load.max_drafts = std::max<std::int64_t>(load.max_drafts - drafts, 0);
            continue;
        }
        if (way_ != DraftingWay::passes) continue;
        if (plan_rows_.empty())
            for (Source& source : sources_) source.able = 0;
        plan_index_[i] = plan_rows_.size();
        plan_rows_.push_back(plan_row(rows[i]));
        bool able = false;
        for (std::size_t d = 0; d < sources_.size(); ++d) {
            if (times[d] == nullptr) continue;
            plan_rows_.back().unable[d] = !can_ask(sources_[d], rows[i]);
            sources_[d].able += plan_rows_.back().unable[d] ? 0 : 1;
            able = able || !plan_rows_.back().unable[d];
        }
        planned_rows_ += able ? 1 : 0;
    }
    for (std::size_t d = 0; d < sources_.size(); ++d)
        if (std::ranges::all_of(plan_rows_, [d](const auto& row) { return row.unable[d]; }))
            times[d] = nullptr;
    if (!time_ || settings_.grant == NodeGrant::everything) return;
    planner_.plan(
        {.target = *time_, .table = table_, .times = times, .load = load, .rows = plan_rows_});
    for (std::size_t d = 0; d < sources_.size(); ++d) {
        const auto id = static_cast<DrafterId>(d);
        if (times[d] == nullptr) continue;
        if (planner_.probes(id)) table_.fade(id);
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (plan_index_[i] != kNoPlan && planner_.shape(id, plan_index_[i]).depth == 0)
                slot(rows[i].request).bias.relax(id);
    }
}

// Depth 0: the drafter is not asked for this row.
DraftShape Speculation::shape_for(DrafterId id, std::span<const DraftRow> rows,
                                  std::size_t row) const {
    const DraftRow& asked = rows[row];
    if (!may_draft(asked)) return DraftPlanner::kNotAsked;
    if (!can_ask(sources_[id], asked)) return DraftPlanner::kNotAsked;
    if (asked.prescribed != nullptr) return within(*asked.prescribed, asked.max_drafts);
    if (settings_.grant == NodeGrant::everything) return within({}, asked.max_drafts);
    if (!sources_[id].passes())
        return within({.nodes = 1 + slot(asked.request).free_drafts}, asked.max_drafts);
    if (way_ != DraftingWay::passes) return DraftPlanner::kNotAsked;
    if (!time_ || settings_.without == PolicyPart::shapes)
        return within(DraftPlanner::kFirstShape, asked.max_drafts);
    return planner_.shape(id, plan_index_[row]);
}

// One drafter's trees for all rows that it is asked for. Returns the seconds that it took.
double Speculation::propose(DrafterId id, std::span<const DraftRow> rows) {
    Source& source = sources_[id];
    calls_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const DraftRow& row = rows[i];
        const DraftShape shape = shape_for(id, rows, i);
        if (shape.depth < 1) continue;
        proposals_[i].reset(id, row.tokens.back());
        proposals_[i].coupled = source.passes() && slot(row.request).coupled;
        calls_.push_back({.request = row.request,
                          .root_position = static_cast<std::int64_t>(row.tokens.size()) - 1,
                          .block_table = row.block_table,
                          .sampling = row.sampling,
                          .progress = row.progress,
                          .constraint = row.constraint,
                          .choice = row.choice,
                          .coupled = proposals_[i].coupled,
                          .shape = shape,
                          .proposal = &proposals_[i]});
    }
    if (calls_.empty()) return 0;
    const schedule::Time begin = settings_.clock ? settings_.clock() : 0;
    if (const auto proposed = source.drafter->propose(calls_); !proposed) {
        give_up(source, proposed.error());
        return 0;
    }
    const schedule::Time end = settings_.clock ? settings_.clock() : 0;
    return merge(source, static_cast<double>(end - begin) * 1e-9);
}

// Takes in what the calls brought, and what they took.
double Speculation::merge(Source& source, double seconds) {
    std::int32_t levels = 1, asked = 1;
    std::int64_t computed = 0;  // by the drafter's passes
    for (const speculate::DraftCall& call : calls_) {
        Slot& state = slot(call.request);
        if (call.constraint != nullptr && call.proposal->tree.size() > 1)
            *call.proposal = legal_part(*call.proposal, *call.constraint);
        if (call.progress != nullptr) remove_below_ends(*call.proposal, call.progress->rules());
        // A request that prescribes a width gets it: a chain where it is 1.
        if (source.passes() && state.prescribed)
            *call.proposal = speculate::narrowed(*call.proposal, call.shape.width);
        const auto added = state.candidates.add(*call.proposal, settings_.vocabulary);
        if (!added) {
            give_up(source, added.error());
            return 0;
        }
        // The roots, and of each level but the last what the drafter went on from.
        std::array<std::int32_t, kMaxNodes> of_level = {};
        std::int32_t deepest = 0;
        for (const std::int32_t depth : call.proposal->tree.depths()) {
            ++of_level[static_cast<std::size_t>(depth)];
            deepest = std::max(deepest, depth);
        }
        for (std::int32_t depth = 0; depth < std::max(deepest, 1); ++depth)
            computed += std::min(of_level[static_cast<std::size_t>(depth)], call.shape.width);
        levels = std::max(levels, deepest);
        asked = std::max(asked, call.shape.depth);
    }
    if (source.passes()) {
        // By the levels that were asked for, as it is planned: a GPU runs all of them, wherever the
        // trees have ended.
        source.call = {asked, computed, seconds};
        draft_levels_ += levels;
    }
    return seconds;
}

void Speculation::choose(std::span<const DraftRow> rows, speculate::StepLoad load,
                         std::span<std::int32_t> drafts) {
    CHECK(rows.size() == drafts.size() && rows.size() <= proposals_.size(),
          "{} rows, {} places for their drafts, at most {}", rows.size(), drafts.size(),
          proposals_.size());
    std::fill(drafts.begin(), drafts.end(), 0);
    draft_levels_ = 0;
    went_.reset();
    planned_rows_ = 0;
    upkeep_ = {};
    learn_calls(false);
    decoding_rows_ = static_cast<std::int64_t>(rows.size());
    if (settings_.script != nullptr) return follow_script(rows, load, drafts);
    open_ways(rows);
    if (sources_.empty() || (way_ == DraftingWay::none && prescribing_ == 0 && !looks_))
        return choose_roots(rows, load);
    start_choice(rows);
    load.prompt_seconds = prompt_seconds(rows, load.size);
    for (const bool passes : {false, true}) {
        if (passes) {
            const schedule::Time begin = settings_.clock ? settings_.clock() : 0;
            plan_drafting(rows, load);
            const schedule::Time end = settings_.clock ? settings_.clock() : 0;
            upkeep_.look_on = static_cast<double>(end - begin) * 1e-9;
        }
        double seconds = 0;
        for (std::size_t i = 0; i < sources_.size(); ++i)
            if (sources_[i].works() && sources_[i].passes() == passes)
                seconds += propose(static_cast<DrafterId>(i), rows);
        load.draft_seconds += seconds;
        if (!passes && asks_free_ && !rows.empty())
            free_seconds_ = seconds / static_cast<double>(rows.size());
    }
    offer(rows);
    grant_prescribed(rows, load, drafts);
    if (looks_ && way_ == DraftingWay::none)
        note_way(false);
    else if (settings_.grant == NodeGrant::measured)
        grant_measured(load, drafts);
    else
        grant_everything(load, drafts);
    if (asks_free_ && !starting()) note_granted(rows, drafts);
    for (std::size_t i = 0; i < rows.size(); ++i) drafts[i] += prescribed_[i];
}

// A step without prompts and drafts.
speculate::StepSize Speculation::decoding_size(std::span<const DraftRow> rows) const {
    speculate::StepSize size{.rows = std::ssize(rows), .tokens = std::ssize(rows)};
    for (const DraftRow& row : rows) size.keys += keys_of(settings_, row);
    return size;
}

// Seconds of a step without drafts.
double Speculation::prompt_seconds(std::span<const DraftRow> rows,
                                   const speculate::StepSize& size) const {
    if (!time_ || size.tokens <= std::ssize(rows)) return 0;
    return std::max(time_->seconds(size) - time_->seconds(decoding_size(rows)), 0.0);
}

void Speculation::offer(std::span<const DraftRow> rows) {
    offers_.clear();
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        const std::int32_t most = row.prescribed != nullptr
                                      ? within(*row.prescribed, row.max_drafts).nodes
                                      : 1 + row.max_drafts;
        state.candidates.rank(table_, state.bias, std::min(most, kMaxNodes), state.ranked);
        offers_.push_back({state.ranked.drafts(), keys_of(settings_, row)});
    }
}

}  // namespace espalier::engine
