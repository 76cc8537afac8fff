// SPDX-License-Identifier: Apache-2.0
// Inputs of products in the number mode int8: a row of bf16 numbers in blocks of 32, each rounded
// to codes of 8 bits that share a scale. The one definition; kernels round the same numbers in
// registers. With m the largest magnitude of a block:
//   m is NaN or infinite   scale NaN, codes 0: the row's outputs are NaN
//   m < 2⁻¹⁰⁰              scale 0, codes 0
//   otherwise              scale = m / 127, code = round to nearest even (x · (127 / m)), in f32
// A product is then, for each block (or half of one, where weights share scales by 16), ascending:
//   total = fma(sum of x, zero point, total) where there are zero points, sum of x = scale · Σ
//   codes total = fma(Σ codes · weight codes · scale, weights' scale, total), Σ exact in 32 bits
#pragma once

#include <cstdint>
#include <limits>

#include "base/matrix.hpp"
#include "base/numeric.hpp"
#include "linalg/store.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

inline constexpr int kRoundedInputs = 32;  // of a block

// A block as it lies in a tile. Sums of the whole block, of its first half and of its second.
struct RoundedBlock {
    std::int8_t codes[kRoundedInputs];
    float scale;
    std::int32_t offsets[3];  // Σ codes · −(half the range of weight codes): kernels whose weights
                              // are made unsigned begin there
    float sums[3];  // scale · Σ codes
    std::int32_t unused;
};
static_assert(sizeof(RoundedBlock) == 64);

struct BlockScale {
    float scale = 0.0f;
    float inverse = 0.0f;  // 0: codes are 0
};
// magnitude: the largest of a block, as the bits of a bf16 without its sign.
inline BlockScale block_scale(std::uint32_t magnitude) {
    constexpr std::uint32_t kInfinity = 0x7f80, kLeast = (127u - 100u) << 7;
    if (magnitude >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
    if (magnitude < kLeast) return {};
    const float largest = to_float(Bf16{static_cast<std::uint16_t>(magnitude)});
    return {largest / 127.0f, 127.0f / largest};
}

// What is behind the codes. sums: of the codes of both halves; half_range: of weight codes.
inline void finish_block(RoundedBlock& block, float scale, std::int32_t first, std::int32_t second,
                         std::int32_t half_range) {
    const std::int32_t sums[3] = {first + second, first, second};
    block.scale = scale;
    for (int part = 0; part < 3; ++part) {
        block.offsets[part] = -half_range * sums[part];
        block.sums[part] = scale * static_cast<float>(sums[part]);
    }
    block.unused = 0;
}

// The first `count` numbers of a block; those behind are 0. Codes lie in the order of x.
RoundedBlock round_block(const Bf16* x, std::int64_t count, std::int32_t half_range);

// Products of rounded inputs in plain loops, from any layout of INT8 or INT4 weights with scales.
// fused: as the variants with fused multiply-adds; otherwise as the portable one.
void reference_rounded_product(const Matrix& x, const WeightView& w, const Matrix& y, bool fused);

}  // namespace espalier::linalg
