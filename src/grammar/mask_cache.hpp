// SPDX-License-Identifier: Apache-2.0
// Masks that were filled before: of all grammars of one vocabulary, by grammar and place
// (xgrammar/state_key.inc), those used last. Nodes of a tree, requests of a batch and places of a
// text that are the same get the same mask without filling it again. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "grammar/byte_lru.hpp"

namespace espalier::grammar {

struct MaskCounts {
    std::int64_t found = 0;
    std::int64_t filled = 0;  // and kept
    std::size_t bytes = 0;
};

class MaskCache {
  public:
    using Mask = std::shared_ptr<const std::vector<std::uint32_t>>;
    using Key = std::vector<std::int32_t>;

    explicit MaskCache(std::size_t bytes) : masks_(bytes) {}

    Mask find(const Key& key);  // null: not there
    // Returns what is there from now on: of two threads that come with the same, the first one's.
    Mask add(Key key, std::span<const std::uint32_t> words);
    MaskCounts counts() const;

  private:
    struct KeyHash {
        std::size_t operator()(const Key& key) const;
    };
    mutable std::mutex mutex_;
    ByteLru<Key, Mask, KeyHash> masks_;
    MaskCounts counts_;
};

}  // namespace espalier::grammar
