// SPDX-License-Identifier: Apache-2.0
// Instructions of a warpgroup: its products, its share of the registers. Compute capability 9.0a
// alone.
//
// Products D[64 × n] += A[64 × 16] · B[16 × n] have f32 sums: A in registers (a warp's 16 rows as
// mma.m16n8k16 has them) or in shared memory, B there, 128-byte swizzle. Without `add` D = A · B.
// Bits are those of mma.m16n8k16 (tests/linalg/cuda/invariance_test.cpp holds them).
#pragma once

#include <cstdint>

namespace espalier {
inline namespace ptx {

// --- registers ----------------------------------------------------------------------------------
// A warpgroup keeps kCount registers per thread and gives the others away, or waits until it has
// as many.
template <int kCount>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
// Whichever of them leads from kBefore to kCount.
template <int kBefore, int kCount>
__device__ __forceinline__ void set_registers() {
    if constexpr (kCount < kBefore)
        keep_registers<kCount>();
    else if constexpr (kCount > kBefore)
        take_registers<kCount>();
}

// --- operands in shared memory ------------------------------------------------------------------
// A matrix whose rows are 128 bytes, eight rows to a swizzle atom of 1,024 bytes: the stride
// between atoms is all a descriptor says besides the address. Where the product's other axis is
// contiguous and longer than 64, `leading` is the stride between its blocks of 64.
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
// Matrices of 8 × 8 in 128 bytes each: two of a step lie beside each other, those of the next eight
// rows 1,024 bytes further, as in linalg's fragments of bf16.
__device__ __forceinline__ std::uint64_t matrices_operand(std::uint32_t address) {
    constexpr std::uint64_t kNextInputs = std::uint64_t{128 >> 4} << 16;
    constexpr std::uint64_t kNextRows = std::uint64_t{1024 >> 4} << 32;
    return kNextRows | kNextInputs | ((address & 0x3FFFF) >> 4);
}

// --- groups of products -------------------------------------------------------------------------
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

// --- products -----------------------------------------------------------------------------------
enum class Element { bf16, f16 };

#define ESPALIER_SUMS_8(d, i)                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ESPALIER_SUMS_32(d, i)                                                    \
    ESPALIER_SUMS_8(d, i), ESPALIER_SUMS_8(d, i + 8), ESPALIER_SUMS_8(d, i + 16), \
        ESPALIER_SUMS_8(d, i + 24)

// Places of the sums d[0 … n / 2) of n columns.
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

#define ESPALIER_WGMMA_LEFT(n, type, places, a_place, b_place, add_place, ...)             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" add_place                              \
                 ", 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " " places \
                 "}, {" a_place "}, %" b_place ", p, 1, 1, 0; }\n"                         \
                 : __VA_ARGS__                                                             \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add))
#define ESPALIER_WGMMA_SHARED(n, type, places, a_place, b_place, add_place, ...)           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" add_place                              \
                 ", 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " " places \
                 "}, %" a_place ", %" b_place ", p, 1, 1, 0, 0; }\n"                       \
                 : __VA_ARGS__                                                             \
                 : "l"(a), "l"(b), "r"(add))

// A in registers, B with 16 consecutive elements to a column.
template <int kColumns, Element kElement = Element::bf16, int kSums>
__device__ __forceinline__ void wgmma_left(float (&d)[kSums], const uint4& a, std::uint64_t b,
                                           int add) {
    static_assert(kColumns / 2 <= kSums);
    constexpr bool kBf16 = kElement == Element::bf16;
    if constexpr (kBf16 && kColumns == 16)
        ESPALIER_WGMMA_LEFT("16", "bf16", ESPALIER_PLACES_8, "%8, %9, %10, %11", "12", "13",
                            ESPALIER_SUMS_8(d, 0));
    else if constexpr (kBf16 && kColumns == 32)
        ESPALIER_WGMMA_LEFT("32", "bf16", ESPALIER_PLACES_16, "%16, %17, %18, %19", "20", "21",
                            ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8));
    else if constexpr (kBf16 && kColumns == 48)
        ESPALIER_WGMMA_LEFT("48", "bf16", ESPALIER_PLACES_24, "%24, %25, %26, %27", "28", "29",
                            ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8), ESPALIER_SUMS_8(d, 16));
    else if constexpr (kBf16 && kColumns == 64)
        ESPALIER_WGMMA_LEFT("64", "bf16", ESPALIER_PLACES_32, "%32, %33, %34, %35", "36", "37",
                            ESPALIER_SUMS_32(d, 0));
    else if constexpr (kBf16 && kColumns == 80)
        ESPALIER_WGMMA_LEFT("80", "bf16", ESPALIER_PLACES_40, "%40, %41, %42, %43", "44", "45",
                            ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32));
    else if constexpr (kBf16 && kColumns == 96)
        ESPALIER_WGMMA_LEFT("96", "bf16", ESPALIER_PLACES_48, "%48, %49, %50, %51", "52", "53",
                            ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32), ESPALIER_SUMS_8(d, 40));
    else if constexpr (kBf16 && kColumns == 112)
        ESPALIER_WGMMA_LEFT("112", "bf16", ESPALIER_PLACES_56, "%56, %57, %58, %59", "60", "61",
                            ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32), ESPALIER_SUMS_8(d, 40),
                            ESPALIER_SUMS_8(d, 48));
    else if constexpr (!kBf16 && kColumns == 16)
        ESPALIER_WGMMA_LEFT("16", "f16", ESPALIER_PLACES_8, "%8, %9, %10, %11", "12", "13",
                            ESPALIER_SUMS_8(d, 0));
    else if constexpr (!kBf16 && kColumns == 32)
        ESPALIER_WGMMA_LEFT("32", "f16", ESPALIER_PLACES_16, "%16, %17, %18, %19", "20", "21",
                            ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8));
    else if constexpr (!kBf16 && kColumns == 64)
        ESPALIER_WGMMA_LEFT("64", "f16", ESPALIER_PLACES_32, "%32, %33, %34, %35", "36", "37",
                            ESPALIER_SUMS_32(d, 0));
    else {
        static_assert(kBf16 && kColumns == 128);
        ESPALIER_WGMMA_LEFT("128", "bf16", ESPALIER_PLACES_64, "%64, %65, %66, %67", "68", "69",
                            ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32));
    }
}

template <int kColumns, Element kElement, int kSums>
__device__ __forceinline__ void wgmma_left(float (&d)[kSums], const std::uint32_t (&a)[4],
                                           std::uint64_t b, int add) {
    wgmma_left<kColumns, kElement>(d, uint4{a[0], a[1], a[2], a[3]}, b, add);
}

// Both operands in shared memory, both with 16 consecutive elements to a row.
template <int kColumns, Element kElement = Element::bf16, int kSums>
__device__ __forceinline__ void wgmma_shared(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                             int add) {
    static_assert(kColumns / 2 <= kSums);
    constexpr bool kBf16 = kElement == Element::bf16;
    if constexpr (kBf16 && kColumns == 16)
        ESPALIER_WGMMA_SHARED("16", "bf16", ESPALIER_PLACES_8, "8", "9", "10",
                              ESPALIER_SUMS_8(d, 0));
    else if constexpr (kBf16 && kColumns == 32)
        ESPALIER_WGMMA_SHARED("32", "bf16", ESPALIER_PLACES_16, "16", "17", "18",
                              ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8));
    else if constexpr (kBf16 && kColumns == 48)
        ESPALIER_WGMMA_SHARED("48", "bf16", ESPALIER_PLACES_24, "24", "25", "26",
                              ESPALIER_SUMS_8(d, 0), ESPALIER_SUMS_8(d, 8), ESPALIER_SUMS_8(d, 16));
    else if constexpr (kBf16 && kColumns == 64)
        ESPALIER_WGMMA_SHARED("64", "bf16", ESPALIER_PLACES_32, "32", "33", "34",
                              ESPALIER_SUMS_32(d, 0));
    else if constexpr (kBf16 && kColumns == 80)
        ESPALIER_WGMMA_SHARED("80", "bf16", ESPALIER_PLACES_40, "40", "41", "42",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32));
    else if constexpr (kBf16 && kColumns == 96)
        ESPALIER_WGMMA_SHARED("96", "bf16", ESPALIER_PLACES_48, "48", "49", "50",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32),
                              ESPALIER_SUMS_8(d, 40));
    else if constexpr (kBf16 && kColumns == 112)
        ESPALIER_WGMMA_SHARED("112", "bf16", ESPALIER_PLACES_56, "56", "57", "58",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_8(d, 32),
                              ESPALIER_SUMS_8(d, 40), ESPALIER_SUMS_8(d, 48));
    else if constexpr (kBf16 && kColumns == 128)
        ESPALIER_WGMMA_SHARED("128", "bf16", ESPALIER_PLACES_64, "64", "65", "66",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32));
    else if constexpr (kBf16 && kColumns == 144)
        ESPALIER_WGMMA_SHARED("144", "bf16", ESPALIER_PLACES_72, "72", "73", "74",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32),
                              ESPALIER_SUMS_8(d, 64));
    else if constexpr (kBf16 && kColumns == 160)
        ESPALIER_WGMMA_SHARED("160", "bf16", ESPALIER_PLACES_80, "80", "81", "82",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32),
                              ESPALIER_SUMS_8(d, 64), ESPALIER_SUMS_8(d, 72));
    else if constexpr (kBf16 && kColumns == 176)
        ESPALIER_WGMMA_SHARED("176", "bf16", ESPALIER_PLACES_88, "88", "89", "90",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32),
                              ESPALIER_SUMS_8(d, 64), ESPALIER_SUMS_8(d, 72),
                              ESPALIER_SUMS_8(d, 80));
    else if constexpr (!kBf16 && kColumns == 64)
        ESPALIER_WGMMA_SHARED("64", "f16", ESPALIER_PLACES_32, "32", "33", "34",
                              ESPALIER_SUMS_32(d, 0));
    else {
        static_assert(kBf16 && kColumns == 192);
        ESPALIER_WGMMA_SHARED("192", "bf16", ESPALIER_PLACES_96, "96", "97", "98",
                              ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32),
                              ESPALIER_SUMS_32(d, 64));
    }
}

// D[64 × 128] += A · B with B's rows contiguous: values, as keys are stored. (256 columns at once
// would need more than the 128 registers a thread of 512 starts with.)
#define ESPALIER_WGMMA_VALUES(type)                                                         \
    asm volatile(                                                                           \
        "{ .reg .pred p; setp.eq.b32 p, 0, 0;\n"                                            \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " ESPALIER_PLACES_64 \
        "}, %64, %65, p, 1, 1, 0, 1; }\n"                                                   \
        : ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32)                                   \
        : "l"(a), "l"(b))
template <Element kElement>
__device__ __forceinline__ void wgmma_values(float (&d)[64], std::uint64_t a, std::uint64_t b) {
    if constexpr (kElement == Element::bf16)
        ESPALIER_WGMMA_VALUES("bf16");
    else
        ESPALIER_WGMMA_VALUES("f16");
}
// The same of bf16 with A in registers.
__device__ __forceinline__ void wgmma_left_values(float (&d)[64], const std::uint32_t (&a)[4],
                                                  std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ESPALIER_PLACES_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }\n"
        : ESPALIER_SUMS_32(d, 0), ESPALIER_SUMS_32(d, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
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
#undef ESPALIER_WGMMA_LEFT
#undef ESPALIER_WGMMA_SHARED
#undef ESPALIER_WGMMA_VALUES
#undef ESPALIER_SUMS_8
#undef ESPALIER_SUMS_32

}  // namespace ptx
}  // namespace espalier
