// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::engine {

using speculate::DrafterId;
using speculate::Proposal;

Speculation::Speculation(const SpeculationSettings& settings,
                         std::vector<std::unique_ptr<speculate::Drafter>> drafters)
    : settings_(settings) {
    CHECK(drafters.size() <= static_cast<std::size_t>(speculate::kMaxDrafters),
          "{} drafters, at most {}", drafters.size(), speculate::kMaxDrafters);
    for (auto& drafter : drafters) sources_.push_back({std::move(drafter), {}});
    const auto rows = static_cast<std::size_t>(settings.max_rows);
    proposals_.assign(rows, Proposal(0, 0));
    calls_.reserve(rows);
    offers_.reserve(rows);
}

Speculation::Slot& Speculation::slot(RequestSlot request) {
    CHECK(request >= 0 && static_cast<std::size_t>(request) < slots_.size(),
          "request slot {} of {}", request, slots_.size());
    return slots_[static_cast<std::size_t>(request)];
}

const Speculation::Slot& Speculation::slot(RequestSlot request) const {
    return const_cast<Speculation*>(this)->slot(request);
}

void Speculation::give_up(Source& source, const Error& error) {
    source.failure = error.message.empty() ? "failed without a word" : error.message;
}

std::vector<std::string> Speculation::failures() const {
    std::vector<std::string> failures;
    for (const Source& source : sources_) failures.push_back(source.failure);
    return failures;
}

bool Speculation::shown_to(const Slot& state, const Source& source) {
    return state.drafts || source.drafter->needs().hidden_states;
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
        if (source.works() && shown_to(state, source)) source.drafter->commit({&commitment, 1});
}

bool Speculation::may_draft(const DraftRow& row) const {
    const Slot& state = slot(row.request);
    return state.drafts && state.read == static_cast<std::int64_t>(row.tokens.size());
}

// One drafter's trees for all rows that may draft.
void Speculation::propose(Source& source, DrafterId id, std::span<const DraftRow> rows) {
    calls_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const DraftRow& row = rows[i];
        if (!may_draft(row) || row.max_drafts < 1) continue;
        proposals_[i] = Proposal(id, row.tokens.back());
        calls_.push_back({row.request, static_cast<std::int64_t>(row.tokens.size()) - 1,
                          1 + row.max_drafts, row.max_drafts, &proposals_[i]});
    }
    if (calls_.empty()) return;
    if (const auto proposed = source.drafter->propose(calls_); !proposed)
        return give_up(source, proposed.error());
    for (const speculate::DraftCall& call : calls_) {
        const auto added = slot(call.request).candidates.add(*call.proposal, settings_.vocabulary);
        if (!added) return give_up(source, added.error());
    }
}

void Speculation::choose(std::span<const DraftRow> rows, const speculate::StepLoad& load,
                         std::span<std::int32_t> drafts) {
    CHECK(rows.size() == drafts.size() && rows.size() <= proposals_.size(),
          "{} rows, {} places for their drafts, at most {}", rows.size(), drafts.size(),
          proposals_.size());
    std::fill(drafts.begin(), drafts.end(), 0);
    last_grant_ = {};
    if (settings_.script != nullptr) return follow_script(rows, load, drafts);
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        state.proposed = may_draft(row);
        state.candidates.reset(row.tokens.back());
    }
    for (std::size_t id = 0; id < sources_.size(); ++id)
        if (sources_[id].works()) propose(sources_[id], static_cast<DrafterId>(id), rows);

    offers_.clear();
    for (const DraftRow& row : rows) {
        Slot& state = slot(row.request);
        state.ranked =
            state.candidates.rank(table_, state.bias, std::min(1 + row.max_drafts, kMaxNodes));
        offers_.push_back(state.ranked.drafts());
    }
    if (settings_.grant == NodeGrant::measured) {
        if (time_) last_grant_ = budget_.grant(*time_, load, offers_, drafts);
    } else {
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const auto offered = static_cast<std::int64_t>(offers_[i].size());
            const std::int64_t given = std::min(offered, load.max_drafts - last_grant_.drafts);
            drafts[i] = static_cast<std::int32_t>(given);
            last_grant_.drafts += given;
        }
    }
}

void Speculation::follow_script(std::span<const DraftRow> rows, const speculate::StepLoad& load,
                                std::span<std::int32_t> drafts) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Slot& state = slot(rows[i].request);
        state.proposed = false;
        state.ranked = speculate::RankedTree(rows[i].tokens.back());
        const speculate::Tree* tree = settings_.script->tree(rows[i].request);
        if (tree == nullptr || tree->token(0) != rows[i].tokens.back() ||
            tree->size() - 1 > rows[i].max_drafts ||
            last_grant_.drafts + tree->size() - 1 > load.max_drafts)
            continue;
        state.ranked.tree = *tree;
        drafts[i] = tree->size() - 1;
        last_grant_.drafts += drafts[i];
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

void Speculation::learn(const speculate::StepSample& sample) {
    if (time_) time_->observe(sample);
}

}  // namespace espalier::engine
