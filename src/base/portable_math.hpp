// SPDX-License-Identifier: Apache-2.0
// exp and log out of plain IEEE additions and multiplications, so that a result has the same bits
// on every machine, in every kernel variant and at every place of a vector. libm promises none of
// that: it picks code by processor. Compile users with -ffp-contract=off, CUDA ones with
// -fmad=false (ops and linalg are): a fused step would be another number.
#pragma once

#include <cstdint>

namespace espalier {

// constexpr, so that device code may call it too (--expt-relaxed-constexpr).
#define ESPALIER_FORCE_INLINE [[gnu::always_inline]] constexpr

// eˣ in f32 within 2 ulp; 0 below -104, inf from 88.73 up, NaN stays NaN.
ESPALIER_FORCE_INLINE float portable_exp(float x) {
    constexpr float kRound = 0x1.8p23f;          // adding it leaves round(x) in the low bits
    constexpr float kLn2High = 0x1.63p-1f;       // 9 bits: n · high is exact
    constexpr float kLn2Low = -0x1.bd0106p-13f;  // ln 2 = high + low
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 0x1.715476p0f + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * kLn2High) - n * kLn2Low;  // |r| ≤ 0.3466
    // Taylor to r⁷: the first term left out is r⁸/8! ≤ 5.2e-9, a tenth of an ulp.
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // 2ⁿ in two halves, so that results below 2⁻¹²⁶ and above 2¹²⁷ round as they should.
    const auto count = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, shifted) -
                                                 __builtin_bit_cast(std::uint32_t, kRound));
    const std::int32_t half = count >> 1;
    const auto first = (static_cast<std::uint32_t>(half) + 127u) << 23;
    const auto second =
        (static_cast<std::uint32_t>(count) - static_cast<std::uint32_t>(half) + 127u) << 23;
    return (p * __builtin_bit_cast(float, first)) * __builtin_bit_cast(float, second);
}

// 1 / (1 + e⁻ˣ).
ESPALIER_FORCE_INLINE float portable_sigmoid(float x) { return 1.0f / (1.0f + portable_exp(-x)); }

// x · sigmoid(x), with one rounding less.
ESPALIER_FORCE_INLINE float portable_silu(float x) { return x / (1.0f + portable_exp(-x)); }

// eˣ in double, relative error below 2⁻⁴⁶; x is clamped to ±700.
ESPALIER_FORCE_INLINE double portable_exp(double x) {
    constexpr double kRound = 0x1.8p52;
    constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits: n · high is exact
    constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
    x = x < -700.0 ? -700.0 : x;
    x = x > 700.0 ? 700.0 : x;
    const double shifted = x * 0x1.71547652b82fep0 + kRound;
    const double n = shifted - kRound;
    const double r = (x - n * kLn2High) - n * kLn2Low;
    // Taylor to r¹¹: the first term left out is r¹²/12! ≤ 6.3e-15 = 2⁻⁴⁷.
    double p = 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const std::uint64_t power = (__builtin_bit_cast(std::uint64_t, shifted) + 1023u) << 52;
    return p * __builtin_bit_cast(double, power);
}

// ln x for normal x > 0, within 2 ulp (relative, also near x = 1).
constexpr double portable_log(double x) {
    constexpr double kLn2High = 0x1.62e42feep-1;
    constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
    const auto bits = __builtin_bit_cast(std::uint64_t, x);
    // x = m · 2ᵉ with m in [√½, √2): 0x6a09e667f3bcd are the mantissa bits of √2.
    const std::uint64_t above = (bits & 0xfffffffffffffu) >= 0x6a09e667f3bcdu ? 1u : 0u;
    const auto exponent = static_cast<std::int64_t>((bits >> 52) + above) - 1023;
    const std::uint64_t mantissa = (bits & 0xfffffffffffffu) | ((1023u - above) << 52);
    const double f = __builtin_bit_cast(double, mantissa) - 1.0;
    // ln(1+f) = 2·atanh(s), s = f/(2+f): |s| ≤ 0.1716, and s²⁰/21 < 2⁻⁵⁵ ends the series.
    const double s = f / (2.0 + f);
    const double z = s * s;
    double series = 1.0 / 21.0;
    for (int odd = 19; odd >= 3; odd -= 2) series = series * z + 1.0 / odd;
    // 2s = f - s·f keeps the leading term exact: ln(1+f) = f - s·(f - 2z·series).
    const auto e = static_cast<double>(exponent);
    return e * kLn2High + (f - (s * (f - 2.0 * z * series) - e * kLn2Low));
}

}  // namespace espalier
