// SPDX-License-Identifier: Apache-2.0
// The first half of Speculation's step: drafters are asked for what the policy decides, and their
// proposals merged.
#include <algorithm>
#include <array>

#include "base/at.hpp"
#include "base/check.hpp"
#include "engine/speculation.hpp"
#include "ops/draw.hpp"

namespace espalier::engine {

using speculate::DrafterId;
using speculate::DraftShape;
using speculate::Proposal;
using speculate::within;

namespace {

// Survival from which a draft that is proposed for nothing counts as there, for a plan.
constexpr double kThere = 0.2;

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

// The roots alone, where no drafter is asked; proposals are added to the others.
void Speculation::reset_slots(std::span<const DraftRow> rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Slot& state = slot(rows[i].request);
        state.proposed = policy_.asks() && policy_.may_draft(i);
        if (policy_.asks())
            state.candidates.reset(rows[i].tokens.back());
        else
            state.ranked.reset(rows[i].tokens.back());
    }
}

void Speculation::open_step(std::span<const DraftRow> rows, const speculate::StepLoad& load) {
    step_.load = load;
    step_.calls = std::exchange(outcome_.calls, {});
    outcome_ = {};
    for (std::size_t i = 0; i < sources_.size(); ++i)
        step_.drafters[i] = {.works = sources_[i].works(),
                             .passes = sources_[i].passes(),
                             .looks_on = sources_[i].looks_on()};
    step_.rows.clear();
    for (const DraftRow& row : rows) {
        const Slot& state = slot(row.request);
        speculate::RowFacts& facts = step_.rows.emplace_back();
        facts.request = row.request;
        facts.keys = keys_of(settings_, row);
        facts.max_drafts = row.max_drafts;
        facts.drafts = state.drafts;
        facts.read = state.read == std::ssize(row.tokens);
        facts.coupled = settings_.coupling == Coupling::coupled && row.sampling != nullptr &&
                        row.sampling->draw().temperature >= ops::kGreedyBelow;
        if (row.prescribed != nullptr) facts.prescribed = *row.prescribed;
    }
    tell(step_);
    reset_slots(rows);
}

// True if the drafter has seen what it drafts from; those without passes are the policy's matter.
bool Speculation::can_ask(std::size_t source, const DraftRow& row) const {
    if (!sources_[source].passes()) return true;
    return is_awake(source) &&
           sources_[source].drafter->follows(row.request, std::ssize(row.tokens) - 1);
}

// A row whose draft models are to be planned, with what is proposed for it already.
void Speculation::add_plan_row(std::span<const DraftRow> rows, std::size_t row) {
    const DraftRow& asked = rows[row];
    const Slot& state = slot(asked.request);
    speculate::ProposedFacts::Row& facts = proposed_.rows.emplace_back();
    facts.row = row;
    for (std::size_t d = 0; d < kMaxDrafters; ++d)
        facts.unable[d] = d >= sources_.size() || !sources_[d].passes() || !can_ask(d, asked);
    if (state.candidates.size() == 1) return;
    const speculate::RankedTree ranked =
        state.candidates.rank(policy_.acceptance(), policy_.bias(asked.request),
                              std::min(1 + asked.max_drafts, kMaxNodes));
    for (std::int32_t node = 1; node < ranked.tree.size(); ++node) {
        const auto depth = static_cast<std::size_t>(ranked.tree.depth(node));
        const double survival = ranked.survival[static_cast<std::size_t>(node)];
        if (survival < kThere || depth > facts.reach.size()) break;
        facts.reach[depth - 1] += static_cast<float>(survival);
        ++facts.drafts;
    }
}

void Speculation::plan(std::span<const DraftRow> rows, double free_seconds) {
    if (!policy_.plans()) return;
    proposed_.free_seconds = free_seconds;
    proposed_.rows.clear();
    for (std::size_t i = 0; i < rows.size(); ++i)
        if (policy_.plans_row(i)) add_plan_row(rows, i);
    tell(proposed_);
}

// One drafter's trees for all rows that it is asked for. Returns the seconds that it took.
double Speculation::propose(DrafterId id, std::span<const DraftRow> rows) {
    Source& source = sources_[id];
    calls_.clear();
    call_rows_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const DraftRow& row = rows[i];
        if (!policy_.may_draft(i) || !can_ask(id, row)) continue;
        const DraftShape shape = policy_.shape(id, i);
        if (shape.depth < 1) continue;
        proposals_[i].reset(id, row.tokens.back());
        proposals_[i].coupled = source.passes() && step_.rows[i].coupled;
        calls_.push_back({.request = row.request,
                          .root_position = std::ssize(row.tokens) - 1,
                          .block_table = row.block_table,
                          .sampling = row.sampling,
                          .progress = row.progress,
                          .constraint = row.constraint,
                          .choice = row.choice,
                          .coupled = proposals_[i].coupled,
                          .shape = shape,
                          .proposal = &proposals_[i]});
        call_rows_.push_back(i);
    }
    if (calls_.empty()) return 0;
    const schedule::Time begin = now();
    if (const auto proposed = source.drafter->propose(calls_); !proposed) {
        give_up(source, proposed.error());
        return 0;
    }
    return merge(source, rows, seconds_since(begin));
}

// Takes in what the calls brought, and what they took.
double Speculation::merge(Source& source, std::span<const DraftRow> rows, double seconds) {
    std::int32_t levels = 1, asked = 1;
    std::int64_t computed = 0;  // by the drafter's passes
    for (std::size_t i = 0; i < calls_.size(); ++i) {
        const speculate::DraftCall& call = calls_[i];
        if (call.constraint != nullptr && call.proposal->tree.size() > 1)
            *call.proposal = legal_part(*call.proposal, *call.constraint);
        if (call.progress != nullptr) remove_below_ends(*call.proposal, call.progress->rules());
        // A request that prescribes a width gets it: a chain where it is 1.
        if (source.passes() && rows[call_rows_[i]].prescribed != nullptr)
            *call.proposal = speculate::narrowed(*call.proposal, call.shape.width);
        const auto added = slot(call.request).candidates.add(*call.proposal, settings_.vocabulary);
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
        const auto id = static_cast<std::size_t>(&source - sources_.data());
        outcome_.calls[id] = {asked, computed, seconds};
        draft_levels_ += levels;
    }
    return seconds;
}

double Speculation::ask_all(std::span<const DraftRow> rows, bool passes) {
    double seconds = 0;
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (sources_[i].works() && sources_[i].passes() == passes)
            seconds += propose(static_cast<DrafterId>(i), rows);
    return seconds;
}

void Speculation::choose(std::span<const DraftRow> rows, speculate::StepLoad load,
                         std::span<std::int32_t> drafts) {
    CHECK(rows.size() == drafts.size() && rows.size() <= proposals_.size(),
          "{} rows, {} places for their drafts, at most {}", rows.size(), drafts.size(),
          proposals_.size());
    std::fill(drafts.begin(), drafts.end(), 0);
    draft_levels_ = 0;
    if (settings_.script != nullptr) return follow_script(rows, load, drafts);
    open_step(rows, load);
    if (!policy_.asks()) return;
    offered_.free_seconds = ask_all(rows, false);
    const schedule::Time begin = now();
    plan(rows, offered_.free_seconds);
    offered_.planning_seconds = seconds_since(begin);
    offered_.model_seconds = ask_all(rows, true);
    offer(rows);
    tell(offered_);
    std::ranges::copy(policy_.granted(), drafts.begin());
}

void Speculation::offer(std::span<const DraftRow> rows) {
    offered_.drafts.clear();
    offered_.survival.clear();
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        const std::int32_t most = row.prescribed != nullptr
                                      ? within(*row.prescribed, row.max_drafts).nodes
                                      : 1 + row.max_drafts;
        state.candidates.rank(policy_.acceptance(), policy_.bias(row.request),
                              std::min(most, kMaxNodes), state.ranked);
        const std::span<const double> survival = state.ranked.drafts();
        offered_.drafts.push_back(static_cast<std::int32_t>(survival.size()));
        offered_.survival.insert(offered_.survival.end(), survival.begin(), survival.end());
    }
}

void Speculation::follow_script(std::span<const DraftRow> rows, const speculate::StepLoad& load,
                                std::span<std::int32_t> drafts) {
    std::int64_t left = load.max_drafts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Slot& state = slot(rows[i].request);
        state.proposed = false;
        state.ranked.reset(rows[i].tokens.back());
        const speculate::Tree* tree = settings_.script->tree(rows[i].request);
        if (tree == nullptr || tree->token(0) != rows[i].tokens.back() ||
            tree->size() - 1 > rows[i].max_drafts || tree->size() - 1 > left)
            continue;
        state.ranked.tree = *tree;
        std::fill_n(state.ranked.origins.begin(), tree->size(), DraftOrigin{});
        drafts[i] = tree->size() - 1;
        left -= drafts[i];
    }
}

}  // namespace espalier::engine
