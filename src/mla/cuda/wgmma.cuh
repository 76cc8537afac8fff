// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products D[64 × N] += A[64 × 16] · B[16 × N] with f32 sums. B lies in shared
// memory as N rows of 16 consecutive elements; A in shared memory (either axis contiguous) or in
// registers. All shared operands use the 128-byte swizzle.
#pragma once

#include <cstdint>

#include "mla/cuda/ptx.cuh"

namespace espalier::mla::cuda {

// A matrix in shared memory whose rows are 128 bytes, eight rows to a swizzle atom of 1,024 bytes:
// the stride between atoms is all a descriptor says besides the address.
// Where the product's other axis is contiguous and longer than 64, `leading` is the stride between
// its blocks of 64.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, int leading = 16) {
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
    constexpr std::uint64_t kAtomStride = std::uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kAtomStride | static_cast<std::uint64_t>(leading >> 4) << 16 |
           ((address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kInFlight>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}
// Keeps the compiler from moving reads or writes of the sums across this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

enum class Element { bf16, f16 };

#define ESPALIER_SUMS_8(d, i)                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ESPALIER_SUMS_16(d, i) ESPALIER_SUMS_8(d, i), ESPALIER_SUMS_8(d, i + 8)
#define ESPALIER_SUMS_32(d, i) ESPALIER_SUMS_16(d, i), ESPALIER_SUMS_16(d, i + 16)
#define ESPALIER_SUMS_64(d, i) ESPALIER_SUMS_32(d, i), ESPALIER_SUMS_32(d, i + 32)
#define ESPALIER_LIST_8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define ESPALIER_LIST_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define ESPALIER_LIST_32                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

#define ESPALIER_LIST_64                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// kAlongM: A's contiguous axis is M (a transposed view), else K. Operand numbers follow the sums.
#define ESPALIER_WGMMA_SHARED(N, TYPE, SUMS, LIST, A, B, ADD, ALONG)                               \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD                                           \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " LIST ", %" #A \
                 ", %" #B ", p, 1, 1, %" #ALONG ", 0; }\n"                                         \
                 : SUMS(d, 0)                                                                      \
                 : "l"(a), "l"(b), "r"(add), "n"(kAlongM ? 1 : 0))
#define ESPALIER_WGMMA_REGISTERS(N, TYPE, SUMS, LIST, A0, A1, A2, A3, B, ADD)             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD                                  \
                 ", 0;\n"                                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " LIST \
                 ", {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0; }\n"   \
                 : SUMS(d, 0)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

template <Element kElement, bool kAlongM, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                      int add) {
    static_assert(kSums == 8 || kSums == 16 || kSums == 32);
    if constexpr (kElement == Element::bf16) {
        if constexpr (kSums == 8)
            ESPALIER_WGMMA_SHARED(16, "bf16", ESPALIER_SUMS_8, ESPALIER_LIST_8, 8, 9, 10, 11);
        if constexpr (kSums == 16)
            ESPALIER_WGMMA_SHARED(32, "bf16", ESPALIER_SUMS_16, ESPALIER_LIST_16, 16, 17, 18, 19);
        if constexpr (kSums == 32)
            ESPALIER_WGMMA_SHARED(64, "bf16", ESPALIER_SUMS_32, ESPALIER_LIST_32, 32, 33, 34, 35);
    } else {
        if constexpr (kSums == 8)
            ESPALIER_WGMMA_SHARED(16, "f16", ESPALIER_SUMS_8, ESPALIER_LIST_8, 8, 9, 10, 11);
        if constexpr (kSums == 16)
            ESPALIER_WGMMA_SHARED(32, "f16", ESPALIER_SUMS_16, ESPALIER_LIST_16, 16, 17, 18, 19);
        if constexpr (kSums == 32)
            ESPALIER_WGMMA_SHARED(64, "f16", ESPALIER_SUMS_32, ESPALIER_LIST_32, 32, 33, 34, 35);
    }
}

// A from registers, fp16 (what FP8 caches are widened to).
template <int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], const std::uint32_t (&a)[4],
                                      std::uint64_t b, int add) {
    static_assert(kSums == 8 || kSums == 16 || kSums == 32);
    if constexpr (kSums == 8)
        ESPALIER_WGMMA_REGISTERS(16, "f16", ESPALIER_SUMS_8, ESPALIER_LIST_8, 8, 9, 10, 11, 12, 13);
    if constexpr (kSums == 16)
        ESPALIER_WGMMA_REGISTERS(32, "f16", ESPALIER_SUMS_16, ESPALIER_LIST_16, 16, 17, 18, 19, 20,
                                 21);
    if constexpr (kSums == 32)
        ESPALIER_WGMMA_REGISTERS(64, "f16", ESPALIER_SUMS_32, ESPALIER_LIST_32, 32, 33, 34, 35, 36,
                                 37);
}

// D[64 × 128] += A[64 × 16] · B[16 × 128] with B's rows contiguous: values, as keys are stored.
// (256 columns at once would need more than the 128 registers a thread of 512 starts with.)
template <Element kElement>
__device__ __forceinline__ void wgmma_values(float (&d)[64], std::uint64_t a, std::uint64_t b) {
#define ESPALIER_WGMMA_VALUES(TYPE)                                                       \
    asm volatile(                                                                         \
        "{ .reg .pred p; setp.eq.b32 p, 0, 0;\n"                                          \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " ESPALIER_LIST_64 \
        ", %64, %65, p, 1, 1, 0, 1; }\n"                                                  \
        : ESPALIER_SUMS_64(d, 0)                                                          \
        : "l"(a), "l"(b))
    if constexpr (kElement == Element::bf16)
        ESPALIER_WGMMA_VALUES("bf16");
    else
        ESPALIER_WGMMA_VALUES("f16");
#undef ESPALIER_WGMMA_VALUES
}

#undef ESPALIER_WGMMA_SHARED
#undef ESPALIER_WGMMA_REGISTERS
#undef ESPALIER_SUMS_8
#undef ESPALIER_SUMS_16
#undef ESPALIER_SUMS_32
#undef ESPALIER_SUMS_64
#undef ESPALIER_LIST_8
#undef ESPALIER_LIST_16
#undef ESPALIER_LIST_32
#undef ESPALIER_LIST_64

}  // namespace espalier::mla::cuda
