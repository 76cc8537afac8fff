// SPDX-License-Identifier: Apache-2.0
#include "cache/prefix_index.hpp"

#include <algorithm>
#include <bit>

#include "base/check.hpp"

namespace espalier::cache {
namespace {

// A bijection of the state for a given word and of the word for a given state: one differing token
// always gives a differing chain value right after it.
constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
    state = (state ^ word) * 0x9e3779b97f4a7c15ull;
    return state ^ (state >> 32);
}

}  // namespace

std::uint64_t hash_page(std::uint64_t parent_hash, const PageKey& key) {
    std::uint64_t state = mix(parent_hash, key.salt);
    state = mix(state, static_cast<std::uint64_t>(key.form));
    for (std::size_t i = 0; i < key.tokens.size(); i += 2) {
        const std::uint64_t low = static_cast<std::uint32_t>(key.tokens[i]);
        const std::uint64_t high = static_cast<std::uint32_t>(key.tokens[i + 1]);
        state = mix(state, low | (high << 32));
    }
    return state;
}

PrefixIndex::PrefixIndex(std::int64_t page_count, std::uint64_t seed, PrefixHash hash)
    : seed_(seed), hash_(hash) {
    CHECK(page_count >= 2 && page_count < (std::int64_t{1} << 31), "{} pages", page_count);
    const auto count = static_cast<std::size_t>(page_count);
    records_.resize(count);
    buckets_.assign(std::bit_ceil(count), kNullPage);
}

std::uint64_t PrefixIndex::hash_of(const PageKey& key) const {
    CHECK(key.parent == kNullPage || contains(key.parent), "parent page {} is not in the index",
          key.parent);
    return hash_(key.parent == kNullPage ? seed_ : record(key.parent).hash, key);
}

PageId PrefixIndex::find(const PageKey& key) const { return find(hash_of(key), key); }

PageId PrefixIndex::find(std::uint64_t hash, const PageKey& key) const {
    PageId page = buckets_[hash & (buckets_.size() - 1)];
    for (; page != kNullPage; page = record(page).next) {
        const Record& candidate = record(page);
        if (candidate.hash == hash && candidate.parent == key.parent &&
            candidate.salt == key.salt && candidate.form == key.form && holds(page, key.tokens))
            break;
    }
    return page;
}

PageId PrefixIndex::insert(PageId page, const PageKey& key) {
    CHECK(page > kNullPage && page < page_count(), "page {} of {}", page, page_count());
    CHECK(!contains(page), "page {} is in the index already", page);
    const std::uint64_t hash = hash_of(key);
    if (const PageId listed = find(hash, key); listed != kNullPage) return listed;
    Record& entry = record(page);
    entry = Record{hash, key.salt, key.parent, bucket(hash), 0, key.form, true, {}};
    std::ranges::copy(key.tokens, entry.tokens.begin());
    bucket(hash) = page;
    if (key.parent != kNullPage) ++record(key.parent).children;
    ++size_;
    if (events_ != nullptr) {
        StoredPage stored{.hash = hash, .parent_hash = {}, .salt = key.salt, .tokens = key.tokens};
        if (key.parent != kNullPage) stored.parent_hash = record(key.parent).hash;
        events_->stored(stored);
    }
    return page;
}

void PrefixIndex::erase(PageId page) {
    CHECK(contains(page), "page {} is not in the index", page);
    Record& entry = record(page);
    CHECK(entry.children == 0, "page {} has {} children in the index", page, entry.children);
    PageId* link = &bucket(entry.hash);
    while (*link != page) link = &record(*link).next;
    *link = entry.next;
    if (entry.parent != kNullPage) --record(entry.parent).children;
    entry.listed = false;
    --size_;
    if (events_ != nullptr) events_->removed(entry.hash, entry.salt);
}

bool PrefixIndex::holds(PageId page, PageTokens tokens) const {
    return contains(page) && std::ranges::equal(record(page).tokens, tokens);
}

}  // namespace espalier::cache
