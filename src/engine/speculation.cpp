// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::engine {

using speculate::DrafterId;
using speculate::DraftShape;
using speculate::Proposal;

namespace {

constexpr std::size_t kFirstSamples = 32;

template <typename Slots>
auto& slot_in(Slots& slots, RequestSlot request) {
    CHECK(request >= 0 && static_cast<std::size_t>(request) < slots.size(), "request slot {} of {}",
          request, slots.size());
    return slots[static_cast<std::size_t>(request)];
}

}  // namespace

Speculation::Speculation(const SpeculationSettings& settings,
                         std::vector<std::unique_ptr<speculate::Drafter>> drafters)
    : settings_(settings) {
    CHECK(drafters.size() <= static_cast<std::size_t>(speculate::kMaxDrafters),
          "{} drafters, at most {}", drafters.size(), speculate::kMaxDrafters);
    for (auto& drafter : drafters) sources_.push_back({std::move(drafter), {}, {}});
    const auto rows = static_cast<std::size_t>(settings.max_rows);
    proposals_.assign(rows, Proposal(0, 0));
    calls_.reserve(rows);
    offers_.reserve(rows);
    first_samples_.reserve(kFirstSamples);
}

Speculation::Slot& Speculation::slot(RequestSlot request) { return slot_in(slots_, request); }

const Speculation::Slot& Speculation::slot(RequestSlot request) const {
    return slot_in(slots_, request);
}

void Speculation::set_step_time(const speculate::StepTime& time) {
    time_ = time;
    first_grants_ = kFirstDrafts.size();
}

void Speculation::give_up(Source& source, const Error& error) {
    source.failure = error.message.empty() ? "failed without a word" : error.message;
    source.drafter.reset();
}

std::vector<std::string> Speculation::failures() const {
    std::vector<std::string> failures;
    for (const Source& source : sources_) failures.push_back(source.failure);
    return failures;
}

bool Speculation::shown_to(const Slot& state, const Source& source) {
    return source.works() && (state.drafts || source.drafter->needs().hidden_states);
}

void Speculation::begin(RequestSlot request, std::span<const std::int32_t> prompt,
                        std::int64_t max_tokens, bool drafts) {
    CHECK(request >= 0, "request slot {}", request);
    if (static_cast<std::size_t>(request) >= slots_.size())
        slots_.resize(static_cast<std::size_t>(request) + 1);
    Slot& state = slot(request);
    CHECK(!state.open, "request slot {} begins twice", request);
    state.open = true;
    state.drafts = drafts && !sources_.empty();
    state.proposed = false;
    state.bias = {};
    const std::size_t first = std::min<std::size_t>(prompt.size(), kReadTokens);
    state.read = static_cast<std::int64_t>(first);
    for (Source& source : sources_)
        if (shown_to(state, source))
            source.drafter->begin(request, prompt.first(first), max_tokens);
}

void Speculation::end(RequestSlot request) {
    Slot& state = slot(request);
    CHECK(state.open, "request slot {} ends before it began", request);
    state.open = false;
    for (Source& source : sources_)
        if (shown_to(state, source)) source.drafter->end(request);
}

void Speculation::read(RequestSlot request, std::span<const std::int32_t> tokens) {
    Slot& state = slot(request);
    const auto length = static_cast<std::int64_t>(tokens.size());
    if (state.read >= length) return;
    const std::int64_t count = std::min(length - state.read, kReadTokens);
    const speculate::Commitment commitment = {
        request,
        tokens.subspan(static_cast<std::size_t>(state.read), static_cast<std::size_t>(count))};
    state.read += count;
    for (Source& source : sources_)
        if (shown_to(state, source)) source.drafter->commit({&commitment, 1});
}

bool Speculation::may_draft(const DraftRow& row) const {
    const Slot& state = slot(row.request);
    return state.drafts && row.max_drafts > 0 &&
           state.read == static_cast<std::int64_t>(row.tokens.size());
}

// How far the drafter is to go in this step, for any row. Depth 0: it is not asked.
DraftShape Speculation::plan_shape(DrafterId id, std::span<const DraftRow> rows,
                                   const speculate::StepLoad& load) {
    const Source& source = sources_[id];
    if (!source.drafter->needs().passes || settings_.grant == NodeGrant::everything) return {};
    if (!time_) return speculate::NodeBudget::kFirstShape;
    speculate::DraftQuestion question{
        .target = *time_, .draft = source.time, .table = table_, .load = load};
    double bias = 0, keys = 0;
    question.most = {.depth = 0, .width = 0, .nodes = 1};
    for (const DraftRow& row : rows) {
        if (!may_draft(row)) continue;
        ++question.rows;
        bias += slot(row.request).bias.factor(id);
        keys += settings_.key_cost * static_cast<double>(row.tokens.size());
        question.most.depth = std::max(question.most.depth, row.max_drafts);
    }
    if (question.rows == 0) return question.most;
    question.bias = bias / static_cast<double>(question.rows);
    question.keys = keys / static_cast<double>(question.rows);
    question.most.width = question.most.depth;
    question.most.nodes = 1 + question.most.depth;
    const speculate::DraftPlan plan = budget_.plan_drafting(id, question);
    if (plan.probe) table_.fade(id);
    return plan.shape;
}

// One drafter's trees for all rows that may draft. Returns the seconds that it took.
double Speculation::propose(DrafterId id, std::span<const DraftRow> rows, const DraftShape& shape) {
    Source& source = sources_[id];
    calls_.clear();
    for (std::size_t i = 0; i < rows.size() && shape.depth > 0; ++i) {
        const DraftRow& row = rows[i];
        if (!may_draft(row)) continue;
        proposals_[i] = Proposal(id, row.tokens.back());
        calls_.push_back({.request = row.request,
                          .root_position = static_cast<std::int64_t>(row.tokens.size()) - 1,
                          .block_table = row.block_table,
                          .sampling = row.sampling,
                          .progress = row.progress,
                          .choice = row.choice,
                          .shape = {.depth = std::min(shape.depth, row.max_drafts),
                                    .width = std::min(shape.width, row.max_drafts),
                                    .nodes = std::min(shape.nodes, 1 + row.max_drafts)},
                          .proposal = &proposals_[i]});
    }
    if (calls_.empty()) return 0;
    const schedule::Time begin = settings_.clock ? settings_.clock() : 0;
    if (const auto proposed = source.drafter->propose(calls_); !proposed) {
        give_up(source, proposed.error());
        return 0;
    }
    const schedule::Time end = settings_.clock ? settings_.clock() : 0;
    std::int32_t levels = 1;
    std::int64_t nodes = 0;
    for (const speculate::DraftCall& call : calls_) {
        const speculate::Tree& tree = call.proposal->tree;
        const auto added = slot(call.request).candidates.add(*call.proposal, settings_.vocabulary);
        if (!added) {
            give_up(source, added.error());
            return 0;
        }
        nodes += tree.size() - 1;
        for (const std::int32_t depth : tree.depths()) levels = std::max(levels, depth);
    }
    const double seconds = static_cast<double>(end - begin) * 1e-9;
    source.time.observe(levels, std::max<std::int64_t>(nodes, 1), seconds);
    return seconds;
}

void Speculation::choose(std::span<const DraftRow> rows, speculate::StepLoad load,
                         std::span<std::int32_t> drafts) {
    CHECK(rows.size() == drafts.size() && rows.size() <= proposals_.size(),
          "{} rows, {} places for their drafts, at most {}", rows.size(), drafts.size(),
          proposals_.size());
    std::fill(drafts.begin(), drafts.end(), 0);
    if (settings_.script != nullptr) return follow_script(rows, load, drafts);
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        state.proposed = may_draft(row);
        state.candidates.reset(row.tokens.back());
    }
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        const auto id = static_cast<DrafterId>(i);
        if (sources_[i].works())
            load.draft_seconds += propose(id, rows, plan_shape(id, rows, load));
    }
    offers_.clear();
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        state.ranked =
            state.candidates.rank(table_, state.bias, std::min(1 + row.max_drafts, kMaxNodes));
        offers_.push_back(
            {state.ranked.drafts(), settings_.key_cost * static_cast<double>(row.tokens.size())});
    }
    if (settings_.grant == NodeGrant::measured)
        grant_measured(load, drafts);
    else
        grant_everything(load, drafts);
}

void Speculation::grant_measured(const speculate::StepLoad& load, std::span<std::int32_t> drafts) {
    const bool any = std::any_of(offers_.begin(), offers_.end(),
                                 [](const auto& offer) { return !offer.survival.empty(); });
    std::int64_t paying = kMaxDrafts;
    if (time_) paying = budget_.grant(*time_, load, offers_, drafts).drafts;
    if (!any || !starting()) return;
    // One size further than what seems to pay: what few samples say may be wrong.
    const std::int64_t near = 2 * paying + speculate::NodeBudget::kProbeDrafts;
    const std::int64_t first = std::min(kFirstDrafts[first_grants_++], near);
    budget_.grant_surest(std::min(first, load.max_drafts), offers_, drafts);
}

void Speculation::grant_everything(const speculate::StepLoad& load,
                                   std::span<std::int32_t> drafts) {
    std::int64_t left = load.max_drafts;
    for (std::size_t i = 0; i < drafts.size(); ++i) {
        const auto offered = static_cast<std::int64_t>(offers_[i].survival.size());
        drafts[i] = static_cast<std::int32_t>(std::min(offered, left));
        left -= drafts[i];
    }
}

void Speculation::follow_script(std::span<const DraftRow> rows, const speculate::StepLoad& load,
                                std::span<std::int32_t> drafts) {
    std::int64_t left = load.max_drafts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Slot& state = slot(rows[i].request);
        state.proposed = false;
        state.ranked = speculate::RankedTree(rows[i].tokens.back());
        const speculate::Tree* tree = settings_.script->tree(rows[i].request);
        if (tree == nullptr || tree->token(0) != rows[i].tokens.back() ||
            tree->size() - 1 > rows[i].max_drafts || tree->size() - 1 > left)
            continue;
        state.ranked.tree = *tree;
        drafts[i] = tree->size() - 1;
        left -= drafts[i];
    }
}

speculate::Tree Speculation::tree(RequestSlot request, std::int32_t drafts) const {
    return slot(request).ranked.tree.prefix(1 + drafts);
}

bool Speculation::wants_hidden_states() const {
    return std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
        return source.works() && source.drafter->needs().hidden_states;
    });
}

void Speculation::extend(std::span<const speculate::Extension> extensions) {
    for (Source& source : sources_) {
        if (!source.works() || !source.drafter->needs().hidden_states) continue;
        if (const auto extended = source.drafter->extend(extensions); !extended)
            give_up(source, extended.error());
    }
}

void Speculation::learn(RequestSlot request, std::span<const std::int32_t> drawn) {
    Slot& state = slot(request);
    if (!state.proposed) return;
    state.proposed = false;
    state.candidates.observe(drawn, table_, state.bias);
}

// While the first steps are being watched, a new size is fitted with those before it; more of a
// size that is known corrects what was fitted.
void Speculation::learn(const speculate::StepSample& sample) {
    if (settings_.grant != NodeGrant::measured || sources_.empty()) return;
    const auto alike =
        std::count_if(first_samples_.begin(), first_samples_.end(),
                      [&](const auto& one) { return one.size.tokens == sample.size.tokens; });
    if (starting() && alike < 4 && first_samples_.size() < kFirstSamples) {
        first_samples_.push_back(sample);
        if (const auto fitted = speculate::StepTime::fit(first_samples_)) {
            time_ = *fitted;
            return;
        }
        first_samples_.pop_back();  // no measurement: the clock stood still
    }
    if (time_) time_->observe(sample);
}

}  // namespace espalier::engine
