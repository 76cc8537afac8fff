// SPDX-License-Identifier: Apache-2.0
#include "accept/constraint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace espalier::accept {

Constraint::Constraint(std::shared_ptr<const grammar::CompiledGrammar> grammar, ReasoningRule rule,
                       std::span<const std::int32_t> eos, std::int64_t vocabulary)
    : rule_(std::move(rule)), eos_(eos), root_mask_(grammar::mask_words(vocabulary)) {
    if (grammar) matcher_.emplace(std::move(grammar));
    place_.reasoning = rule_.open && !rule_.end_token_ids.empty();
}

bool Constraint::ends_reasoning(TokenId token) const {
    return std::ranges::find(rule_.end_token_ids, token) != rule_.end_token_ids.end();
}

bool Constraint::is_eos(TokenId token) const {
    return std::ranges::find(eos_, token) != eos_.end();
}

// Moves place_ over the token; false: not legal, nothing has changed.
bool Constraint::take(TokenId token) {
    if (place_.reasoning) {
        const bool ends = ends_reasoning(token);
        if (exhausted() && token != rule_.end_token_ids.front()) return false;
        if (!ends && matcher_ && is_eos(token)) return false;
        place_.matched = false;
        place_.reasoning = !ends;
        place_.reasoning_tokens += ends ? 0 : 1;
        return true;
    }
    if (matcher_ && !matcher_->accept(token)) return false;
    place_.matched = matcher_.has_value();
    return true;
}

bool Constraint::descend(TokenId token) {
    const Place before = place_;
    CHECK(depth_ < kMaxNodes, "more than {} nodes below a committed text", kMaxNodes);
    if (!take(token)) return false;
    at(above_, depth_++) = before;
    return true;
}

void Constraint::ascend() {
    CHECK(depth_ > 0, "nothing was descended to");
    if (place_.matched) matcher_->rollback(1);
    place_ = at(above_, --depth_);
}

Constraint::Legal Constraint::legal() const {
    if (place_.reasoning) {
        if (exhausted()) return Legal::masked;
        return matcher_ ? Legal::no_eos : Legal::anything;
    }
    if (!matcher_) return Legal::anything;
    return matcher_->finished() ? Legal::nothing : Legal::masked;
}

void Constraint::fill_mask(std::span<std::uint32_t> words) {
    if (!place_.reasoning) return matcher_->fill_mask(words);
    std::ranges::fill(words, 0u);
    const auto token = static_cast<std::uint32_t>(rule_.end_token_ids.front());
    words[token / 32] |= 1u << token % 32;
}

Constraint::Forced Constraint::forced() {
    Forced forced;
    const bool due = exhausted();
    if (due) {
        forced.token = rule_.end_token_ids.front();
        CHECK(descend(*forced.token), "an end marker that is due is not legal");
    }
    if (!place_.reasoning && matcher_) forced.text = matcher_->forced_text();
    if (due) ascend();
    return forced;
}

bool Constraint::commit(TokenId token) {
    CHECK(depth_ == 0, "a commit {} nodes below the committed text", depth_);
    root_mask_filled_ = false;
    if (!failure_.empty()) return false;
    const bool taken = take(token);
    if (matcher_ && !matcher_->failure().empty())
        failure_ = fmt::format("the grammar failed: {}", matcher_->failure());
    else if (!taken)
        failure_ = fmt::format("the grammar refuses token {} that was drawn under its mask", token);
    return failure_.empty();
}

std::span<const std::uint32_t> Constraint::root_mask() {
    CHECK(depth_ == 0, "a root {} nodes below the committed text", depth_);
    if (legal() != Legal::masked) return {};
    if (!root_mask_filled_) fill_mask(root_mask_);
    root_mask_filled_ = true;
    return root_mask_;
}

std::string_view Constraint::failure() const {
    if (!failure_.empty()) return failure_;
    return matcher_ ? matcher_->failure() : std::string_view();
}

}  // namespace espalier::accept
