// SPDX-License-Identifier: Apache-2.0
// News of the pages that can be found in a prefix index, in order, on the engine's thread. A
// listener that hears all of it can rebuild the index (docs/server.md, KV events).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cache/page.hpp"

namespace espalier::cache {

struct StoredPage {
    std::uint64_t hash = 0;
    std::optional<std::uint64_t> parent_hash;  // none: the first page of its sequence
    std::uint64_t salt = 0;
    std::span<const std::int32_t, kPageTokens> tokens;
};

class PageEvents {
  public:
    virtual ~PageEvents() = default;
    // A page can be found from here on. Its parent can.
    virtual void stored(const StoredPage& page) = 0;
    // It cannot any more; nor can any page behind it, which were told before.
    virtual void removed(std::uint64_t hash, std::uint64_t salt) = 0;
};

}  // namespace espalier::cache
