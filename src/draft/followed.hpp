// SPDX-License-Identifier: Apache-2.0
// For which requests, and in which pages, a drafter's KV is complete. A drafter that is not kept up
// to date for a while (speculate::Drafter::forget) misses tokens: what it keeps of the texts under
// way has holes, and so have the pages that others find later. It drafts for a request again when
// it has seen all of it: from its first token, or behind pages that it has seen filled. Pure; used
// by ModelDrafter.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page.hpp"
#include "speculate/drafter.hpp"

namespace espalier::draft {

class Followed {
  public:
    explicit Followed(std::int64_t page_count)
        : filled_(static_cast<std::size_t>(page_count), std::int8_t{0}) {}

    // A new request has the slot, or the one that has it was preempted: what comes starts anew.
    void begin(RequestSlot request);
    // These tokens' KV will be there before anybody reads it.
    void add(const speculate::Extension& extension);
    // Everything that was seen so far has holes from now on.
    void forget();
    // All tokens before this position were seen.
    bool whole(RequestSlot request, std::int64_t position) const;

  private:
    struct Text {
        std::int64_t end = -1;  // of what was seen last; -1: nothing
        bool whole = false;
    };
    bool pages_whole(const speculate::Extension& extension) const;
    void fill(const speculate::Extension& extension, bool state_known);

    IndexedVector<RequestSlot, Text> texts_;
    std::vector<std::int8_t> filled_;  // by page: slots from its first on that were seen
    static_assert(cache::kPageTokens <= 127);
};

}  // namespace espalier::draft
