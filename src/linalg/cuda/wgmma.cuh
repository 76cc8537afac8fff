// SPDX-License-Identifier: Apache-2.0
// Warpgroup products D[64 × n] += A[64 × 16] · B[16 × n], bf16 with f32 sums: A in registers (a
// warp's 16 rows as mma.m16n8k16 has them) or in shared memory, B there, 128-byte swizzle. Without
// `add` D = A · B. Bits are those of mma.m16n8k16 (tests/linalg/cuda/invariance_test.cpp holds
// them).
#pragma once

#include <cstdint>

namespace espalier::linalg::cuda {

// Rows of 128 bytes, eight to a swizzle atom of 1,024.
__device__ __forceinline__ std::uint64_t swizzled_operand(std::uint32_t address) {
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
    constexpr std::uint64_t kAtomStride = std::uint64_t{1024 >> 4} << 32;
    constexpr std::uint64_t kLeading = std::uint64_t{1} << 16;
    return kSwizzle128 | kAtomStride | kLeading | ((address & 0x3FFFF) >> 4);
}

// Matrices of 8 × 8 in 128 bytes each: two of a step lie beside each other, those of the next eight
// rows 1,024 bytes further, which is how fragments.hpp has bf16.
__device__ __forceinline__ std::uint64_t matrices_operand(std::uint32_t address) {
    constexpr std::uint64_t kNextInputs = std::uint64_t{128 >> 4} << 16;
    constexpr std::uint64_t kNextRows = std::uint64_t{1024 >> 4} << 32;
    return kNextRows | kNextInputs | ((address & 0x3FFFF) >> 4);
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
template <int kSums>
__device__ __forceinline__ void hold(float (&sums)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define ESPALIER_SUMS_8(d, i)                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ESPALIER_SUMS_32(d, i)                                                    \
    ESPALIER_SUMS_8(d, i), ESPALIER_SUMS_8(d, i + 8), ESPALIER_SUMS_8(d, i + 16), \
        ESPALIER_SUMS_8(d, i + 24)

// Of `kTokens` columns: sums d[0 … kTokens / 2).
#define ESPALIER_PLACES_8 "{%0, %1, %2, %3, %4, %5, %6, %7"
#define ESPALIER_PLACES_16 ESPALIER_PLACES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define ESPALIER_PLACES_24 ESPALIER_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define ESPALIER_PLACES_32 ESPALIER_PLACES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define ESPALIER_PLACES_40 ESPALIER_PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ESPALIER_PLACES_48 ESPALIER_PLACES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ESPALIER_PLACES_56 ESPALIER_PLACES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ESPALIER_PLACES_64 ESPALIER_PLACES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ESPALIER_PLACES_72 ESPALIER_PLACES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ESPALIER_PLACES_80 ESPALIER_PLACES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define ESPALIER_PLACES_88 ESPALIER_PLACES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ESPALIER_PLACES_96 ESPALIER_PLACES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ESPALIER_WGMMA(n, places, a_places, b_place, add_place, ...)                      \
    asm volatile(                                                                         \
        "{ .reg .pred p;\n"                                                               \
        "setp.ne.b32 p, %" add_place                                                      \
        ", 0;\n"                                                                          \
        "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 " places "}, {" a_places \
        "}, %" b_place ", p, 1, 1, 0; }\n"                                                \
        : __VA_ARGS__                                                                     \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(static_cast<int>(add)))

// A in registers.
template <int kTokens, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], const uint4& a, std::uint64_t b,
                                      bool add) {
    static_assert(kTokens / 2 <= kSums);
    if constexpr (kTokens == 16)
        ESPALIER_WGMMA("16", ESPALIER_PLACES_8, "%8, %9, %10, %11", "12", "13",
                       ESPALIER_SUMS_8(d, 0));
    else if constexpr (kTokens == 32)
        ESPALIER_WGMMA("32", ESPALIER_PLACES_16, "%16, %17, %18, %19", "20", "21",
                       ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8));
    else if constexpr (kTokens == 48)
        ESPALIER_WGMMA("48", ESPALIER_PLACES_24, "%24, %25, %26, %27", "28", "29",
                       ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8), ESPALIER_SUMS_8(d, 16));
    else if constexpr (kTokens == 64)
        ESPALIER_WGMMA("64", ESPALIER_PLACES_32, "%32, %33, %34, %35", "36", "37",
                       ESPALIER_SUMS_32(d, 0));
    else if constexpr (kTokens == 80)
        ESPALIER_WGMMA("80", ESPALIER_PLACES_40, "%40, %41, %42, %43", "44", "45",
                       ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32));
    else if constexpr (kTokens == 96)
        ESPALIER_WGMMA("96", ESPALIER_PLACES_48, "%48, %49, %50, %51", "52", "53",
                       ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32), ESPALIER_SUMS_8(d, 40));
    else if constexpr (kTokens == 112)
        ESPALIER_WGMMA("112", ESPALIER_PLACES_56, "%56, %57, %58, %59", "60", "61",
                       ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32), ESPALIER_SUMS_8(d, 40),
                       ESPALIER_SUMS_8(d, 48));
    else {
        static_assert(kTokens == 128);
        ESPALIER_WGMMA("128", ESPALIER_PLACES_64, "%64, %65, %66, %67", "68", "69",
                       ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32));
    }
}

#define ESPALIER_WGMMA_SHARED(n, places, a_place, b_place, add_place, ...)               \
    asm volatile(                                                                        \
        "{ .reg .pred p;\n"                                                              \
        "setp.ne.b32 p, %" add_place                                                     \
        ", 0;\n"                                                                         \
        "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 " places "}, %" a_place \
        ", %" b_place ", p, 1, 1, 0, 0; }\n"                                             \
        : __VA_ARGS__                                                                    \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)))

// Both operands in shared memory.
template <int kTokens, int kSums>
__device__ __forceinline__ void wgmma_shared(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                             bool add) {
    static_assert(kTokens / 2 <= kSums);
    if constexpr (kTokens == 16)
        ESPALIER_WGMMA_SHARED("16", ESPALIER_PLACES_8, "8", "9", "10", ESPALIER_SUMS_8(d, 0));
    else if constexpr (kTokens == 32)
        ESPALIER_WGMMA_SHARED("32", ESPALIER_PLACES_16, "16", "17", "18", ESPALIER_SUMS_8(d, 0),
                              ESPALIER_SUMS_8(d, 8));
    else if constexpr (kTokens == 48)
        ESPALIER_WGMMA_SHARED("48", ESPALIER_PLACES_24, "24", "25", "26", ESPALIER_SUMS_8(d, 0),
                              ESPALIER_SUMS_8(d, 8), ESPALIER_SUMS_8(d, 16));
    else if constexpr (kTokens == 64)
        ESPALIER_WGMMA_SHARED("64", ESPALIER_PLACES_32, "32", "33", "34", ESPALIER_SUMS_32(d, 0));
    else if constexpr (kTokens == 80)
        ESPALIER_WGMMA_SHARED("80", ESPALIER_PLACES_40, "40", "41", "42", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_8(d, 32));
    else if constexpr (kTokens == 96)
        ESPALIER_WGMMA_SHARED("96", ESPALIER_PLACES_48, "48", "49", "50", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_8(d, 32), ESPALIER_SUMS_8(d, 40));
    else if constexpr (kTokens == 112)
        ESPALIER_WGMMA_SHARED("112", ESPALIER_PLACES_56, "56", "57", "58", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_8(d, 32), ESPALIER_SUMS_8(d, 40),
                              ESPALIER_SUMS_8(d, 48));
    else if constexpr (kTokens == 128)
        ESPALIER_WGMMA_SHARED("128", ESPALIER_PLACES_64, "64", "65", "66", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_32(d, 32));
    else if constexpr (kTokens == 144)
        ESPALIER_WGMMA_SHARED("144", ESPALIER_PLACES_72, "72", "73", "74", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_32(d, 32), ESPALIER_SUMS_8(d, 64));
    else if constexpr (kTokens == 160)
        ESPALIER_WGMMA_SHARED("160", ESPALIER_PLACES_80, "80", "81", "82", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_32(d, 32), ESPALIER_SUMS_8(d, 64),
                              ESPALIER_SUMS_8(d, 72));
    else if constexpr (kTokens == 176)
        ESPALIER_WGMMA_SHARED("176", ESPALIER_PLACES_88, "88", "89", "90", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_32(d, 32), ESPALIER_SUMS_8(d, 64),
                              ESPALIER_SUMS_8(d, 72), ESPALIER_SUMS_8(d, 80));
    else {
        static_assert(kTokens == 192);
        ESPALIER_WGMMA_SHARED("192", ESPALIER_PLACES_96, "96", "97", "98", ESPALIER_SUMS_32(d, 0),
                              ESPALIER_SUMS_32(d, 32), ESPALIER_SUMS_32(d, 64));
    }
}

#undef ESPALIER_PLACES_8
#undef ESPALIER_PLACES_16
#undef ESPALIER_PLACES_24
#undef ESPALIER_PLACES_32
#undef ESPALIER_PLACES_40
#undef ESPALIER_PLACES_48
#undef ESPALIER_PLACES_56
#undef ESPALIER_PLACES_64
#undef ESPALIER_PLACES_72
#undef ESPALIER_PLACES_80
#undef ESPALIER_PLACES_88
#undef ESPALIER_PLACES_96
#undef ESPALIER_WGMMA
#undef ESPALIER_WGMMA_SHARED
#undef ESPALIER_SUMS_8
#undef ESPALIER_SUMS_32

}  // namespace espalier::linalg::cuda
