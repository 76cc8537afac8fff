// SPDX-License-Identifier: Apache-2.0
// Committed tokens whose draft KV is not written yet, because many at once cost little more than
// one. Row i of the drafter's log holds the taps of entry i. Pure; used by ModelDrafter, which
// empties it at the latest when a page is complete (before it is published) and before it drafts.
//
// The state that a token's KV is made from is that of the token before it: of the entry before, or,
// for the first entry of a request, what was kept with the page of the token before it (the page's
// tail state; kept for the last token that was written to the page, so for a full page for its last
// slot, by any request).
//
// Entries are dropped when their request ends or is preempted: its pages may be another's then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page.hpp"
#include "speculate/drafter.hpp"

namespace espalier::draft {

class Backlog {
  public:
    struct Entry {
        RequestSlot request;
        TokenId token = 0;
        std::int64_t position = 0;
        std::int64_t slot = 0;          // of the pool; -1: dropped
        std::int32_t before_row = -1;   // the entry that holds the state of the token before
        cache::PageId page = 0;         // of its slot
        cache::PageId before_page = 0;  // if before_row is -1: the page with that state; 0: none
    };

    explicit Backlog(std::int64_t capacity);

    // The extension may have at most capacity() - size() tokens, and goes on where the request's
    // last entry stands, if it has one.
    void add(const speculate::Extension& extension);
    void drop(RequestSlot request);
    void clear();

    std::int64_t size() const { return std::ssize(entries_); }
    std::int64_t capacity() const { return capacity_; }
    std::span<const Entry> entries() const { return entries_; }
    // True if an entry is its page's last slot: it must be written before the page is published.
    bool completes_page() const { return completes_page_; }
    // The request's last entry, if its token stands at this position; -1 otherwise.
    std::int32_t last_row(RequestSlot request, std::int64_t position) const;
    // True if this entry's state becomes its page's tail state: no later slot of it is here.
    bool keeps_state(std::size_t row) const;

  private:
    static constexpr std::int32_t kNone = -1;
    struct LastRow {
        std::int32_t entry = kNone;
    };

    std::int32_t& last(RequestSlot request) { return last_row_.grown_to(request).entry; }

    std::int64_t capacity_;
    std::vector<Entry> entries_;
    IndexedVector<RequestSlot, LastRow> last_row_;
    bool completes_page_ = false;
};

}  // namespace espalier::draft
