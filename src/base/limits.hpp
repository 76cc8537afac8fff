// SPDX-License-Identifier: Apache-2.0
// Sizes that a draft tree has everywhere, because its mask is one 64-bit word per node, and the
// type of a token id. Plain data; device code includes this.
#pragma once

#include <cstdint>

namespace espalier {

using TokenId = std::int32_t;

inline constexpr std::int32_t kMaxNodes = 64;              // of a tree: the root and its drafts
inline constexpr std::int32_t kMaxDrafts = kMaxNodes - 1;  // also the longest path below a root

}  // namespace espalier
