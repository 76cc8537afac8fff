// SPDX-License-Identifier: Apache-2.0
// Finds a page by what it holds: a hash chain over (parent hash, salt, form, 64 token ids). Knows
// contents only; references and eviction are PageLedger's. All memory is taken at construction.
//
// A hit is exact whatever the hash does. The hash only picks a bucket; a candidate must have the
// same token ids, form, salt and the same parent *page*. A page never leaves the index before its
// children, so a parent's id stands for its whole prefix and equality holds by induction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/at.hpp"
#include "cache/page.hpp"
#include "cache/page_events.hpp"

namespace espalier::cache {

using PageTokens = std::span<const std::int32_t, kPageTokens>;

struct PageKey {
    PageId parent = kNullPage;  // the page before it, in the index; null: first of its sequence
    std::uint64_t salt = 0;
    Form form = Form::absorbed;
    PageTokens tokens;
};

// Replaceable, so that a test can make every page collide.
using PrefixHash = std::uint64_t (*)(std::uint64_t parent_hash, const PageKey& key);
std::uint64_t hash_page(std::uint64_t parent_hash, const PageKey& key);

class PrefixIndex {
  public:
    // page_count includes the null page. The seed begins every chain: random bits there keep
    // clients from choosing prompts that share a bucket. No result depends on hash or seed.
    explicit PrefixIndex(std::int64_t page_count, std::uint64_t seed = 0,
                         PrefixHash hash = &hash_page);

    // The page with exactly this content, or kNullPage.
    PageId find(const PageKey& key) const;
    // Lists the page unless its content is there already; returns the page that is listed.
    PageId insert(PageId page, const PageKey& key);
    // The page must be listed and have no listed children.
    void erase(PageId page);

    // Hears of every page that is listed or erased from now on; outlives the index. Null: no one.
    void listen(PageEvents* events) { events_ = events; }

    bool contains(PageId page) const { return record(page).listed; }
    bool holds(PageId page, PageTokens tokens) const;  // listed, with these tokens
    PageId parent(PageId page) const { return record(page).parent; }
    std::int64_t children(PageId page) const { return record(page).children; }
    std::int64_t size() const { return size_; }
    std::int64_t page_count() const { return static_cast<std::int64_t>(records_.size()); }

  private:
    struct Record {
        std::uint64_t hash = 0;
        std::uint64_t salt = 0;
        PageId parent = kNullPage;
        PageId next = kNullPage;  // in the same bucket
        std::int32_t children = 0;
        Form form = Form::absorbed;
        bool listed = false;
        std::array<std::int32_t, kPageTokens> tokens{};
    };

    const Record& record(PageId page) const { return at(records_, page); }
    Record& record(PageId page) { return at(records_, page); }
    std::uint64_t hash_of(const PageKey& key) const;
    PageId find(std::uint64_t hash, const PageKey& key) const;
    PageId& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

    std::vector<Record> records_;  // [page_count], by page id
    std::vector<PageId> buckets_;  // first page of each bucket; a power of two, ≥ page_count
    std::uint64_t seed_;
    PrefixHash hash_;
    std::int64_t size_ = 0;
    PageEvents* events_ = nullptr;
};

}  // namespace espalier::cache
