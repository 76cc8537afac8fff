// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products D[64 × N] += A[64 × 16] · B[16 × N] with f32 sums. Operands lie in
// shared memory with the 128-byte swizzle, or A in registers.
#pragma once

#include <cstdint>

#include "mla/cuda/ptx.cuh"

namespace espalier::mla::cuda {

// A matrix in shared memory whose rows are 128 bytes, eight rows to a swizzle atom of 1,024 bytes:
// the stride between atoms is all a descriptor says besides the address.
// Where the product's other axis is contiguous and longer than 64, `leading` is the stride between
// its blocks of 64.
constexpr std::uint32_t descriptor_high() {
    constexpr std::uint32_t kSwizzle128 = std::uint32_t{1} << 30;
    constexpr std::uint32_t kAtomStride = 1024 >> 4;
    return kSwizzle128 | kAtomStride;
}
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, int leading = 16) {
    return std::uint64_t{descriptor_high()} << 32 | static_cast<std::uint64_t>(leading >> 4) << 16 |
           ((address & 0x3FFFF) >> 4);
}
// The left operand of 64 rows, or of up to 32 that are spread: rows 8w … 8w + 7 are the first eight
// of warp w. Atoms are then said to be half as far apart as they are, so that every other one is
// where rows lie; what falls between is read, too, and of no use.
__device__ __forceinline__ std::uint64_t row_descriptor(std::uint32_t address, bool spread) {
    constexpr std::uint64_t kHalf = std::uint64_t{512 >> 4} << 32;
    return descriptor(address) - (spread ? kHalf : 0);
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
#define ESPALIER_LIST_32                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

#define ESPALIER_LIST_40                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
    "%36, %37, %38, %39}"

#define ESPALIER_LIST_64                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// D[64 × 64] += A[64 × 16] · B[16 × 64], both with 16 consecutive elements to a row: queries and
// keys.
template <Element kElement>
__device__ __forceinline__ void wgmma(float (&d)[32], std::uint64_t a, std::uint64_t b, int add) {
#define ESPALIER_WGMMA_SCORES(TYPE)                                                      \
    asm volatile(                                                                        \
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"                                       \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " ESPALIER_LIST_32 \
        ", %32, %33, p, 1, 1, 0, 0; }\n"                                                 \
        : ESPALIER_SUMS_32(d, 0)                                                         \
        : "l"(a), "l"(b), "r"(add))
    if constexpr (kElement == Element::bf16)
        ESPALIER_WGMMA_SCORES("bf16");
    else
        ESPALIER_WGMMA_SCORES("f16");
#undef ESPALIER_WGMMA_SCORES
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

// D[64 × N] += A[64 × 16] · B[16 × N], fp16: A in registers (rows g, g + 8, g, g + 8 of a warp's
// sixteen; columns 2p, 2p, 2p + 8, 2p + 8 and the next ones), B with 16 consecutive elements to a
// column.
template <int kColumns>
__device__ __forceinline__ void wgmma_left(float (&d)[kColumns / 2], const std::uint32_t (&a)[4],
                                           std::uint64_t b, int add) {
    if constexpr (kColumns == 16)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
            "{%8, %9, %10, %11}, %12, p, 1, 1, 0; }\n"
            : ESPALIER_SUMS_8(d, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    else if constexpr (kColumns == 32)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, "
            "%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }\n"
            : ESPALIER_SUMS_16(d, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    else
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ESPALIER_LIST_32
            ", {%32, %33, %34, %35}, %36, p, 1, 1, 0; }\n"
            : ESPALIER_SUMS_32(d, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// bf16: D[64 × N] (+)= A[64 × 16] · B[16 × N], both with 16 consecutive elements to a row.
template <int kColumns>
__device__ __forceinline__ void wgmma_rows(float (&d)[kColumns / 2], std::uint64_t a,
                                           std::uint64_t b, int add) {
    static_assert(kColumns == 80 || kColumns == 128);
    if constexpr (kColumns == 80)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %42, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 " ESPALIER_LIST_40
            ", %40, %41, p, 1, 1, 0, 0; }\n"
            : ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32)
            : "l"(a), "l"(b), "r"(add));
    else
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ESPALIER_LIST_64
            ", %64, %65, p, 1, 1, 0, 0; }\n"
            : ESPALIER_SUMS_64(d, 0)
            : "l"(a), "l"(b), "r"(add));
}

// bf16: D[64 × 128] += A[64 × 16] · B[16 × 128], A in registers, B with its rows contiguous.
__device__ __forceinline__ void wgmma_left_values(float (&d)[64], const std::uint32_t (&a)[4],
                                                  std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ESPALIER_LIST_64
        ", {%64, %65, %66, %67}, %68, p, 1, 1, 1; }\n"
        : ESPALIER_SUMS_64(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef ESPALIER_SUMS_8
#undef ESPALIER_SUMS_16
#undef ESPALIER_SUMS_32
#undef ESPALIER_SUMS_64
#undef ESPALIER_LIST_32
#undef ESPALIER_LIST_40
#undef ESPALIER_LIST_64

}  // namespace espalier::mla::cuda
