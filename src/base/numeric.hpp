// SPDX-License-Identifier: Apache-2.0
// The number formats of weights and caches, as plain bit containers with exact conversions.
// All conversions to a narrower format round to nearest even; e4m3 is the "fn" format (no
// infinities).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

namespace espalier {

enum class DType : std::uint8_t { f32, f16, bf16, e4m3 };

constexpr std::size_t bytes_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return 4;
        case DType::f16:
            return 2;
        case DType::bf16:
            return 2;
        case DType::e4m3:
            return 1;
    }
    return 0;
}

constexpr std::string_view name_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "f32";
        case DType::f16:
            return "f16";
        case DType::bf16:
            return "bf16";
        case DType::e4m3:
            return "e4m3";
    }
    return "?";
}

struct Bf16 {
    std::uint16_t bits = 0;
};
struct Fp16 {
    std::uint16_t bits = 0;
};
struct E4m3 {
    std::uint8_t bits = 0;
};

constexpr float to_float(Bf16 value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

constexpr Bf16 to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)  // NaN: keep it quiet, never round it up to infinity
        return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
    return Bf16{static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

constexpr float to_float(Fp16 value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = value.bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa · 2⁻²⁴ is exact in f32
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr Fp16 to_fp16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return Fp16{static_cast<std::uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return Fp16{static_cast<std::uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves mantissa · 2⁻²⁴ in the low bits
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return Fp16{static_cast<std::uint16_t>(
            sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
    }
    const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return Fp16{static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

constexpr float to_float(E4m3 value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x80u) << 24;
    const std::uint32_t exponent = (value.bits >> 3) & 0xfu;
    const std::uint32_t mantissa = value.bits & 7u;
    if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

// Saturates at ±448; NaN stays NaN.
constexpr E4m3 to_e4m3(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return E4m3{static_cast<std::uint8_t>(sign | 0x7fu)};
    if (magnitude >= 0x43e00000u) return E4m3{static_cast<std::uint8_t>(sign | 0x7eu)};  // ≥ 448
    if (magnitude < 0x3c800000u) {  // below 2⁻⁶: subnormal steps of 2⁻⁹, rounded by adding 2¹⁴
        const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
        return E4m3{
            static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xffu))};
    }
    const std::uint32_t rounded = magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u);
    const std::uint32_t code = rounded >> 20;
    return E4m3{static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code))};
}

constexpr float to_float(float value) { return value; }

}  // namespace espalier
