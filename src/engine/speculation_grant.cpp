// SPDX-License-Identifier: Apache-2.0
// How many nodes each request verifies, once all drafters have proposed, and what a step counts as.
#include <algorithm>

#include "engine/speculation.hpp"

namespace espalier::engine {

using speculate::DraftingWay;

// Prescribed drafts come first, and are part of the step that the others are weighed in.
void Speculation::grant_prescribed(std::span<const DraftRow> rows, speculate::StepLoad& load,
                                   std::span<std::int32_t> drafts) {
    prescribed_.assign(drafts.size(), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].prescribed == nullptr) continue;
        speculate::OfferedDrafts& offer = offers_[i];
        const auto count =
            std::min(static_cast<std::int64_t>(offer.survival.size()), load.max_drafts);
        prescribed_[i] = static_cast<std::int32_t>(count);
        for (std::int64_t n = 0; n < count; ++n)
            load.expected_tokens += offer.survival[static_cast<std::size_t>(n)];
        load.size.tokens += count;
        load.size.keys += static_cast<double>(count) * offer.keys;
        load.max_drafts -= count;
        offer.survival = {};
    }
}

void Speculation::grant_measured(const speculate::StepLoad& load, std::span<std::int32_t> drafts) {
    const bool any = std::any_of(offers_.begin(), offers_.end(),
                                 [](const auto& offer) { return !offer.survival.empty(); });
    std::int64_t paying = kMaxDrafts;
    if (time_) {
        const speculate::GrantedNodes granted = budget_.grant(*time_, load, offers_, drafts);
        paying = granted.drafts;
        note_way(granted.probe || (any && starting()));
    }
    if (settings_.without == PolicyPart::grant && !starting())
        return grant_everything(load, drafts);
    if (!any || !starting()) return;
    // One size further than what seems to pay: what few samples say may be wrong.
    const std::int64_t near = 2 * paying + speculate::NodeBudget::kProbeDrafts;
    const std::int64_t first = std::min(kFirstDrafts[first_grants_++], near);
    budget_.grant_surest(std::min(first, load.max_drafts), offers_, drafts);
}

// Drafters without passes are asked for what the request may be granted, not for all they have:
// with 128 texts in a step that is 4 nodes of 63 for most of them, and proposing, merging and
// ranking the others took a fifth of the step.
void Speculation::note_granted(std::span<const DraftRow> rows,
                               std::span<const std::int32_t> drafts) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Slot& state = slot(rows[i].request);
        const std::int32_t wanted = settings_.without == PolicyPart::free_drafts
                                        ? kMaxDrafts
                                        : std::min(2 * drafts[i] + 4, kMaxDrafts);
        if (wanted >= state.free_drafts) {
            state.free_drafts = wanted;
            state.fewer_steps = 0;
        } else if (++state.fewer_steps % 4 == 0) {
            state.free_drafts -= std::max((state.free_drafts - wanted) / 4, 1);
        }
    }
}

// Way under which the step's rate is booked: the one that it was allowed; none where a part of the
// step is there to learn. A way that is open to few of the texts says nothing of it.
void Speculation::note_way(bool learns) {
    const bool planned = way_ == DraftingWay::passes;  // otherwise the planner was not asked
    if (prescribes_ || learns || (planned && planner_.learns())) return;
    if (planned && 2 * planned_rows_ >= decoding_rows_)
        went_ = DraftingWay::passes;
    else
        went_ = 2 * free_rows_ >= decoding_rows_ ? DraftingWay::free : DraftingWay::none;
}

bool Speculation::has_free() const {
    return std::ranges::any_of(
        sources_, [](const Source& source) { return source.works() && !source.passes(); });
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
