// SPDX-License-Identifier: Apache-2.0
// Elements by signed index: sizes and positions are std::int64_t throughout, containers want
// size_t.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

// container[index]; unchecked, as operator[] is.
template <typename Container>
constexpr decltype(auto) at(Container&& container, std::int64_t index) {
    return container[static_cast<std::size_t>(index)];
}

}  // namespace espalier
