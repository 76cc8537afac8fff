// SPDX-License-Identifier: Apache-2.0
// e4m3 to bf16 by byte permutes, as the AVX-512 kernels of products and attention widen it: plain
// data, so that both read one table.
#pragma once

#include <cstdint>

#include "base/numeric.hpp"

namespace espalier {

// The low and the high byte of the bf16 of every e4m3 magnitude, for byte permutes.
struct WideningTable {
    alignas(64) std::uint8_t low[128];
    alignas(64) std::uint8_t high[128];
};

constexpr WideningTable make_widening_table() {
    WideningTable table{};
    for (unsigned code = 0; code < 128; ++code) {
        const Bf16 value = to_bf16(to_float(E4m3{static_cast<std::uint8_t>(code)}));
        table.low[code] = static_cast<std::uint8_t>(value.bits & 0xffu);
        table.high[code] = static_cast<std::uint8_t>(value.bits >> 8);
    }
    return table;
}

inline constexpr WideningTable kWidening = make_widening_table();

}  // namespace espalier
