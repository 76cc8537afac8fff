// SPDX-License-Identifier: Apache-2.0
#include "engine/step_draws.hpp"

#include <algorithm>
#include <utility>

#include "accept/token_counts.hpp"
#include "base/at.hpp"
#include "base/check.hpp"

namespace espalier::engine {

ops::SamplingCapacity StepDraws::capacity(const schedule::SchedulerOptions& options,
                                          std::int64_t vocabulary) {
    return {.nodes = options.max_step_gather,
            .requests = options.max_rows,
            .vocabulary = vocabulary,
            .max_context = options.max_model_len,
            .biases = accept::kMaxLogitBiases,
            // Tokens that end the output: eos, stop tokens, stop strings that are special tokens.
            .banned = 2 * accept::kMaxStopTokens + accept::kMaxStopStrings,
            // Every node may have a mask of its own. What no grammar fills is never touched: 2,048
            // nodes of 129,280 tokens are 33 MB at most, of the host and of the device.
            .masks = options.max_step_gather};
}

StepDraws::StepDraws(std::int64_t max_rows, ops::SamplingBatchBuilder builder)
    : builder_(std::move(builder)) {
    shares_.values().reserve(static_cast<std::size_t>(max_rows));
    prompt_logprobs_.reserve(static_cast<std::size_t>(builder_.capacity().nodes));
}

void StepDraws::begin(std::int64_t gather) {
    builder_.begin(gather);
    shares_.values().clear();
    nodes_ = 0;
    tops_used_ = 0;
}

ops::NodeRequest StepDraws::common(const LiveRequest& live) {
    const accept::SamplingParameters& sampling = live.group->sampling;
    ops::NodeRequest node{.parameters = sampling.draw(),
                          .choice = live.choice,
                          .logprob = live.group->logprobs,
                          .alternatives = live.progress.rules().options().top_logprobs};
    node.biases = builder_.add_biases(sampling.logit_bias());
    // Bans end at some depth; they are the root's as far as they reach.
    node.banned = builder_.add_banned(live.progress.banned_at(0));
    if (sampling.counts_tokens())
        node.committed = builder_.add_counts(live.id.serial, live.progress.committed_counts());
    return node;
}

void StepDraws::add(const ops::NodeRequest& node) {
    builder_.add(node);
    ++nodes_;
    tops_used_ += static_cast<std::size_t>(node.alternatives);
}

// By node of the tree; empty: no rule for any. An illegal node (of a recorded tree: drafts are
// pruned) has none: no walk comes by.
std::span<const StepDraws::NodeRule> StepDraws::rules_of(const LiveRequest& live,
                                                         const accept::TreeView& tree) {
    using Legal = accept::Constraint::Legal;
    if (live.constraint == nullptr) return {};
    rules_.fill({});
    accept::Constraint& constraint = *live.constraint;
    ops::ListRange eos;
    accept::visit_legal(tree, constraint, [&](std::int32_t node) {
        NodeRule& rule = at(rules_, node);
        const Legal legal = constraint.legal();
        if (legal == Legal::no_eos) {
            if (eos.count == 0) eos = builder_.add_banned(constraint.eos());
            rule.banned = eos;
        }
        if (legal != Legal::masked) return;
        const std::span<std::uint32_t> words = builder_.add_mask(rule.allowed);
        if (node == 0)
            std::ranges::copy(constraint.root_mask(), words.begin());
        else
            constraint.fill_mask(words);
    });
    return rules_;
}

// path: the node's tokens from depth 1 on.
void StepDraws::add_node(const LiveRequest& live, ops::NodeRequest node, const NodeRule& rule,
                         std::int32_t depth, std::span<const std::int32_t> path) {
    const accept::RequestProgress& progress = live.progress;
    node.position = static_cast<std::int32_t>(progress.draw_position(depth));
    if (const auto& forced = live.group->forced_output; !forced.empty())
        node.wanted =
            forced.at(static_cast<std::size_t>(progress.usage().completion_tokens + depth));
    if (progress.banned_at(depth).empty()) node.banned = {};
    if (rule.banned.count > 0) node.banned = rule.banned;
    node.allowed = rule.allowed;
    if (!live.group->sampling.counts_tokens()) return add(node);
    const accept::NodeCounts counts = progress.counts_at(path);
    node.changed = counts.changed();
    add(node);
}

void StepDraws::add_tree(const LiveRequest& live, const accept::TreeView& tree,
                         std::span<const std::int32_t> depths) {
    Share share;
    share.first = nodes_;
    share.node_count = static_cast<std::size_t>(tree.nodes());
    share.node_top = tops_used_;
    const ops::NodeRequest node_common = common(live);
    const std::span<const NodeRule> rules = rules_of(live, tree);
    const bool counts = live.group->sampling.counts_tokens();
    for (std::int32_t node = 0; node < tree.nodes(); ++node) {
        const accept::NodeList path = counts ? accept::path_tokens(tree, node) : accept::NodeList();
        add_node(live, node_common, rules.empty() ? NodeRule() : at(rules, node), at(depths, node),
                 path.values());
    }
    share.node_top_count = tops_used_ - share.node_top;
    shares_.values().push_back(share);
}

void StepDraws::add_prompt_token(std::int32_t wanted, std::int32_t top_count, Share& share) {
    add({.wanted = wanted, .alternatives = top_count});
    ++share.prompt_count;
}

void StepDraws::add_chunk(const LiveRequest& live, std::span<const schedule::PlannedRow> rows,
                          std::span<const std::int32_t> tokens) {
    const auto& prompt_logprobs = live.group->prompt_logprobs;
    const std::int32_t top_count = prompt_logprobs ? prompt_logprobs->top_count() : 0;
    const auto length = static_cast<std::int64_t>(tokens.size());
    Share share;
    share.first = nodes_;
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
            const std::array<std::int32_t, 1> parents = {-1};
            const accept::TreeView root{parents, tokens.last(1)};
            const ops::NodeRequest node_common = common(live);
            const std::span<const NodeRule> rules = rules_of(live, root);
            add_node(live, node_common, rules.empty() ? NodeRule() : rules.front(), 0, {});
            share.node_top_count = tops_used_ - share.node_top;
        }
    }
    if (share.node_count == 0) share.prompt_top_count = tops_used_ - share.prompt_top;
    shares_.values().push_back(share);
}

const ops::SamplingBatchBuilder& StepDraws::finish() {
    builder_.finish();
    return builder_;
}

void StepDraws::take(const StepResult& result) {
    CHECK(result.draws.size() >= nodes_ && result.alternatives.size() >= tops_used_,
          "{} draws and {} alternatives for {} nodes that report {}", result.draws.size(),
          result.alternatives.size(), nodes_, tops_used_);
    draws_ = result.draws;
    tops_ = result.alternatives;
}

accept::NodeDraws StepDraws::nodes_of(PlanIndex request) const {
    const Share& share = shares_[request];
    accept::NodeDraws draws;
    draws.draws = draws_.subspan(share.first + share.prompt_count, share.node_count);
    draws.top = tops_.subspan(share.node_top, share.node_top_count);
    return draws;
}

StepDraws::PromptPart StepDraws::prompt(PlanIndex request) {
    const Share& share = shares_[request];
    PromptPart part;
    part.first_position = share.first_position;
    part.top = tops_.subspan(share.prompt_top, share.prompt_top_count);
    prompt_logprobs_.clear();
    for (const ops::Draw& draw : draws_.subspan(share.first, share.prompt_count)) {
        prompt_logprobs_.push_back(draw.logprob);
        part.bad = part.bad || draw.flag == ops::DrawFlag::bad_logits;
    }
    part.logprobs = prompt_logprobs_;
    return part;
}

}  // namespace espalier::engine
