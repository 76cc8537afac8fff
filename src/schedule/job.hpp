// SPDX-License-Identifier: Apache-2.0
// The scheduler's own record of a request (one choice), and of the group of choices that share its
// prompt. Plain data; used by Scheduler alone.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page.hpp"
#include "schedule/order.hpp"
#include "schedule/request.hpp"

namespace espalier::schedule {

// A request's share of the plan that is being made.
struct Grant {
    std::int64_t tokens = 0;  // the root and its drafts, or a chunk of the prompt
    std::int64_t gather = 0;  // rows of logits
    std::int64_t splits = 0;  // of attention, where they are bounded
    std::int32_t drafts = 0;
};

struct Job {
    RequestId id;
    std::int32_t priority = 0;
    std::int32_t choice = 0;
    std::int32_t group = -1;
    std::int32_t max_drafts = 0;
    Time deadline = kNoDeadline;
    std::vector<std::int32_t> tokens;  // prompt and committed output; memory for all it may become
    std::int64_t prompt_tokens = 0;    // P, as submitted
    std::int64_t max_length = 0;       // P + max_tokens
    cache::SequenceKey key;            // forms by P, whatever is generated or preempted later
    std::int64_t ever_written = 0;     // the most slots it had written before a preemption
    std::int64_t preemptions = 0;
    std::int64_t hit_tokens = 0;
    bool admitted = false;  // at least once
    Grant grant;
    State state;

    OrderKey order() const { return {priority, id.serial}; }
    std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
};

struct Group {
    std::int32_t members = 0;     // that have not ended
    std::int64_t full_slots = 0;  // of the prompt, those in pages that choices can share
    // The plan in which a choice was computing what the others wait for.
    std::int64_t leading_plan = 0;
    // Prompt positions whose logits are wanted, and how many of them have been computed.
    std::int64_t logits_wanted = 0;
    std::int64_t logits_done = 0;
    bool wants_logits() const { return logits_done < logits_wanted; }
};

}  // namespace espalier::schedule
