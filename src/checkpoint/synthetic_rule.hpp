// SPDX-License-Identifier: Apache-2.0
// The values of synthetic.hpp as a function of (rule, index), for the host and for kernels. Every
// expression rounds once in double (2u − 1, 0.25·(2u − 1) + 1 and 0.5 + u are exact with a 24-bit
// u), so a fused multiply-add cannot change a bit.
#pragma once

#include <cstdint>

#include "base/numeric.hpp"
#include "checkpoint/tensor_list.hpp"

namespace espalier::checkpoint {

// value = scale · (factor·u + shift) + offset; factor·u + shift is exact for all of the roles.
struct Affine {
    double scale, factor, shift, offset;
};

constexpr std::uint64_t synthetic_bits(std::uint64_t start, std::uint64_t index) {
    std::uint64_t x = start + index * 0xD1B54A32D192ED03ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

constexpr float synthetic_number(const Affine& affine, std::uint64_t start, std::uint64_t index) {
    const auto u24 = static_cast<std::int64_t>(synthetic_bits(start, index) >> 40);
    const double u = static_cast<double>(u24) * 0x1p-24;
    return static_cast<float>(affine.scale * (affine.factor * u + affine.shift) + affine.offset);
}

// Codes of integers and 4 bits: the topmost bits of x, as many as the element has.
template <typename Element>
constexpr Element synthetic_code(std::uint64_t start, std::uint64_t index) {
    return static_cast<Element>(synthetic_bits(start, index) >> (64 - 8 * sizeof(Element)));
}

// True if a tensor's values come from the functions above. The few that do not (shapes, a draft's
// vocabulary) have rules of their own.
bool is_random(const TensorSpec& spec);
std::uint64_t synthetic_start(const TensorSpec& spec, std::uint64_t seed);
Affine affine_of(const TensorSpec& spec);

}  // namespace espalier::checkpoint
