// SPDX-License-Identifier: Apache-2.0
// Who proposed a draft: known for every node of a verified tree, and for every token that was
// accepted as one. Plain data; filled where proposals merge (speculate/merge.hpp), carried through
// the walk to usage, trace and reports.
#pragma once

#include <cstdint>

namespace espalier {

inline constexpr std::int32_t kMaxDrafters = 4;  // of an engine; a drafter's id is below this

struct DraftOrigin {
    std::uint8_t drafters = 0;  // bit d: drafter d proposed it; 0: none did
    std::uint8_t drafter = 0;   // the one it is counted to: the surest of them, as measured
    std::uint8_t depth = 0;     // below the root, from 1
    std::uint8_t rank = 0;      // among that drafter's own choices at the place; 0: the first
    bool drafted() const { return drafters != 0; }
    bool operator==(const DraftOrigin&) const = default;
};

}  // namespace espalier
