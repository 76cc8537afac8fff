// SPDX-License-Identifier: Apache-2.0
// A request as the scheduler sees it: what it asks for when it is submitted, how it is named from
// then on, and the states it passes through. Plain data; no clock (time comes in as numbers).
//
// A request with n choices is scheduled as n requests that share a prompt: each choice has its own
// id, slot, pages and output. They are one group: while one of them computes the prompt's full
// pages, the others wait, and then share those pages.
#pragma once

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "base/index.hpp"
#include "base/limits.hpp"
#include "cache/page_table.hpp"

namespace espalier::schedule {

// Nanoseconds of any clock that does not go back; only compared with each other.
using Time = std::int64_t;
inline constexpr Time kNoDeadline = std::numeric_limits<Time>::max();

// Slots that a request writes at most: the last token's KV is never written, a prompt's is.
constexpr std::int64_t written_slots(std::int64_t prompt_tokens, std::int64_t max_tokens) {
    return max_tokens > 0 ? prompt_tokens + max_tokens - 1 : prompt_tokens;
}

// Request as submitted. Its tokens are checked against the vocabulary at the edge, not here.
struct Request {
    std::vector<std::int32_t> prompt;  // at least one token
    // Prompt and output together must fit max_model_len (the edge clamps, and says so, when a
    // client named no number). 0: the prompt alone is wanted, for its logits; it ends with the step
    // that completes it.
    std::int64_t max_tokens = 1;
    std::int32_t choices = 1;
    std::int32_t priority = 0;    // smaller goes first; equal ones by arrival
    Time deadline = kNoDeadline;  // at this time and later it is ended as expired
    std::uint64_t salt = 0;       // prompts of other salts never share pages
    // Logits of every prompt position are wanted (prompt logprobs). Such a prompt is not looked up
    // in the prefix index: a shared page has KV but no logits. Computed once per group.
    bool prompt_logits = false;
    std::int32_t max_drafts = kMaxDrafts;  // per step; 0: never speculate for this request
};

// Names one choice of a request. The slot is a small number that indexes the engine's arrays; it
// is used again after the request has ended, the serial never is. Serials count up in order of
// arrival, so (priority, serial) is the order key.
struct RequestId {
    RequestSlot slot;
    std::int64_t serial = -1;
    bool operator==(const RequestId&) const = default;
};

// ---- states -------------------------------------------------------------------------------------
// Pages are owned by the states that may own them: a waiting or finished request has no field for
// a page. tokens: prompt and committed output so far, kept through every state.

// Not in any batch: new, or preempted. A preempted request comes back as a prompt of all its
// tokens, with the forms it always had.
struct Waiting {
    // Set when it was its turn but there were too few pages: how many must be available before
    // asking again is worth a lookup, and from which plan on to ask anyway (others may have
    // published what it needs).
    std::int64_t pages_wanted = 0;
    std::int64_t retry_plan = 0;
};

// Slots [0, computed) are written; the tokens from there on are still to be computed.
struct Prefilling {
    cache::PageTable pages;
    std::int64_t computed = 0;
};

// All but the last token are written: that one is the next step's root.
struct Running {
    cache::PageTable pages;
};

// Cancelled while the step that writes its pages is under way: they are given back by advance().
struct Leaving {
    cache::PageTable pages;
};

enum class EndReason : std::uint8_t {
    finished,   // the engine said so: a stop condition was met
    failed,     // the engine said so: bad numbers, nothing left to choose
    cancelled,  // by cancel()
    expired,    // its deadline passed
};

struct Finished {
    EndReason reason = EndReason::finished;
};

// monostate: a slot that no request has.
using State = std::variant<std::monostate, Waiting, Prefilling, Running, Leaving, Finished>;

}  // namespace espalier::schedule
