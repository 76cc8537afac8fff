// SPDX-License-Identifier: Apache-2.0
// The page pool in plain maps and sets, slow and obvious: what is owned, what can be found, and
// which page goes next are worked out from scratch each time. The real pool may choose which free
// page to hand out; everything else must agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cache/page_pool.hpp"

namespace espalier::cache {

class PageModel {
  public:
    // Everything a page's bits depend on: salt, then form and tokens of each page up to this one.
    using Content = std::vector<std::int64_t>;

    explicit PageModel(std::int64_t page_count) {
        for (PageId page = 1; page < page_count; ++page) free_.insert(page);
    }

    static Content content(const SequenceKey& key, const std::vector<std::int32_t>& tokens,
                           std::int64_t pages) {
        Content content = {static_cast<std::int64_t>(key.salt)};
        for (std::int64_t position = 0; position < pages * kPageTokens; ++position) {
            if (position % kPageTokens == 0)
                content.push_back(position < key.decompressed_below ? -2 : -1);
            content.push_back(tokens.at(static_cast<std::size_t>(position)));
        }
        return content;
    }

    PageCounts counts() const {
        PageCounts counts;
        counts.free = static_cast<std::int64_t>(free_.size());
        for (const auto& [page, state] : pages_) ++(in_use(page) ? counts.owned : counts.cached);
        counts.total = counts.free + counts.owned + counts.cached;
        return counts;
    }

    // True if a reservation succeeds; makes the evictions it needs.
    bool reserve(std::int64_t count) {
        if (count > counts().available()) return false;
        while (static_cast<std::int64_t>(free_.size()) < count) evict();
        return true;
    }
    // The pool handed this page out.
    bool take(PageId page) {
        if (free_.erase(page) == 0) return false;
        pages_[page] = Page{1, std::nullopt, kNullPage, std::nullopt};
        return true;
    }
    void hold(PageId page) {
        ++pages_.at(page).handles;
        settle();
    }
    void drop(PageId page) {
        --pages_.at(page).handles;
        if (pages_.at(page).handles == 0 && !pages_.at(page).content) {
            pages_.erase(page);
            free_.insert(page);
        }
        settle();
    }
    // Returns the page the owner holds afterwards.
    PageId publish(PageId page, const Content& content, PageId parent) {
        if (const PageId listed = find(content); listed != kNullPage) {
            hold(listed);
            drop(page);
            return listed;
        }
        pages_.at(page).content = content;
        pages_.at(page).parent = parent;
        return page;
    }
    PageId find(const Content& content) const {
        for (const auto& [page, state] : pages_)
            if (state.content == content) return page;
        return kNullPage;
    }
    std::vector<PageId> longest_prefix(const SequenceKey& key,
                                       const std::vector<std::int32_t>& tokens) const {
        std::vector<PageId> found;
        // At least one token is left to compute.
        for (std::int64_t pages = 1; pages * kPageTokens < std::ssize(tokens); ++pages) {
            const PageId page = find(content(key, tokens, pages));
            if (page == kNullPage) break;
            found.push_back(page);
        }
        return found;
    }
    std::int64_t handles() const {
        std::int64_t sum = 0;
        for (const auto& [page, state] : pages_) sum += state.handles;
        return sum;
    }
    std::int64_t evictions() const { return evictions_; }

  private:
    struct Page {
        std::int64_t handles = 0;
        std::optional<Content> content;  // when published
        PageId parent = kNullPage;
        std::optional<std::int64_t> unused_since;
    };

    // A page is in use when somebody holds it or a page after it.
    bool in_use(PageId page) const {
        if (pages_.at(page).handles > 0) return true;
        for (const auto& [other, state] : pages_)
            if (state.content && state.parent == page && in_use(other)) return true;
        return false;
    }
    bool has_child(PageId page) const {
        return std::any_of(pages_.begin(), pages_.end(), [&](const auto& entry) {
            return entry.second.content && entry.second.parent == page;
        });
    }
    // Notes when pages came out of use: of those that did at once, the deepest first.
    void settle() {
        std::vector<PageId> unused;
        for (auto& [page, state] : pages_) {
            if (in_use(page))
                state.unused_since.reset();
            else if (!state.unused_since)
                unused.push_back(page);
        }
        std::sort(unused.begin(), unused.end(), [&](PageId a, PageId b) {
            return pages_.at(a).content->size() > pages_.at(b).content->size();
        });
        for (const PageId page : unused) pages_.at(page).unused_since = ++now_;
    }
    void evict() {
        PageId oldest = kNullPage;
        for (const auto& [page, state] : pages_) {
            if (!state.unused_since || has_child(page)) continue;
            if (oldest == kNullPage || state.unused_since < pages_.at(oldest).unused_since)
                oldest = page;
        }
        pages_.erase(oldest);
        free_.insert(oldest);
        ++evictions_;
    }

    std::set<PageId> free_;
    std::map<PageId, Page> pages_;  // owned and cached
    std::int64_t now_ = 0;
    std::int64_t evictions_ = 0;
};

}  // namespace espalier::cache
