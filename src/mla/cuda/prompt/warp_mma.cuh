// SPDX-License-Identifier: Apache-2.0
// The tiles in shared memory that feed warp-wide products (mma.sync m16n8k16), and their operands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"

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

__device__ inline void unpack(unsigned (&to)[4], uint4 from) {
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
    to[3] = from.w;
}
__device__ inline uint4 packed(const unsigned (&from)[4]) {
    return {from[0], from[1], from[2], from[3]};
}

// The left operand, rows first … first + 15 and columns 16·step …, of a row-major tile.
template <int kColumns>
__device__ void load_left(unsigned (&to)[4], const SharedTile<kColumns>& tile, int first, int step,
                          int lane) {
    unpack(to, load_matrices(tile.at(first + lane % 16, 2 * step + lane / 16)));
}

// The right operand of two products side by side: outputs first … first + 15 are rows of the tile,
// k runs along its columns. {to[0], to[1]} for the first 8 outputs, {to[2], to[3]} for the others.
template <int kColumns>
__device__ void load_right(unsigned (&to)[4], const SharedTile<kColumns>& tile, int first, int step,
                           int lane) {
    unpack(to, load_matrices(tile.at(first + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2)));
}

// The same where k runs along the tile's rows, 16·step …, and outputs are columns first ….
template <int kColumns>
__device__ void load_right_by_rows(unsigned (&to)[4], const SharedTile<kColumns>& tile, int first,
                                   int step, int lane) {
    unpack(to, load_transposed(tile.at(16 * step + lane % 16, first / 8 + lane / 16)));
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

}  // namespace espalier::mla::cuda
