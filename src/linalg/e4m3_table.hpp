// SPDX-License-Identifier: Apache-2.0
// The number of each e4m3 code: widening by the definition takes three branches per weight.
#pragma once

#include <array>

#include "base/numeric.hpp"

namespace espalier::linalg {

inline constexpr std::array<float, 256> kE4m3Values = [] {
    std::array<float, 256> values{};
    for (unsigned code = 0; code < values.size(); ++code)
        values[code] = to_float(E4m3{static_cast<std::uint8_t>(code)});
    return values;
}();

}  // namespace espalier::linalg
