// SPDX-License-Identifier: Apache-2.0
// Warp-wide tensor-core products (mma.sync), the matrices of 8 × 8 16-bit elements that feed them,
// and conversions. Stores of matrices are instructions of compute capability 9.0 and above.
#pragma once

#include <cstdint>

namespace espalier {
inline namespace ptx {

// --- 8×8 matrices of 16-bit elements ------------------------------------------------------------
// Four matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ uint4 load_matrices(std::uint32_t from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}
__device__ __forceinline__ uint4 load_transposed(std::uint32_t from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t a,
                                               std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
// The function above with each matrix transposed.
__device__ __forceinline__ void store_transposed(std::uint32_t address, std::uint32_t a,
                                                 std::uint32_t b, std::uint32_t c,
                                                 std::uint32_t d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

// --- products -----------------------------------------------------------------------------------
// sum [16, 8] += left [16, 16] · right [16, 8]. Lane l holds rows l / 4 (sum[0], sum[1]) and
// l / 4 + 8 (sum[2], sum[3]) at columns 2·(l % 4) and the next.
__device__ __forceinline__ void multiply_bf16(float (&sum)[4], uint4 left, std::uint32_t right0,
                                              std::uint32_t right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right0), "r"(right1));
}
__device__ __forceinline__ void multiply_fp16(float (&sum)[4], uint4 left, std::uint32_t right0,
                                              std::uint32_t right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right0), "r"(right1));
}
// sum = left · right.
__device__ __forceinline__ void multiply_first_bf16(float (&sum)[4], uint4 left,
                                                    std::uint32_t right0, std::uint32_t right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right0), "r"(right1), "f"(0.0f));
}

// --- numbers -------------------------------------------------------------------------------------
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ float log2_fast(float x) {
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
// Two e4m3, the upper byte of each half, to two fp16 where no instruction does it: a code's bits,
// moved to where fp16 has sign, exponent and mantissa, stand for 2^-8 of its number.
__device__ __forceinline__ std::uint32_t widen_e4m3_bits(std::uint32_t codes) {
    const std::uint32_t bits = (codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 1);
    std::uint32_t result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(bits), "r"(0x5c005c00u));
    const std::uint32_t nan = ((bits & 0x3f803f80u) + 0x00800080u) >> 14 & 0x00010001u;
    return result | nan * 0x7fffu;
}
// Two e4m3 in the low half of `pair` to two fp16: exact.
__device__ __forceinline__ std::uint32_t widen_e4m3(std::uint32_t pair) {
#if __CUDA_ARCH__ >= 890
    std::uint32_t result;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<std::uint16_t>(pair)));
    return result;
#else
    return widen_e4m3_bits(__byte_perm(pair, 0, 0x1404));
#endif
}
// Four e4m3 to twice two fp16, the low ones first. (Written as one, so that the upper half needs no
// shift.)
__device__ __forceinline__ void widen_four(std::uint32_t codes, std::uint32_t& low,
                                           std::uint32_t& high) {
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h; }\n"
        : "=r"(low), "=r"(high)
        : "r"(codes));
#else
    low = widen_e4m3_bits(__byte_perm(codes, 0, 0x1404));
    high = widen_e4m3_bits(__byte_perm(codes, 0, 0x3424));
#endif
}

}  // namespace ptx
}  // namespace espalier
