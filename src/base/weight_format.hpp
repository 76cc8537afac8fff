// SPDX-License-Identifier: Apache-2.0
// How a weight is stored: the code of one number, and which weights share a scale. Elements of
// activations and caches are a DType instead. A new format begins here: its code's row in kCodes
// and its case in load_weight; the products' policies (linalg/kernels_*.cpp) and the names of its
// tensors (checkpoint/quantization.cpp) follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/element.hpp"
#include "base/numeric.hpp"

namespace espalier {

enum class WeightCode : std::uint8_t { f32, f16, bf16, e4m3, int8, int4, e2m1 };

// Facts that follow from the code alone.
struct CodeFacts {
    std::string_view name;
    int bits = 0;              // of one weight
    DType input = DType::f32;  // what a product multiplies it by
};

inline constexpr std::array kCodes = {
    CodeFacts{.name = "f32", .bits = 32, .input = DType::f32},
    CodeFacts{.name = "f16", .bits = 16, .input = DType::f32},
    CodeFacts{.name = "bf16", .bits = 16, .input = DType::bf16},
    CodeFacts{.name = "e4m3", .bits = 8, .input = DType::bf16},
    CodeFacts{.name = "int8", .bits = 8, .input = DType::bf16},  // two's complement
    CodeFacts{.name = "int4", .bits = 4, .input = DType::bf16},  // two's complement
    CodeFacts{.name = "e2m1", .bits = 4, .input = DType::bf16},  // sign, then kE2m1's index
};

constexpr const CodeFacts& facts_of(WeightCode code) {
    return kCodes[static_cast<std::size_t>(code)];
}
constexpr std::string_view name_of(WeightCode code) { return facts_of(code).name; }

enum class ScaleType : std::uint8_t { none, f32, bf16, f16, e4m3 };

// The type in which a scale is stored; not for `none`.
constexpr DType dtype_of(ScaleType type) {
    switch (type) {
        case ScaleType::bf16:
            return DType::bf16;
        case ScaleType::f16:
            return DType::f16;
        case ScaleType::e4m3:
            return DType::e4m3;
        default:
            return DType::f32;
    }
}

struct WeightFormat {
    WeightCode code = WeightCode::f32;
    std::int32_t group_n = 0;  // group_n outputs × group_k inputs share a scale
    std::int32_t group_k = 0;
    ScaleType scale = ScaleType::none;
    bool tensor_scale = false;  // a second scale for the whole matrix
    bool zero_points = false;   // one per group, of the scale's type: code · scale + zero point

    constexpr bool operator==(const WeightFormat&) const = default;
    constexpr bool scaled() const { return scale != ScaleType::none; }
    constexpr DType input() const { return facts_of(code).input; }
    // Bytes that this many consecutive weights take, without scales.
    constexpr std::int64_t bytes(std::int64_t weights) const {
        return (weights * facts_of(code).bits + 7) / 8;
    }
    // Mean bits per weight of a matrix, its scales counted.
    constexpr double bits_per_weight() const {
        const int bits = facts_of(code).bits;
        if (!scaled()) return bits;
        return bits + (zero_points ? 16.0 : 8.0) * static_cast<double>(bytes_of(dtype_of(scale))) /
                          (static_cast<double>(group_n) * static_cast<double>(group_k));
    }
};

// DeepSeek's FP8: e4m3 in blocks of 128 × 128.
inline constexpr WeightFormat kFp8Blocks{
    .code = WeightCode::e4m3, .group_n = 128, .group_k = 128, .scale = ScaleType::f32};

// A scale for each output and each `group` inputs: INT8 and INT4 as we make them (group 32) and as
// compressed-tensors has them.
constexpr WeightFormat grouped(WeightCode code, std::int32_t group, ScaleType scale) {
    return {.code = code, .group_n = 1, .group_k = group, .scale = scale};
}
// NVFP4: e2m1, an e4m3 scale for 16 inputs of an output, an f32 one for the matrix.
inline constexpr WeightFormat kNvfp4{.code = WeightCode::e2m1,
                                     .group_n = 1,
                                     .group_k = 16,
                                     .scale = ScaleType::e4m3,
                                     .tensor_scale = true};

inline constexpr std::array kE2m1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// Two 4-bit codes to a byte, the first in its low half.
inline unsigned load_nibble(const std::byte* data, std::int64_t index) {
    const auto byte = std::to_integer<unsigned>(data[index / 2]);
    return (index % 2 == 0 ? byte : byte >> 4) & 0xfu;
}

// The number that a code stands for, without its scale.
inline float load_weight(const std::byte* data, WeightCode code, std::int64_t index) {
    switch (code) {
        case WeightCode::f32:
            return load_element(data, DType::f32, index);
        case WeightCode::f16:
            return load_element(data, DType::f16, index);
        case WeightCode::bf16:
            return load_element(data, DType::bf16, index);
        case WeightCode::e4m3:
            return load_element(data, DType::e4m3, index);
        case WeightCode::int8:
            return static_cast<float>(static_cast<std::int8_t>(data[index]));
        case WeightCode::int4: {
            const auto code4 = static_cast<int>(load_nibble(data, index));
            return static_cast<float>(code4 < 8 ? code4 : code4 - 16);
        }
        case WeightCode::e2m1: {
            const unsigned code4 = load_nibble(data, index);
            return code4 < 8 ? kE2m1[code4] : -kE2m1[code4 - 8];
        }
    }
    return 0.0f;
}

}  // namespace espalier
