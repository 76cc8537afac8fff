// SPDX-License-Identifier: Apache-2.0
#include "cache/page_table.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::cache {

PageTable::PageTable(PagePool& pool, const SequenceKey& key) : pool_(&pool), key_(key) {}

std::int64_t PageTable::match(std::span<const std::int32_t> tokens) {
    const std::size_t first = published_.size();
    const auto found = static_cast<std::size_t>(pool_->lookup(key_, tokens, published_));
    const std::size_t replaced = std::min(found, owned_.size());
    owned_.erase(owned_.begin(), owned_.begin() + static_cast<std::ptrdiff_t>(replaced));
    refresh_ids(first);
    return published_pages() * kPageTokens;
}

bool PageTable::grow(std::int64_t slots) {
    const std::int64_t missing = pages_for(slots) - pages();
    if (missing <= 0) return true;
    if (!pool_->reserve(missing, owned_)) return false;
    refresh_ids(ids_.size());
    return true;
}

void PageTable::truncate(std::int64_t slots) {
    CHECK(slots >= 0, "truncation to {} slots", slots);
    const auto keep = static_cast<std::size_t>(pages_for(slots));
    if (keep >= ids_.size()) return;
    owned_.resize(keep > published_.size() ? keep - published_.size() : 0);
    published_.resize(std::min(keep, published_.size()));
    ids_.resize(keep);
}

void PageTable::publish(std::span<const std::int32_t> tokens, std::int64_t written_len) {
    const std::size_t first = published_.size();
    if (pool_->publish(key_, tokens, written_len, published_, owned_) > 0) refresh_ids(first);
}

void PageTable::restart(const SequenceKey& key) {
    clear();
    key_ = key;
}

void PageTable::reserve_memory(std::int64_t slots) {
    const auto count = static_cast<std::size_t>(pages_for(slots));
    published_.reserve(count);
    owned_.reserve(count);
    ids_.reserve(count);
}

void PageTable::refresh_ids(std::size_t first) {
    ids_.resize(published_.size() + owned_.size());
    for (std::size_t i = first; i < ids_.size(); ++i)
        ids_[i] = i < published_.size() ? published_[i].id() : owned_[i - published_.size()].id();
}

}  // namespace espalier::cache
