// SPDX-License-Identifier: Apache-2.0
// Warp-wide tensor-core products (mma.sync m16n8k16), the shared-memory tiles that feed them, and
// asynchronous copies into such tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace espalier::mla::cuda {

// A tile of 16-bit numbers in shared memory: rows of kColumns (a multiple of 64), cut into chunks
// of 8 numbers (16 bytes). Chunk c of row r lies at chunk c XOR (r mod 8), so that the 8 rows that
// ldmatrix reads at once lie in 8 different groups of banks.
template <int kColumns>
struct SharedTile {
    static_assert(kColumns % 64 == 0, "the swizzle permutes 8 chunks");
    static constexpr int kRowBytes = kColumns * 2;

    unsigned base;  // shared-memory address, a multiple of 128

    __device__ unsigned at(int row, int chunk) const {
        return base + static_cast<unsigned>(row * kRowBytes + (chunk ^ (row & 7)) * 16);
    }
};

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Four 8×8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_transposed(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// The left operand, rows first … first + 15 and columns 16·step …, of a row-major tile.
template <int kColumns>
__device__ void load_left(unsigned (&to)[4], const SharedTile<kColumns>& tile, int first, int step,
                          int lane) {
    load_matrices(to, tile.at(first + lane % 16, 2 * step + lane / 16));
}

// The right operand of two products side by side: outputs first … first + 15 are rows of the tile,
// k runs along its columns. {to[0], to[1]} for the first 8 outputs, {to[2], to[3]} for the others.
template <int kColumns>
__device__ void load_right(unsigned (&to)[4], const SharedTile<kColumns>& tile, int first, int step,
                           int lane) {
    load_matrices(to, tile.at(first + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
}

// The same where k runs along the tile's rows, 16·step …, and outputs are columns first ….
template <int kColumns>
__device__ void load_right_by_rows(unsigned (&to)[4], const SharedTile<kColumns>& tile, int first,
                                   int step, int lane) {
    load_transposed(to, tile.at(16 * step + lane % 16, first / 8 + lane / 16));
}

// sum [16, 8] += left [16, 16] · right [16, 8]. Lane l holds rows l / 4 (sum[0], sum[1]) and
// l / 4 + 8 (sum[2], sum[3]) at columns 2·(l % 4) and the next.
__device__ inline void multiply_bf16(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                                     unsigned right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

__device__ inline void multiply_fp16(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                                     unsigned right1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

__device__ inline unsigned bits_of(__nv_bfloat162 pair) {
    return static_cast<unsigned>(__bfloat16_as_ushort(pair.x)) |
           static_cast<unsigned>(__bfloat16_as_ushort(pair.y)) << 16;
}

__device__ inline unsigned bf16_pair(float low, float high) {
    return bits_of(__floats2bfloat162_rn(low, high));
}

// Two fp16 numbers as sums of two bf16 numbers each, exactly: 11 bits of mantissa are 8 and 3, and
// bf16 reaches below fp16's smallest.
__device__ inline void split_fp16_pair(unsigned pair, unsigned& high, unsigned& low) {
    const float2 value =
        __half22float2(__halves2half2(__ushort_as_half(static_cast<unsigned short>(pair & 0xffffu)),
                                      __ushort_as_half(static_cast<unsigned short>(pair >> 16))));
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(value.x, value.y);
    high = bits_of(rounded);
    low = bf16_pair(value.x - __bfloat162float(rounded.x), value.y - __bfloat162float(rounded.y));
}

// 16 bytes, or 16 zeros where there is nothing to copy (`from` must still be an address).
__device__ inline void copy_async(unsigned to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the latest kPending groups have arrived (for this thread: a barrier makes it everyone).
template <int kPending>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void store_shared(unsigned to, unsigned value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

__device__ inline void store_shared(unsigned to, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

}  // namespace espalier::mla::cuda
