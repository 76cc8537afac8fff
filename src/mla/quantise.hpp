// SPDX-License-Identifier: Apache-2.0
// How one number of the cache is rounded, and what becomes of numbers a format cannot hold. One
// text for host and device (constexpr), so that append gives the same bytes on both. Nothing here
// may be contracted or approximated: only divisions, comparisons and the roundings of numeric.hpp.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/numeric.hpp"

namespace espalier::mla {

constexpr bool is_finite(float value) {
    return (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) != 0x7f800000u;
}

template <typename T>
struct Quantised {
    T stored;
    bool flushed;  // would have been NaN or infinity; 0 is stored instead
};

// T: Bf16, Fp16 or float.
template <typename T>
constexpr Quantised<T> quantise(float value) {
    T stored{};
    if constexpr (std::is_same_v<T, Bf16>) stored = to_bf16(value);
    if constexpr (std::is_same_v<T, Fp16>) stored = to_fp16(value);
    if constexpr (std::is_same_v<T, float>) stored = value;
    if (!is_finite(to_float(stored))) return {T{}, true};
    return {stored, false};
}

// Saturates at ±448 · scale.
constexpr Quantised<E4m3> quantise_e4m3(float value, float scale) {
    const bool finite = is_finite(value);
    return {to_e4m3(finite ? value / scale : 0.0f), !finite};
}

// A latent column's part in the search for its token's largest finite magnitude.
constexpr float finite_magnitude(float value) {
    if (!is_finite(value)) return 0.0f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
}

// The scale that takes the token's largest finite magnitude to the end of e4m3's range (448).
constexpr float token_scale(float largest) {
    if (largest == 0.0f) return 1.0f;
    const float scale = largest / 448.0f;
    constexpr float kSmallest = 0x1p-126f;  // below it division loses bits
    return scale < kSmallest ? kSmallest : scale;
}

}  // namespace espalier::mla
