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

enum class WeightCode : std::uint8_t { f32, f16, bf16, e4m3 };

// What follows from the code alone.
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
};

constexpr const CodeFacts& facts_of(WeightCode code) {
    return kCodes[static_cast<std::size_t>(code)];
}
constexpr std::string_view name_of(WeightCode code) { return facts_of(code).name; }

enum class ScaleType : std::uint8_t { none, f32 };

struct WeightFormat {
    WeightCode code = WeightCode::f32;
    std::int32_t group_n = 0;  // group_n outputs × group_k inputs share a scale
    std::int32_t group_k = 0;
    ScaleType scale = ScaleType::none;
    bool tensor_scale = false;  // a second scale for the whole matrix
    bool zero_points = false;   // one per group

    constexpr bool operator==(const WeightFormat&) const = default;
    constexpr bool scaled() const { return scale != ScaleType::none; }
    constexpr DType input() const { return facts_of(code).input; }
    // Of that many weights in a row.
    constexpr std::int64_t bytes(std::int64_t weights) const {
        return (weights * facts_of(code).bits + 7) / 8;
    }
};

// DeepSeek's FP8: e4m3 in blocks of 128 × 128.
inline constexpr WeightFormat kFp8Blocks{
    .code = WeightCode::e4m3, .group_n = 128, .group_k = 128, .scale = ScaleType::f32};

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
    }
    return 0.0f;
}

}  // namespace espalier
