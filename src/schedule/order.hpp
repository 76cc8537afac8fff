// SPDX-License-Identifier: Apache-2.0
// Requests in order of (priority, arrival): a sorted list of slots. Entries are few (rows of a
// batch) or change at their ends (a queue), so a vector that is kept sorted beats a tree, and it
// allocates nothing once it has its memory.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "base/index.hpp"

namespace espalier::schedule {

// Smaller goes first. Serials are unique, so no two keys are equal.
struct OrderKey {
    std::int32_t priority = 0;
    std::int64_t serial = 0;
    auto operator<=>(const OrderKey&) const = default;
};

struct OrderEntry {
    OrderKey key;
    RequestSlot slot;
};

class OrderedSlots {
  public:
    void reserve(std::size_t count) { entries_.reserve(count); }
    void insert(const OrderEntry& entry) { entries_.insert(at_or_after(entry.key), entry); }
    void erase(const OrderKey& key) {
        const auto place = at_or_after(key);
        CHECK(place != entries_.end() && place->key == key, "request {} is not in the list",
              key.serial);
        entries_.erase(place);
    }
    std::int64_t count_before(const OrderKey& key) const {
        return std::lower_bound(entries_.begin(), entries_.end(), key, before) - entries_.begin();
    }
    // The first entry behind the key, or null.
    const OrderEntry* first_after(const OrderKey& key) const {
        auto place = std::lower_bound(entries_.begin(), entries_.end(), key, before);
        if (place != entries_.end() && place->key == key) ++place;
        return place == entries_.end() ? nullptr : &*place;
    }
    const OrderEntry* last() const { return entries_.empty() ? nullptr : &entries_.back(); }
    std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
    const OrderEntry& operator[](std::size_t index) const { return entries_[index]; }
    auto begin() const { return entries_.begin(); }
    auto end() const { return entries_.end(); }

  private:
    static bool before(const OrderEntry& entry, const OrderKey& key) { return entry.key < key; }
    std::vector<OrderEntry>::iterator at_or_after(const OrderKey& key) {
        return std::lower_bound(entries_.begin(), entries_.end(), key, before);
    }
    std::vector<OrderEntry> entries_;
};

}  // namespace espalier::schedule
