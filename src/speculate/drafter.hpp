// SPDX-License-Identifier: Apache-2.0
// What a drafter is: something that proposes a tree below the last committed token. It can be
// wrong, slow or silent, but it cannot change the text: the walk compares tokens with the target's
// draws.
//
// The engine calls, per step and for all requests at once:
//   extend()   after the target's pass: which tokens' hidden states it has left behind
//   commit()   tokens that are now part of the text, each token of a request exactly once
//   propose()  trees for the next step, for every request that may draft
//
// How each kind fits:
//   n-gram   (ngram.hpp) reads commit() only. It needs no hidden state and costs microseconds.
//   While
//            its drafts do not pay it is asked all the same, where that takes less than a hundredth
//            of a step, and its proposals are compared with the drawn tokens, so the ranking stays
//            warm (policy/acceptance.hpp).
//   MTP      needs h_{q-1}, the target's hidden state after the final norm, for every token q.
//            extend() names them as places in the step's own tap buffer, so no device type appears
//            here: the drafter was built with that buffer, the backend and the draft layers' KV.
//            The *KV half* of its layer (embed, norms, projection, kv_a, rope) runs for them, also
//            while speculation is off and for prompt chunks: at the latest in the extend() that
//            completes a page, which may be published then. After a preemption (preempted()) the
//            same positions come again through extend() but not through commit(). extend() is not
//            called while drafts do not pay (forget()): the drafter drafts for a request again
//            when it has seen all of its text (follows()).
//   EAGLE3   as MTP, with taps of several layers; draft vocabulary ids become target ids (d2t)
//            before they enter a Proposal: a Tree holds target ids only.
//   grammar  (engine/grammar_drafter.hpp) the text that a grammar forces, as a chain; free as the
//            n-gram's.
//   MTP and EAGLE3 grow trees level by level: one batch per level over all requests of the call,
//   each row the level's nodes with tail_len = nodes so far > q_len, slots = root's slot + node
//   index. Draft KV beyond the root is scratch in the call's block table, whose pages the scheduler
//   has reserved for the root and shape.nodes - 1 drafts (needs().draft_cache), and never
//   published. The call has the request's sampling parameters, its progress (bans, counts of tokens
//   along a path) and its choice, so a drafter may draw with the target's own noise at the node's
//   position. Whether it does (coupled drafting) is the caller's to say, call by call. What a call
//   may cost is planned before it (DraftShape, policy/planner.hpp); what it took is measured.
//
// Proposals carry scores; what a score is worth is measured, per drafter, not believed (merge.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/draft_origin.hpp"
#include "base/error.hpp"
#include "base/index.hpp"
#include "speculate/tree.hpp"

namespace espalier::accept {
// Defined in src/accept; only drafters with models read them.
class SamplingParameters;
class RequestProgress;
class Constraint;
}  // namespace espalier::accept

namespace espalier::speculate {

using DrafterId = std::uint8_t;  // a drafter's place in the engine's list

using espalier::kMaxDrafters;

// One drafter's tree. A node's score is the drafter's own estimate, in [0, 1], that the node is
// accepted given that its parent is. The root's score is not read.
struct Proposal {
    explicit Proposal(DrafterId source, TokenId root) : drafter(source), tree(root) {}

    void reset(DrafterId source, TokenId root) {
        drafter = source;
        coupled = false;
        tree.reset(root);
    }
    // Adds a node, or raises the score of the one that is there. A score outside [0, 1] is clamped,
    // NaN becomes 0: a bad score may cost speed, never text.
    std::int32_t add(std::int32_t parent, TokenId token, float node_score) {
        const bool usable = node_score > 0.0f;  // false for NaN
        const float clamped = !usable ? 0.0f : node_score < 1.0f ? node_score : 1.0f;
        const std::int32_t before = tree.size();
        const std::int32_t node = tree.add(parent, token);
        float& kept = score[static_cast<std::size_t>(node)];
        kept = node == before || clamped > kept ? clamped : kept;
        return node;
    }

    DrafterId drafter;
    bool coupled = false;  // as the call was
    Tree tree;
    std::array<float, kMaxNodes> score;  // of the tree's nodes; the root's is not set
};

// Tokens of one request whose target hidden states the last pass computed and that stay committed:
// a prompt chunk, or the accepted path.
struct Extension {
    RequestSlot request;
    std::int64_t first_position = 0;
    std::span<const TokenId> tokens = {};
    std::span<const std::int32_t> taps = {};  // [tokens] index of each in the step's batch
    // The sequence's pages; those before first_position may have been another request's work.
    std::span<const std::int32_t> block_table = {};
};

struct Commitment {
    RequestSlot request;
    std::span<const TokenId> tokens;
};

// Depth and width to which a drafter is to draft for one request.
struct DraftShape {
    std::int32_t depth = kMaxDrafts;  // levels below the root: passes of a draft model
    std::int32_t width = kMaxDrafts;  // nodes of one level
    std::int32_t nodes = kMaxNodes;   // root included
    bool operator==(const DraftShape&) const = default;
};
// The part of a shape that this many drafts have room for; depth 0: none.
inline DraftShape within(const DraftShape& shape, std::int32_t max_drafts) {
    return {.depth = std::min(shape.depth, max_drafts),
            .width = std::min(shape.width, max_drafts),
            .nodes = std::min(shape.nodes, 1 + max_drafts)};
}

struct DraftCall {
    RequestSlot request;
    std::int64_t root_position = 0;
    // Pages of the root and, where they are reserved, of the drafts.
    std::span<const std::int32_t> block_table = {};
    const accept::SamplingParameters* sampling = nullptr;
    const accept::RequestProgress* progress = nullptr;
    // Constraint at the root; null: none. A drafter that advances it must bring it back.
    // Illegal nodes of a proposal, and all below them, are removed before it counts.
    accept::Constraint* constraint = nullptr;
    std::int32_t choice = 0;  // of the request's parallel answers
    // Above temperature 0: choose children with the noise that the target will draw with.
    bool coupled = true;
    DraftShape shape = {};
    Proposal* proposal = nullptr;  // holds the root; left with only the root when there is nothing
};

struct DrafterNeeds {
    bool hidden_states = false;  // extend() must be called, and the taps kept
    bool draft_cache = false;    // writes KV of its own while it drafts: windows are reserved
    // Runs a pass of a model for every level: asked for the shape that pays, or not at all. A
    // drafter without is asked for everything, unless it is suspended.
    bool passes = false;
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    // In reports, metrics and traces.
    virtual std::string_view name() const { return "draft"; }
    virtual DrafterNeeds needs() const = 0;
    // The output that a request's sender expects behind this prompt, perhaps wrongly. Comes before
    // begin() or not at all.
    virtual void expect(RequestSlot /*request*/, std::span<const TokenId> /*prompt*/,
                        std::span<const TokenId> /*output*/) {}
    // A request enters with its prompt, which counts as committed; slots are used again after
    // end(). A long prompt may come in pieces instead, the first here and the others through
    // commit() beside its prefill chunks: reading 100k tokens at once takes the n-gram drafter up
    // to 50 ms.
    virtual void begin(RequestSlot request, std::span<const TokenId> prompt,
                       std::int64_t max_tokens) = 0;
    virtual void end(RequestSlot request) = 0;
    // The request has given its pages back, which may be another's by now; it comes again through
    // extend(), over other pages and from any position on.
    virtual void preempted(RequestSlot) {}
    // Refused when the drafter's device is out of order; the engine then runs without this drafter.
    virtual Expected<void> extend(std::span<const Extension> extensions) = 0;
    // extend() will not be called for some time; the drafter misses what is committed until then.
    virtual void forget() {}
    // True if the drafter has seen what it needs to draft below the root at this position.
    virtual bool follows(RequestSlot, std::int64_t /*root_position*/) const { return true; }
    // May come late in steps that ask only drafters with passes: one of these that needs it returns
    // false from follows() until it has come.
    virtual void commit(std::span<const Commitment> commitments) = 0;
    virtual Expected<void> propose(std::span<const DraftCall> calls) = 0;
};

}  // namespace espalier::speculate
