// SPDX-License-Identifier: Apache-2.0
// What is drawn in a step: one entry per gathered token, in the order of the batch's gather list.
// A node of a tree (or the end of a prompt) draws with its request's parameters, position, bans,
// counts along its path and the mask of its request's grammar there; a token inside a prompt asks
// for the logprob of the one after it. Used by Stepper; all memory is taken at creation.
//
// A mask is found by walking the tree that the batch was built from, and goes to the builder with
// the node that it belongs to: there is no list of masks whose order could differ from the batch's.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "accept/walk.hpp"
#include "engine/live_request.hpp"
#include "engine/target.hpp"
#include "ops/sampling_builder.hpp"
#include "schedule/plan.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::engine {

class StepDraws {
  public:
    // Capacity for all that any step of these may ask for.
    static ops::SamplingCapacity capacity(const schedule::SchedulerOptions& options,
                                          std::int64_t vocabulary);
    // builder: of that capacity.
    StepDraws(std::int64_t max_rows, ops::SamplingBatchBuilder builder);

    // A step with logits of `gather` tokens. For each request of the plan, in order, one of these
    // two; then the target draws what finish() returns, and take() gets what it drew.
    void begin(std::int64_t gather);
    void add_tree(const LiveRequest& live, const accept::TreeView& tree,
                  std::span<const std::int32_t> depths);
    // rows: of one chunk. tokens: all of the request's committed ones.
    void add_chunk(const LiveRequest& live, std::span<const schedule::PlannedRow> rows,
                   std::span<const std::int32_t> tokens);
    const ops::SamplingBatchBuilder& finish();
    void take(const StepResult& result);  // borrowed until the next step

    // Tokens that the request drew at its nodes; flagged_nodes is left to the caller.
    accept::NodeDraws nodes_of(PlanIndex request) const;
    // The logprobs of its prompt's tokens first_position + 1 …, computed in this step.
    struct PromptPart {
        std::int64_t first_position = 0;
        std::span<const float> logprobs;
        std::span<const accept::TokenLogprob> top;
        bool bad = false;  // a NaN or +Inf among their logits
    };
    PromptPart prompt(PlanIndex request);

  private:
    struct Share {
        std::size_t first = 0;         // entry of its first gathered token
        std::size_t prompt_count = 0;  // entries that ask for a prompt's logprob; then its nodes
        std::size_t node_count = 0;
        std::size_t prompt_top = 0, prompt_top_count = 0;  // in tops_
        std::size_t node_top = 0, node_top_count = 0;
        std::int64_t first_position = 0;
    };

    // A request's constraint at one of its nodes.
    struct NodeRule {
        std::int32_t allowed = -1;  // its mask, as NodeRequest names it
        ops::ListRange banned{};    // beside the mask; empty: none
    };

    std::span<const NodeRule> rules_of(const LiveRequest& live, const accept::TreeView& tree);
    // Parameters that the nodes of a request have in common.
    ops::NodeRequest common(const LiveRequest& live);
    void add_prompt_token(std::int32_t wanted, std::int32_t top_count, Share& share);
    void add_node(const LiveRequest& live, ops::NodeRequest node, const NodeRule& rule,
                  std::int32_t depth, std::span<const std::int32_t> path);
    void add(const ops::NodeRequest& node);

    IndexedVector<PlanIndex, Share> shares_;
    std::array<NodeRule, kMaxNodes> rules_;  // of the request that is being added
    ops::SamplingBatchBuilder builder_;
    std::size_t nodes_ = 0;
    std::size_t tops_used_ = 0;
    std::span<const ops::Draw> draws_;
    std::span<const accept::TokenLogprob> tops_;
    std::vector<float> prompt_logprobs_;
};

}  // namespace espalier::engine
