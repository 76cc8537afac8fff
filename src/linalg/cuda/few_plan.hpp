// SPDX-License-Identifier: Apache-2.0
// The kernels for few tokens that are compiled, as one table, and the plan that chooses among them.
// Pure: a function of the problem and of the device's facts. Plans change the time of a product,
// never its bits: what the sums depend on is Segments alone.
#pragma once

#include <array>
#include <cstddef>

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

// Way in which a kernel reads x, and whether a dense product is in front.
enum class FewInput : std::uint8_t {
    single,   // an element at a time
    vector,   // 16 bytes at a time
    leading,  // likewise, and a dense product is in front
};

struct FewKernel {
    FewInput input = FewInput::vector;
    int token_tiles = 1;  // of 8 tokens: 1, 2, 4 or 8
    int row_tiles = 1;    // of 16 outputs per warp: 1, 2 or, of 4-bit codes, 4
    int segment = 0;      // chunks of every segment, whose x stays in registers; 0: any number

    bool operator==(const FewKernel&) const = default;
};

struct FewKernels {
    std::array<FewKernel, 24> list{};
    std::size_t count = 0;

    constexpr void add(const FewKernel& kernel) { list[count++] = kernel; }
    constexpr const FewKernel* begin() const { return list.data(); }
    constexpr const FewKernel* end() const { return list.data() + count; }
    constexpr bool has(const FewKernel& kernel) const {
        for (const FewKernel& one : *this)
            if (one == kernel) return true;
        return false;
    }
};

// The kernels that are compiled for a code: the launch is generated from this table.
constexpr FewKernels few_kernels(WeightCode code) {
    using enum FewInput;
    const bool codes = code != WeightCode::bf16;
    const bool four_bits = facts_of(code).bits == 4;
    FewKernels table;
    table.add({single, 1, 1, 0});
    for (const int segment : {0, 1, 2}) {
        table.add({vector, 1, 1, segment});
        table.add({vector, 1, 2, segment});
        if (four_bits) table.add({vector, 1, 4, segment});
        // Codes in two chunks of two tiles are more than registers hold.
        if (codes && segment == 2) continue;
        table.add({vector, 2, 1, segment});
        table.add({vector, 2, 2, segment});
    }
    table.add({vector, 4, 1, 0});
    table.add({vector, 4, 2, 0});
    table.add({vector, 8, 1, 0});
    if (four_bits) {
        table.add({leading, 1, 4, 0});
    } else if (codes) {
        table.add({leading, 1, 2, 0});
        table.add({leading, 1, 2, 2});
    } else {
        table.add({leading, 1, 2, 0});
        table.add({leading, 1, 1, 0});
        table.add({leading, 1, 1, 2});
    }
    return table;
}

// Chunks of each row tile that are asked for at once: waiting and asking cost instructions, of
// which 4-bit codes have few bytes each.
constexpr int few_unit(WeightCode code, int row_tiles) {
    return facts_of(code).bits == 4 && row_tiles < 4 ? 2 : 1;
}
// Registers of a thread. Uncapped the compiler takes so many that one block fits where three
// should.
constexpr int few_registers(bool codes, int token_tiles, int row_tiles, int segment) {
    const int sums = token_tiles * row_tiles;
    // Two blocks of 11 warps (v2 down), which would otherwise wait for each other's merges alone.
    if (token_tiles == 2 && segment == 1) return 88;
    if (sums >= 4 || token_tiles * segment >= 4) return sums >= 16 ? 255 : sums >= 8 ? 168 : 128;
    if (token_tiles == 2 || (codes && row_tiles == 2)) return 96;
    return 80;  // three blocks of eight warps
}
// From one token's sums to the next one's, floats: no bank conflicts.
constexpr int few_sum_stride(int row_tiles) { return 16 * row_tiles + 4; }

// Numbers, not a FewKernel: device code has no address of a constant of the host.
constexpr std::size_t few_sum_bytes(int token_tiles, int row_tiles, int warps) {
    return static_cast<std::size_t>(warps * 8 * token_tiles * few_sum_stride(row_tiles)) *
           sizeof(float);
}
constexpr std::size_t few_barrier_bytes(int warps, int ring) {
    return (static_cast<std::size_t>(warps) * static_cast<std::size_t>(ring) * 8 + 127) / 128 * 128;
}
// Shared memory of a block: sums, barriers, the warps' rings of chunks, the list of experts' tiles.
constexpr std::size_t few_shared_bytes(WeightCode code, const FewKernel& kernel, int warps,
                                       int ring, int chunk_bytes, int listed_tiles) {
    return few_sum_bytes(kernel.token_tiles, kernel.row_tiles, warps) +
           few_barrier_bytes(warps, ring) +
           static_cast<std::size_t>(warps * ring * kernel.row_tiles *
                                    few_unit(code, kernel.row_tiles) * chunk_bytes) +
           static_cast<std::size_t>(listed_tiles) * kTokenTileBytes;
}

// Warps side by side over outputs, where segments are too few to fill a block.
constexpr int row_warps_of(const Segments& segments) {
    return segments.count == 1 ? 4 : segments.count <= 3 ? 2 : 1;
}

struct FewPlan {
    FewKernel kernel;
    int row_warps = 1;  // warps side by side over outputs: 1, 2 or 4
    int ring = 1;       // units of each row tile in flight per warp

    bool operator==(const FewPlan&) const = default;
};
std::size_t shared_bytes(const Problem& p, const FewPlan& plan);
bool fits(const Problem& p, const FewPlan& plan, const DeviceFacts& facts);

// For an expert product with one in front (Problem::lead), too.
FewPlan few_plan(const Problem& p, const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
