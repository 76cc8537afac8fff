// SPDX-License-Identifier: Apache-2.0
// What was used last, up to a number of bytes. Not thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>
#include <utility>

namespace espalier::grammar {

template <typename Key, typename Value, typename Hash = std::hash<Key>>
class ByteLru {
  public:
    explicit ByteLru(std::size_t limit) : limit_(limit) {}

    const Value* find(const Key& key) {
        const auto found = places_.find(key);
        if (found == places_.end()) return nullptr;
        entries_.splice(entries_.begin(), entries_, found->second);
        return &found->second->value;
    }

    // key: not there yet. What is larger than all the room is not kept.
    void add(Key key, Value value, std::size_t bytes) {
        if (bytes > limit_) return;
        while (bytes_ + bytes > limit_) {
            bytes_ -= entries_.back().bytes;
            places_.erase(entries_.back().key);
            entries_.pop_back();
        }
        entries_.push_front(Entry{std::move(key), std::move(value), bytes});
        places_[entries_.front().key] = entries_.begin();
        bytes_ += bytes;
    }

    std::size_t bytes() const { return bytes_; }
    std::size_t size() const { return entries_.size(); }

  private:
    struct Entry {
        Key key;
        Value value;
        std::size_t bytes = 0;
    };
    std::size_t limit_;
    std::size_t bytes_ = 0;
    std::list<Entry> entries_;  // the one used last first
    std::unordered_map<Key, typename std::list<Entry>::iterator, Hash> places_;
};

}  // namespace espalier::grammar
