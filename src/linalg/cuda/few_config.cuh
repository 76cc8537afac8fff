// SPDX-License-Identifier: Apache-2.0
// What the kernel for few tokens is launched with, and what it is compiled for.
#pragma once

#include <cstdint>

#include "linalg/cuda/few_plan.hpp"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

// Divisor of indices, prepared: a division takes 100 cycles or more, and several lie between two
// items.
struct Divisor {
    std::int32_t value = 1;
    std::uint64_t inverse = 0;  // 2⁶⁴ / value, rounded up: exact for every index of 31 bits

    Divisor() = default;
    explicit Divisor(std::int64_t by)
        : value(static_cast<std::int32_t>(by)),
          inverse(~std::uint64_t{0} / static_cast<std::uint64_t>(by) + 1) {}
    __device__ int quotient(int index) const {
        return value == 1 ? index : static_cast<int>(__umul64hi(inverse, index));
    }
    __device__ int remainder(int index) const { return index - quotient(index) * value; }
};

struct FewParams {
    Problem problem;
    LaunchGrant grant;
    Segments segments;
    Divisor blocks;         // of the launch
    int row_warps_log = 0;  // of the number of warps side by side over outputs
    Divisor row_blocks;     // of a group
    int row_tiles = 0;      // of a group's outputs, those of a second product included
    int ring = 0;           // units (of each row tile) in a warp's ring
    int token_tiles = 0;    // what the list of an expert product's tiles has room for
    // Divisors of the dense product in front:
    Divisor lead_row_blocks;
    int lead_row_tiles = 0;
    int lead_items = 0;
    int lead_segment = 0;  // a segment's chunks
};

template <GpuFamily kFamily_, WeightCode kCode_, int kTokenTiles_, int kRowTiles_, int kSegment_,
          FewInput kInput>
struct FewConfig {
    static constexpr GpuFamily kFamily = kFamily_;
    static constexpr WeightCode kCode = kCode_;
    static constexpr bool kGroups = in_groups(kCode);  // a chain of sums for each 32 inputs,
    static constexpr bool kBlocks = in_blocks(kCode);  // for each 128
    static constexpr int kTokenTiles = kTokenTiles_;   // of 8 tokens
    static constexpr int kRowTiles = kRowTiles_;       // of 16 outputs, per warp
    static constexpr int kSegment = kSegment_;         // every segment's chunks; 0: as params say
    static constexpr bool kVectorX = kInput != FewInput::single;
    static constexpr bool kLeading = kInput == FewInput::leading;  // both k multiples of 128
    static constexpr int kTokens = 8 * kTokenTiles;
    static constexpr bool kCodes = kCode != WeightCode::bf16;
    static constexpr int kUnit = few_unit(kCode, kRowTiles);  // chunks of a ring's place
    static constexpr bool kKeepX = kSegment > 0;
    static constexpr bool kChunkOfX = !kKeepX && kTokenTiles <= 2;  // asked for at once
    // True if a warp that has stored its part of an item waits for the others only before it puts
    // sums again. Where a multiprocessor has one block nothing else runs meanwhile (v3 gate_up, 14
    // warps, 32 tokens: 1,170 µs, not 1,197; INT8 1,459, not 1,536; INT4 1,074, not 1,042).
    static constexpr bool kLeavesEarly = kCode != WeightCode::int4;
    static constexpr int kSumStride = few_sum_stride(kRowTiles);
    static constexpr int kRegisters = few_registers(kCodes, kTokenTiles, kRowTiles, kSegment);

    static constexpr std::size_t sum_bytes(int warps) {
        return few_sum_bytes(kTokenTiles, kRowTiles, warps);
    }
    static constexpr std::size_t barrier_bytes(int warps, int ring) {
        return few_barrier_bytes(warps, ring);
    }
};

// A warp's ring of weights in shared memory, of its config's family: hopper/few_ring.cuh,
// portable/few_ring.cuh.
template <class C, GpuFamily kFamily = C::kFamily>
class FewRing;

}  // namespace espalier::linalg::cuda
