// SPDX-License-Identifier: Apache-2.0
// Weights from half a chunk in shared memory (fragments.hpp) to left operands of tensor cores: bf16
// as it is, codes widened exactly.
#pragma once

#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "linalg/cuda/fragments.hpp"

namespace espalier::linalg::cuda {

// Below compute capability 9.0 both are fused with a number that changes no bit.
__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
#else
    constexpr std::uint32_t kMinusZeros = 0x80008000u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(kMinusZeros));
#endif
    return result;
}
__device__ __forceinline__ std::uint32_t subtract_bf16x2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
#if __CUDA_ARCH__ >= 900
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
#else
    constexpr std::uint32_t kMinusOnes = 0xbf80bf80u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(b), "r"(kMinusOnes), "r"(a));
#endif
    return result;
}

// (bits & places) | set in one instruction: of C++'s two, each has an immediate operand, and the
// compiler keeps both.
__device__ __forceinline__ std::uint32_t keep_and_set(std::uint32_t bits, std::uint32_t places,
                                                      std::uint32_t set) {
    std::uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "r"(places), "r"(set));
    return result;
}

// Two joined pairs of e4m3 codes each (join_codes) to a left operand. The bits of a code, moved to
// where bf16 has sign, exponent and mantissa, stand for 2^-120 of its number; the multiplication is
// exact, subnormal codes included.
__device__ __forceinline__ uint4 widen_e4m3(std::uint32_t first, std::uint32_t second) {
    const auto scaled = [](std::uint32_t pair) { return multiply_bf16x2(pair, 0x7b807b80u); };
    const auto upper = [](std::uint32_t w) { return w & 0x87f087f0u; };
    const auto lower = [](std::uint32_t w) {
        return ((w << 4) & 0x80f080f0u) | ((w >> 4) & 0x07000700u);
    };
    return make_uint4(scaled(upper(first)), scaled(lower(first)), scaled(upper(second)),
                      scaled(lower(second)));
}

// 0x43vv is 128 + the lowest seven bits of vv as bf16, and 0x4380 is 256: two's complement is the
// difference of the two, seven bits less 128 times the eighth.
__device__ __forceinline__ uint4 widen_int8(std::uint32_t first, std::uint32_t second) {
    const auto wide = [](std::uint32_t w) {
        return subtract_bf16x2(keep_and_set(w, 0x007f007fu, 0x43004300u),
                               keep_and_set(w, 0x00800080u, 0x43004300u));
    };
    return make_uint4(wide(first), wide(first >> 8), wide(second), wide(second >> 8));
}

// 128 + (code + 8), less 136.
__device__ __forceinline__ uint4 widen_int4(std::uint32_t w) {
    const auto wide = [](std::uint32_t bits) {
        return subtract_bf16x2(keep_and_set(bits, 0x000f000fu, 0x43004300u), 0x43084308u);
    };
    return make_uint4(wide(w), wide(w >> 4), wide(w >> 8), wide(w >> 12));
}

// Multiplier of e2m1 codes: an e4m3 scale (without sign) times 2^118, in both halves. A
// code's bits, moved to where bf16 has them, stand for 2^-126 of its number, so that the product is
// 2^-8 of code times scale: six significant bits, exact.
__device__ __forceinline__ std::uint32_t e2m1_multiplier(std::uint32_t scale) {
    return multiply_bf16x2(multiply_bf16x2(scale * 0x00100010u, 0x7b807b80u), 0x7a807a80u);
}
// multiplier: of outputs g and g + 8.
__device__ __forceinline__ uint4 widen_e2m1(std::uint32_t w, const std::uint32_t (&multiplier)[2]) {
    constexpr std::uint32_t kPlaces = 0x81c081c0u;
    const std::uint32_t last =
        ((w << 1) & 0x80008000u) | ((w >> 5) & 0x01000100u) | ((w >> 4) & 0x00c000c0u);
    return make_uint4(multiply_bf16x2(w & kPlaces, multiplier[0]),
                      multiply_bf16x2((w << 3) & kPlaces, multiplier[1]),
                      multiply_bf16x2((w << 6) & kPlaces, multiplier[0]),
                      multiply_bf16x2(last, multiplier[1]));
}

// A lane's part of pair 0 or 1 of the steps of half a chunk, as it lies in shared memory: two
// steps' left operands are widened from it.
template <WeightCode kCode>
struct PackedPair {
    static_assert(kCode == WeightCode::e4m3 || kCode == WeightCode::int8);
    uint4 codes;

    __device__ __forceinline__ void load(std::uint32_t half, int pair, int lane) {
        codes = load_shared(half + static_cast<std::uint32_t>((pair * 32 + lane) * 16));
    }
    __device__ __forceinline__ void widen(uint4 (&left)[2]) const {
        if constexpr (kCode == WeightCode::e4m3) {
            left[0] = widen_e4m3(codes.x, codes.y);
            left[1] = widen_e4m3(codes.z, codes.w);
        } else {
            left[0] = widen_int8(codes.x, codes.y);
            left[1] = widen_int8(codes.z, codes.w);
        }
    }
};
template <>
struct PackedPair<WeightCode::bf16> {
    uint4 steps[2];

    __device__ __forceinline__ void load(std::uint32_t half, int pair, int lane) {
        const std::uint32_t row = half + static_cast<std::uint32_t>(
                                             lane / 8 % 2 * 1024 + lane / 16 * 128 + lane % 8 * 16);
        steps[0] = load_matrices(row + static_cast<std::uint32_t>(pair * 512));
        steps[1] = load_matrices(row + static_cast<std::uint32_t>(pair * 512 + 256));
    }
    __device__ __forceinline__ void widen(uint4 (&left)[2]) const {
        left[0] = steps[0];
        left[1] = steps[1];
    }
};
template <>
struct PackedPair<WeightCode::int4> {
    uint2 codes;

    __device__ __forceinline__ void load(std::uint32_t half, int pair, int lane) {
        codes = load_shared_8(half + static_cast<std::uint32_t>((pair * 32 + lane) * 8));
    }
    __device__ __forceinline__ void widen(uint4 (&left)[2]) const {
        left[0] = widen_int4(codes.x);
        left[1] = widen_int4(codes.y);
    }
};
template <>
struct PackedPair<WeightCode::e2m1> {
    uint2 codes;
    std::uint32_t multiplier[2];

    __device__ __forceinline__ void load(std::uint32_t half, int pair, int lane) {
        codes = load_shared_8(half + static_cast<std::uint32_t>((pair * 32 + lane) * 8));
        const std::uint32_t scales =
            load_shared_2(half + static_cast<std::uint32_t>(code_bytes(WeightCode::e2m1) +
                                                            pair * 32 + lane / 2 * 2));
        multiplier[0] = e2m1_multiplier(scales & 0xffu);
        multiplier[1] = e2m1_multiplier(scales >> 8);
    }
    __device__ __forceinline__ void widen(uint4 (&left)[2]) const {
        left[0] = widen_e2m1(codes.x, multiplier);
        left[1] = widen_e2m1(codes.y, multiplier);
    }
};

// Left operands of the two steps of pair 0 or 1 of half a chunk that begins at `half`.
template <WeightCode kCode>
__device__ __forceinline__ void load_left(std::uint32_t half, int pair, int lane,
                                          uint4 (&left)[2]) {
    PackedPair<kCode> packed;
    packed.load(half, pair, lane);
    packed.widen(left);
}

// Integer codes: the scales of outputs g and g + 8 for pair 0 or 1 of half a chunk.
template <WeightCode kCode>
__device__ __forceinline__ float2 group_scales(std::uint32_t half, int pair, int lane,
                                               bool two_groups, bool wide) {
    constexpr std::uint32_t kBytes = code_bytes(kCode);
    const int group = two_groups ? pair : 0;
    const std::uint32_t from = half + kBytes;
    if (wide) {
        const uint2 v = load_shared_8(from + static_cast<std::uint32_t>(group * 64 + lane / 4 * 8));
        return {__uint_as_float(v.x), __uint_as_float(v.y)};
    }
    const std::uint32_t v =
        load_shared_4(from + static_cast<std::uint32_t>(group * 32 + lane / 4 * 4));
    return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
}

}  // namespace espalier::linalg::cuda
