// SPDX-License-Identifier: Apache-2.0
// The books behind PagePool: every page but the null page is free, owned (it has references) or
// cached (in the index, without references). Works on bare ids and trusts no caller: each wrong
// move is a CHECK. PagePool's handles are its only users outside tests.
//
// A page of the index that has references holds one on its parent. So the pages a chain needs are
// never evicted while any page after them is in use, a page becomes cached before its parent does,
// and the oldest cached page is always a leaf: plain LRU order evicts leaves first, in O(1), and
// all that counts as cached can be evicted. Were a parent evicted first, its children could not be
// found again until it was recomputed, yet would fill the pool.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page.hpp"
#include "cache/prefix_index.hpp"

namespace espalier::cache {

// total = free + owned + cached, always.
struct PageCounts {
    std::int64_t total = 0;   // without the null page
    std::int64_t free = 0;    // hold nothing
    std::int64_t owned = 0;   // referenced by a handle, or by an owned page after them
    std::int64_t cached = 0;  // can be found, can be evicted
    std::int64_t available() const { return free + cached; }

    bool operator==(const PageCounts&) const = default;
};

class PageLedger {
  public:
    PageLedger(std::int64_t page_count, std::uint64_t seed, PrefixHash hash);

    // Evicts the least recently used cached pages until count are free; false, with nothing
    // evicted, when there are too few.
    bool make_room(std::int64_t count);
    PageId take();           // a free page, with one reference for the caller
    void hold(PageId page);  // one more reference on an owned or cached page
    void release(PageId page);
    // Lists a page held once. When its content is listed already, the caller's reference moves to
    // the page that is there and the given one becomes free. Returns the page now held.
    PageId publish(PageId page, const PageKey& key);

    PageCounts counts() const;
    std::int64_t handles() const { return handles_; }  // references held from outside
    const PrefixIndex& index() const { return index_; }
    void listen(PageEvents* events) { index_.listen(events); }
    // The pool is gone but handles are left: the last one to be released deletes the ledger.
    void abandon() { abandoned_ = true; }
    bool ownerless() const { return abandoned_ && handles_ == 0; }
    // CHECKs that every page is in exactly one state and that all counts agree. O(pages).
    void audit() const;

  private:
    struct Page {
        std::int64_t references = 0;
        PageId older = kNullPage;  // neighbours among the cached pages
        PageId newer = kNullPage;
    };

    Page& at(PageId page) { return pages_[static_cast<std::size_t>(page)]; }
    const Page& at(PageId page) const { return pages_[static_cast<std::size_t>(page)]; }
    void check_page(PageId page) const;
    void add_reference(PageId page);
    void drop_reference(PageId page);
    void append_newest(PageId page);
    void unlink(PageId page);
    void audit_free(std::vector<int>& seen) const;
    void audit_cached(std::vector<int>& seen) const;
    void audit_owned(const std::vector<int>& seen) const;

    PrefixIndex index_;
    std::vector<Page> pages_;   // [page_count]; the null page's links close the ring of cached ones
    std::vector<PageId> free_;  // a stack: the page freed last is the warmest
    std::int64_t cached_ = 0;
    std::int64_t handles_ = 0;
    bool abandoned_ = false;
};

}  // namespace espalier::cache
