// SPDX-License-Identifier: Apache-2.0
// What passes between the scheduler and the engine in one step: offers of nodes, the plan, what
// came of it, and statistics. Plain data. Spans belong to the scheduler and are good until
// advance().
#pragma once

#include <cstdint>
#include <span>

#include "cache/page.hpp"
#include "cache/page_ledger.hpp"
#include "schedule/request.hpp"

namespace espalier::schedule {

// Pairs of a query and a key it sees, by the form that computes them: what attention costs beside
// the products.
struct KeyPairs {
    std::int64_t absorbed = 0;
    std::int64_t decompressed = 0;
    // A row of tokens at consecutive positions. A tree's nodes see no more than a chain's.
    void add(std::int64_t first_position, std::int64_t tokens, cache::Form form) {
        const std::int64_t pairs = tokens * first_position + tokens * (tokens + 1) / 2;
        (form == cache::Form::absorbed ? absorbed : decompressed) += pairs;
    }
};

// ---- first half: how many draft nodes there could be --------------------------------------------

// With SchedulerOptions::reserve_windows: whether drafters write KV while they draft for this step.
enum class Windows : std::uint8_t {
    reserved,  // they may: an offer's pages are the request's own
    counted,   // none is asked that does: no cached page is evicted before a draft is granted
};

// A running request that takes part in the step. Its root is granted already.
struct NodeOffer {
    RequestSlot slot;
    // The most drafts (nodes besides the root) it may verify: tokens left, the model's length, its
    // own limit, pages. Not more than 63.
    std::int32_t max_drafts = 0;
    // Its pages, up to the root's; where windows are reserved those of the root and max_drafts,
    // which is invisible to others. Good until next_plan.
    std::span<const std::int32_t> block_table;
};

// The step without drafts, in the words of speculate::StepLoad.
struct NodeOffers {
    std::span<const NodeOffer> rows;  // by order key
    std::int64_t max_drafts = 0;      // over all of them: room left in the batch
    std::int64_t granted_rows = 0;    // running requests and prompts granted so far
    std::int64_t granted_tokens = 0;  // roots and the prompt quantum
    KeyPairs granted_keys;            // of these tokens
};

// ---- second half: the plan ----------------------------------------------------------------------

// Which of a row's tokens need logits.
enum class Gather : std::uint8_t {
    none,    // a chunk inside a prompt
    last,    // the chunk that completes a prompt
    nodes,   // every node of a tree; a plain decode is a tree of one node
    prompt,  // prompt logits are wanted: every token from gather_first on
};

// q_len tokens of one request with one form. Positions and slots are consecutive from
// first_position, except below a tree's root, where the engine's tree says.
struct PlannedRow {
    RequestSlot slot;
    std::int64_t first_position = 0;  // also the index of its first slot in the sequence
    std::int64_t q_len = 0;           // a tree: 1 + drafts
    cache::Form form = cache::Form::absorbed;
    // The chunk's tokens, or the root alone: the engine's tree has the others.
    std::span<const std::int32_t> tokens;
    // Pages of the whole sequence, this window included.
    std::span<const std::int32_t> block_table;
    Gather gather = Gather::none;
    std::int64_t gather_first = 0;  // of the row's tokens, the first that needs logits
    std::int64_t gather_count() const { return gather == Gather::none ? 0 : q_len - gather_first; }
};

// Kind of work of a planned request.
enum class Work : std::uint8_t {
    decode,      // a running request's root, with or without drafts
    chunk,       // a part inside its prompt
    last_chunk,  // the part that ends with the last committed token
};

// Share of one request in a step: one row, or two adjacent ones (the decompressed and the
// absorbed part of one chunk).
struct PlannedRequest {
    RequestId id;
    std::int32_t first_row = 0;
    std::int32_t rows = 0;
    // Verified drafts; where windows are not reserved possibly fewer than were asked for, when
    // pages ran out: take the tree's first 1 + drafts nodes.
    std::int32_t drafts = 0;
    Work work = Work::chunk;
    bool decodes() const { return work == Work::decode; }
    bool draws() const { return work != Work::chunk; }  // a next token
};

// Tokens of a step by kind. Recomputed: those of prompts that had been computed before a
// preemption; they are counted in decompressed or absorbed too.
struct StepTokens {
    std::int64_t roots = 0;
    std::int64_t drafts = 0;
    std::int64_t prompt_decompressed = 0;
    std::int64_t prompt_absorbed = 0;
    std::int64_t recomputed = 0;
    std::int64_t gathered = 0;  // rows of logits
    std::int64_t total() const { return roots + drafts + prompt_decompressed + prompt_absorbed; }
};

struct Plan {
    std::int64_t number = 0;  // counts from 1
    std::span<const PlannedRow> rows;
    // Running requests by order key, then prompts by order key; rows are in the same order.
    std::span<const PlannedRequest> requests;
    StepTokens tokens;
    KeyPairs keys;
    std::int64_t splits = 0;  // of all absorbed rows, where they are bounded
    bool empty() const { return rows.empty(); }
    const PlannedRequest& request(PlanIndex index) const {
        return requests[static_cast<std::size_t>(index.value())];
    }
    auto request_indices() const { return indices<PlanIndex>(requests.size()); }
    std::span<const PlannedRow> rows_of(const PlannedRequest& planned) const {
        return rows.subspan(static_cast<std::size_t>(planned.first_row),
                            static_cast<std::size_t>(planned.rows));
    }
};

// ---- what came of it ----------------------------------------------------------------------------

// For one planned request. Its accepted path must lie in consecutive slots (compacted) by now.
struct Outcome {
    // Tokens that the walk drew, in order: at least one when it draws and the request goes
    // on, none for a chunk inside a prompt.
    std::span<const std::int32_t> committed;
    enum class End : std::uint8_t {
        none,
        finished,  // what is written is right, and its full pages are published
        failed,    // a number was not finite: nothing this step wrote may be shared
    };
    End end = End::none;
};

// A request that is over, for whatever reason.
struct Ended {
    RequestId id;
    EndReason reason = EndReason::finished;
};

// ---- statistics ---------------------------------------------------------------------------------

// Now.
struct Gauges {
    std::int64_t waiting = 0;         // requests, the preempted ones too
    std::int64_t waiting_tokens = 0;  // of these
    std::int64_t prefilling = 0;
    std::int64_t running = 0;
    cache::PageCounts pages;
};

// Since the scheduler was made.
struct Totals {
    std::int64_t submitted = 0;  // choices
    std::int64_t finished = 0;
    std::int64_t failed = 0;
    std::int64_t cancelled = 0;
    std::int64_t expired = 0;
    std::int64_t preemptions = 0;
    std::int64_t plans = 0;
    std::int64_t prompt_tokens = 0;       // of admitted requests, at their first admission
    std::int64_t hit_tokens = 0;          // of these, found in the prefix index
    std::int64_t resumed_tokens = 0;      // of preempted requests, when they came back
    std::int64_t resumed_hit_tokens = 0;  // of these, found
    std::int64_t committed = 0;           // output tokens
    std::int64_t stalled_rows = 0;        // running requests that a step left out: no page, or
                                          // no splits
    StepTokens tokens;
};

}  // namespace espalier::schedule
