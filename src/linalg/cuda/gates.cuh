// SPDX-License-Identifier: Apache-2.0
// silu(gate) · up of prompts, four values beside each other.
#pragma once

#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

// portable_silu's bits where `exact` stays true; elsewhere it has to be called. The division is the
// one that the compiler makes (a reciprocal, a Newton step, two remainders) without its test for
// numbers that need more care: that is a branch, which keeps values from being computed beside each
// other.
__device__ __forceinline__ float quick_silu(float x, bool& exact) {
    const float d = 1.0f + portable_exp(-x);
    exact = exact && fabsf(x) > 0x1p-60f && fabsf(x) < 0x1p100f && d < 0x1p100f;  // no NaN either
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    y = __fmaf_rn(y, __fmaf_rn(-d, y, 1.0f), y);
    const float near = __fmul_rn(x, y);
    const float nearer = __fmaf_rn(__fmaf_rn(-d, near, x), y, near);
    return __fmaf_rn(__fmaf_rn(-d, nearer, x), y, nearer);
}

// silu(gate) · up of four columns.
__device__ __forceinline__ void gate_exactly(const float (&gate)[4], const float (&up)[4],
                                             float (&value)[4]) {
    bool exact = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = quick_silu(gate[i], exact) * up[i];
    if (!exact)
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = gated(gate[i], up[i]);
}

// The same where it is rounded to bf16 afterwards, with a third of the instructions: whether it
// decides which bf16 number that is. Of moderate gates the approximations (ex2, rcp) give it within
// 35 units of an f32's last place, which is enough unless it lies that near to the middle between
// two (1 in 683). In units of 2⁻²⁴ of the result: rounding x · log₂e, |x| < 16, to a number below
// 32 is off by 2⁻²⁰, which is 11 of the power; log₂e itself 4; ex2 and portable_exp 4 each;
// rounding behind them 12. A mantissa below 2 has twice as many units of its last place, 2⁻²³.
// Gates are above 2⁻⁶⁰, so that nothing on the way is subnormal; results may be, and have fewer
// bits then. tests/linalg/cuda/gates.cu goes through every gate.
__device__ __forceinline__ bool gate_quickly(const float (&gate)[4], const float (&up)[4],
                                             float (&value)[4]) {
    constexpr std::uint32_t kLeast = 67u << 23, kMost = 131u << 23;  // 2⁻⁶⁰, 16
    constexpr std::uint32_t kUnsure = 48;
    bool sure = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float power, part;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate[i] * -0x1.715476p0f));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1.0f + power));
        value[i] = (gate[i] * part) * up[i];
        const std::uint32_t size = __float_as_uint(gate[i]) & 0x7fffffffu;
        const std::uint32_t rest = __float_as_uint(value[i]) & 0xffffu;
        sure = sure && size - kLeast < kMost - kLeast && rest - (0x8000u - kUnsure) > 2 * kUnsure;
    }
    return sure;
}

}  // namespace espalier::linalg::cuda
