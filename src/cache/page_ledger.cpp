// SPDX-License-Identifier: Apache-2.0
#include "cache/page_ledger.hpp"

#include "base/check.hpp"

namespace espalier::cache {

PageLedger::PageLedger(std::int64_t page_count, std::uint64_t seed, PrefixHash hash)
    : index_(page_count, seed, hash), pages_(static_cast<std::size_t>(page_count)) {
    free_.reserve(pages_.size());
    for (auto page = static_cast<PageId>(page_count - 1); page > kNullPage; --page)
        free_.push_back(page);
}

PageCounts PageLedger::counts() const {
    PageCounts counts;
    counts.total = static_cast<std::int64_t>(pages_.size()) - 1;
    counts.free = static_cast<std::int64_t>(free_.size());
    counts.cached = cached_;
    counts.owned = counts.total - counts.free - counts.cached;
    return counts;
}

bool PageLedger::make_room(std::int64_t count) {
    CHECK(count >= 0, "{} pages wanted", count);
    if (count > counts().available()) return false;
    while (static_cast<std::int64_t>(free_.size()) < count) {
        const PageId oldest = at(kNullPage).newer;
        index_.erase(oldest);
        unlink(oldest);
        free_.push_back(oldest);
    }
    return true;
}

PageId PageLedger::take() {
    CHECK(!free_.empty(), "no free page of {}: make_room comes first", counts().total);
    const PageId page = free_.back();
    free_.pop_back();
    at(page).references = 1;
    ++handles_;
    return page;
}

void PageLedger::hold(PageId page) {
    add_reference(page);
    ++handles_;
}

void PageLedger::release(PageId page) {
    drop_reference(page);
    --handles_;
}

PageId PageLedger::publish(PageId page, const PageKey& key) {
    check_page(page);
    CHECK(at(page).references == 1, "page {} has {} references: only its one owner may publish it",
          page, at(page).references);
    const PageId listed = index_.insert(page, key);
    if (listed != page) {
        add_reference(listed);
        drop_reference(page);
    } else if (key.parent != kNullPage) {
        add_reference(key.parent);
    }
    return listed;
}

void PageLedger::check_page(PageId page) const {
    CHECK(page > kNullPage && page <= counts().total, "page {} of {}", page, counts().total);
}

// A cached page that comes into use takes hold of its parent, which may have been cached too.
void PageLedger::add_reference(PageId page) {
    check_page(page);
    CHECK(at(page).references > 0 || index_.contains(page), "page {} is free", page);
    while (page != kNullPage && at(page).references++ == 0) {
        unlink(page);
        page = index_.parent(page);
    }
}

// Amortised O(1) although it climbs: each page it passes was brought into use once.
void PageLedger::drop_reference(PageId page) {
    check_page(page);
    CHECK(at(page).references > 0, "page {} is given back but has no reference", page);
    while (page != kNullPage && --at(page).references == 0) {
        if (!index_.contains(page)) {
            free_.push_back(page);
            return;
        }
        append_newest(page);
        page = index_.parent(page);
    }
}

void PageLedger::append_newest(PageId page) {
    const PageId newest = at(kNullPage).older;
    at(page).older = newest;
    at(page).newer = kNullPage;
    at(newest).newer = page;
    at(kNullPage).older = page;
    ++cached_;
}

void PageLedger::unlink(PageId page) {
    at(at(page).older).newer = at(page).newer;
    at(at(page).newer).older = at(page).older;
    --cached_;
}

void PageLedger::audit() const {
    std::vector<int> seen(pages_.size(), 0);
    audit_free(seen);
    audit_cached(seen);
    audit_owned(seen);
}

void PageLedger::audit_free(std::vector<int>& seen) const {
    for (const PageId page : free_) {
        check_page(page);
        CHECK(++seen[static_cast<std::size_t>(page)] == 1, "page {} is free twice", page);
        CHECK(at(page).references == 0, "page {} is free with {} references", page,
              at(page).references);
        CHECK(!index_.contains(page), "page {} is free and in the index", page);
    }
}

void PageLedger::audit_cached(std::vector<int>& seen) const {
    std::int64_t cached = 0;
    std::int64_t children = 0;  // of cached pages
    std::int64_t cached_children = 0;
    for (PageId page = at(kNullPage).newer; page != kNullPage; page = at(page).newer) {
        CHECK(++seen[static_cast<std::size_t>(page)] == 1, "page {} is free and cached", page);
        CHECK(at(page).references == 0, "page {} is cached with {} references", page,
              at(page).references);
        CHECK(index_.contains(page), "page {} is cached but not in the index", page);
        const PageId parent = index_.parent(page);
        CHECK(seen[static_cast<std::size_t>(parent)] == 0, "page {} is older than its child {}",
              parent, page);
        children += index_.children(page);
        if (parent != kNullPage && at(parent).references == 0) ++cached_children;
        ++cached;
    }
    CHECK(cached == cached_, "{} pages cached, {} counted", cached, cached_);
    CHECK(children == cached_children, "cached pages have {} children, {} of them cached", children,
          cached_children);
}

void PageLedger::audit_owned(const std::vector<int>& seen) const {
    std::int64_t references = 0;
    std::int64_t owned = 0;
    std::int64_t owned_children = 0;
    for (PageId page = kNullPage + 1; page <= counts().total; ++page) {
        if (seen[static_cast<std::size_t>(page)] != 0) continue;
        CHECK(at(page).references > 0, "page {} is lost: neither free, cached nor held", page);
        references += at(page).references;
        ++owned;
        if (index_.contains(page) && index_.parent(page) != kNullPage) ++owned_children;
    }
    CHECK(owned == counts().owned, "{} pages owned, {} counted", owned, counts().owned);
    CHECK(references == handles_ + owned_children,
          "{} references, but {} handles and {} pages that hold their parent", references, handles_,
          owned_children);
}

}  // namespace espalier::cache
