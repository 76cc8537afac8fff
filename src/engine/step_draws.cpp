// SPDX-License-Identifier: Apache-2.0
#include "engine/step_draws.hpp"

#include "base/check.hpp"

namespace espalier::engine {

StepDraws::StepDraws(std::int64_t max_rows, std::int64_t max_gather) {
    const auto gather = static_cast<std::size_t>(max_gather);
    shares_.reserve(static_cast<std::size_t>(max_rows));
    samplings_.reserve(gather);
    tops_.resize(gather * ops::kMaxTopLogprobs);
    counts_.resize(gather);
    prompt_logprobs_.reserve(gather);
}

void StepDraws::clear() {
    shares_.clear();
    samplings_.clear();
    tops_used_ = 0;
    counts_used_ = 0;
}

std::span<accept::TokenLogprob> StepDraws::take_top(std::int32_t count) {
    const auto wanted = static_cast<std::size_t>(count);
    CHECK(tops_used_ + wanted <= tops_.size(), "{} alternatives beside {} of {}", count, tops_used_,
          tops_.size());
    const auto taken = std::span(tops_).subspan(tops_used_, wanted);
    tops_used_ += wanted;
    return taken;
}

void StepDraws::add_node(const LiveRequest& live, const accept::TreeView& tree, std::int32_t node,
                         std::int32_t depth) {
    const accept::RequestProgress& progress = live.progress;
    ops::NodeSampling sampling = live.group->sampling.node();
    sampling.position = static_cast<std::int32_t>(progress.draw_position(depth));
    sampling.choice = live.choice;
    sampling.logprob = live.group->logprobs;
    if (const auto& forced = live.group->forced_output; !forced.empty())
        sampling.wanted =
            forced.at(static_cast<std::size_t>(progress.usage().completion_tokens + depth));
    sampling.banned = progress.banned_at(depth);
    sampling.top = take_top(progress.rules().options().top_logprobs);
    if (live.group->sampling.counts_tokens()) {
        accept::NodeCounts& counts = counts_[counts_used_++];
        counts = progress.counts_at(accept::path_tokens(tree, node).values());
        sampling.committed_counts = counts.committed;
        sampling.changed_counts = counts.changed();
    }
    samplings_.push_back(sampling);
}

void StepDraws::add_tree(const LiveRequest& live, const accept::TreeView& tree,
                         std::span<const std::int32_t> depths) {
    Share share;
    share.first = samplings_.size();
    share.node_count = static_cast<std::size_t>(tree.nodes());
    share.node_top = tops_used_;
    for (std::int32_t node = 0; node < tree.nodes(); ++node)
        add_node(live, tree, node, depths[static_cast<std::size_t>(node)]);
    share.node_top_count = tops_used_ - share.node_top;
    shares_.push_back(share);
}

void StepDraws::add_prompt_token(std::int32_t wanted, std::int32_t top_count, Share& share) {
    ops::NodeSampling sampling;
    sampling.wanted = wanted;
    sampling.top = take_top(top_count);
    samplings_.push_back(sampling);
    ++share.prompt_count;
}

void StepDraws::add_chunk(const LiveRequest& live, std::span<const schedule::PlannedRow> rows,
                          std::span<const std::int32_t> tokens) {
    const auto& prompt_logprobs = live.group->prompt_logprobs;
    const std::int32_t top_count = prompt_logprobs ? prompt_logprobs->top_count() : 0;
    const auto length = static_cast<std::int64_t>(tokens.size());
    Share share;
    share.first = samplings_.size();
    share.prompt_top = tops_used_;
    for (const schedule::PlannedRow& row : rows) {
        const std::int64_t end = row.first_position + row.q_len;
        for (std::int64_t position = end - row.gather_count(); position < end; ++position) {
            if (share.prompt_count == 0) share.first_position = position;
            if (position + 1 < length) {
                add_prompt_token(tokens[static_cast<std::size_t>(position) + 1], top_count, share);
                continue;
            }
            share.prompt_top_count = tops_used_ - share.prompt_top;
            share.node_top = tops_used_;
            share.node_count = 1;
            const std::int32_t no_parent = -1;
            add_node(live, {{&no_parent, 1}, {&tokens.back(), 1}}, 0, 0);
            share.node_top_count = tops_used_ - share.node_top;
        }
    }
    if (share.node_count == 0) share.prompt_top_count = tops_used_ - share.prompt_top;
    shares_.push_back(share);
}

void StepDraws::take(std::span<const ops::Draw> draws) {
    CHECK(draws.size() == samplings_.size(), "{} draws for {} nodes", draws.size(),
          samplings_.size());
    draws_ = draws;
}

accept::NodeDraws StepDraws::nodes_of(std::size_t request) const {
    const Share& share = shares_[request];
    accept::NodeDraws draws;
    draws.draws = draws_.subspan(share.first + share.prompt_count, share.node_count);
    draws.top = std::span(tops_).subspan(share.node_top, share.node_top_count);
    return draws;
}

StepDraws::PromptPart StepDraws::prompt(std::size_t request) {
    const Share& share = shares_[request];
    PromptPart part;
    part.first_position = share.first_position;
    part.top = std::span(tops_).subspan(share.prompt_top, share.prompt_top_count);
    prompt_logprobs_.clear();
    for (const ops::Draw& draw : draws_.subspan(share.first, share.prompt_count)) {
        prompt_logprobs_.push_back(draw.logprob);
        part.bad = part.bad || draw.flag == ops::DrawFlag::bad_logits;
    }
    part.logprobs = prompt_logprobs_;
    return part;
}

}  // namespace espalier::engine
