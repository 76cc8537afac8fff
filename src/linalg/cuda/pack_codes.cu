// SPDX-License-Identifier: Apache-2.0
// From rows to fragments: every item is one unit of half a chunk.
#include "linalg/cuda/pack.hpp"

namespace espalier::linalg::cuda {
namespace {

// Place of an item, of `count` per half chunk.
struct HalfPlace {
    std::int64_t half;   // of all: [n / 16][k / 128][2]
    std::int64_t tile;   // of 16 outputs
    std::int64_t input;  // the half's first
    int unit;

    __device__ HalfPlace(std::int64_t item, int units, std::int64_t k)
        : half(item / units),
          tile(half / 2 / chunks_of(k)),
          input(half % (2 * chunks_of(k)) * 64),
          unit(static_cast<int>(item % units)) {}
};

__device__ std::int64_t halves_of(const RowMatrix& m) { return tiles_of(m.n) * chunks_of(m.k) * 2; }
// The matrix's row at a place of a tile; -1: there is none.
__device__ std::int64_t row_at(const RowMatrix& m, std::int64_t place) {
    if (place >= m.n) return -1;
    return m.gated ? gated_row(place, m.n) : place;
}

// A unit is eight inputs of an output: a row of an 8 × 8 matrix.
__global__ void bf16_kernel(RowMatrix m, uint4* to) {
    constexpr int kUnits = 128;
    const auto* rows = reinterpret_cast<const std::uint16_t*>(m.rows);
    for (std::int64_t i = first_item(); i < halves_of(m) * kUnits; i += item_stride()) {
        const HalfPlace at(i, kUnits, m.k);
        const int step = at.unit / 16 % 4;
        const std::int64_t row = row_at(m, at.tile * 16 + at.unit / 64 * 8 + at.unit % 8);
        std::uint32_t word[4] = {};
        for (int column = 0; column < 8; ++column) {
            const std::int64_t input = at.input + step / 2 * 32 + column / 2 * 8 + step % 2 * 4 +
                                       at.unit / 8 % 2 * 2 + column % 2;
            if (row >= 0 && input < m.k)
                word[column / 2] |= std::uint32_t{rows[row * m.k + input]} << column % 2 * 16;
        }
        to[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

// The codes of a lane for two steps: of outputs g and g + 8 at eight inputs.
struct LaneCodes {
    std::uint32_t code[2][8] = {};

    // code_of(row, input) is the matrix's; `padding` stands for zero.
    template <typename CodeOf>
    __device__ LaneCodes(const RowMatrix& m, const HalfPlace& at, std::uint32_t padding,
                         const CodeOf& code_of) {
        const int lane = at.unit % 32, pair = at.unit / 32;
        for (int half = 0; half < 2; ++half) {
            const std::int64_t row = row_at(m, at.tile * 16 + half * 8 + lane / 4);
            for (int i = 0; i < 8; ++i) {
                const std::int64_t input = at.input + pair * 32 + lane % 4 * 8 + i;
                code[half][i] = row >= 0 && input < m.k ? code_of(row, input) : padding;
            }
        }
    }
};

__device__ std::uint32_t byte_at(const RowMatrix& m, std::int64_t row, std::int64_t input) {
    return std::to_integer<std::uint32_t>(m.rows[row * m.k + input]);
}
// k is even.
__device__ std::uint32_t nibble_at(const RowMatrix& m, std::int64_t row, std::int64_t input) {
    const auto byte = std::to_integer<std::uint32_t>(m.rows[(row * m.k + input) / 2]);
    return (input % 2 == 0 ? byte : byte >> 4) & 0xfu;
}

constexpr int kE2m1Bytes = code_bytes(WeightCode::e2m1);
constexpr int kLaneUnits = 64;  // two pairs of steps, 32 lanes

__global__ void e4m3_kernel(RowMatrix m, uint4* to, int* faults) {
    bool nan = false;
    for (std::int64_t i = first_item(); i < halves_of(m) * kLaneUnits; i += item_stride()) {
        const LaneCodes lane(
            m, HalfPlace(i, kLaneUnits, m.k), 0,
            [&](std::int64_t row, std::int64_t input) { return byte_at(m, row, input); });
        std::uint32_t word[4] = {};
        for (int input = 0; input < 8; ++input) {
            const std::uint32_t first = lane.code[0][input], second = lane.code[1][input];
            nan |= (first & 0x7fu) == 0x7fu || (second & 0x7fu) == 0x7fu;
            word[input / 2] |= join_codes(first, second) << input % 2 * 16;
        }
        to[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
    if (nan) atomicOr(faults, kNanCode);
}

__global__ void int8_kernel(RowMatrix m, std::byte* to) {
    for (std::int64_t i = first_item(); i < halves_of(m) * kLaneUnits; i += item_stride()) {
        const HalfPlace at(i, kLaneUnits, m.k);
        const LaneCodes lane(
            m, at, 0, [&](std::int64_t row, std::int64_t input) { return byte_at(m, row, input); });
        std::uint32_t word[4] = {};
        for (int input = 0; input < 8; ++input)
            word[input / 2] |= (lane.code[0][input] | lane.code[1][input] << 8) << input % 2 * 16;
        *reinterpret_cast<uint4*>(to + at.half * m.half_bytes + at.unit * 16) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }
}

// Register r of a step has inputs 2 · (r / 2) and the next of output g + r % 2 · 8.
template <typename Deal>
__device__ uint2 nibble_words(const LaneCodes& lane, const Deal& deal) {
    std::uint32_t word[2] = {};
    for (int step = 0; step < 2; ++step)
        for (int r = 0; r < 4; ++r)
            for (int half = 0; half < 2; ++half)
                word[step] |= deal(lane.code[r % 2][step * 4 + r / 2 * 2 + half], r) << half * 16;
    return make_uint2(word[0], word[1]);
}

__global__ void int4_kernel(RowMatrix m, std::byte* to) {
    for (std::int64_t i = first_item(); i < halves_of(m) * kLaneUnits; i += item_stride()) {
        const HalfPlace at(i, kLaneUnits, m.k);
        const LaneCodes lane(m, at, 8, [&](std::int64_t row, std::int64_t input) {
            return nibble_at(m, row, input) ^ 8u;
        });
        *reinterpret_cast<uint2*>(to + at.half * m.half_bytes + at.unit * 8) =
            nibble_words(lane, [](std::uint32_t code, int r) { return code << 4 * r; });
    }
}

__device__ std::uint32_t stored_scale(const RowMatrix& m, std::int64_t row, std::int64_t input) {
    return std::to_integer<std::uint32_t>(m.scales[row * m.groups + input / kNvfp4.group_k]);
}

__global__ void e2m1_kernel(RowMatrix m, std::byte* to) {
    for (std::int64_t i = first_item(); i < halves_of(m) * kLaneUnits; i += item_stride()) {
        const HalfPlace at(i, kLaneUnits, m.k);
        const LaneCodes lane(m, at, 0, [&](std::int64_t row, std::int64_t input) {
            return nibble_at(m, row, input) ^ (stored_scale(m, row, input) >> 7 << 3);
        });
        std::byte* half = to + at.half * m.half_bytes;
        *reinterpret_cast<uint2*>(half + at.unit * 8) = nibble_words(lane, deal_e2m1);
        // A scale for each unit: of 64 outputs and groups.
        const int group = at.unit / 32 * 2 + at.unit / 2 % 2;
        const std::int64_t row = row_at(m, at.tile * 16 + at.unit % 2 * 8 + at.unit % 32 / 4);
        const std::int64_t input = at.input + group * kNvfp4.group_k;
        half[kE2m1Bytes + at.unit] =
            row >= 0 && input < m.k ? static_cast<std::byte>(stored_scale(m, row, input) & 0x7fu)
                                    : std::byte{0};
    }
}

template <typename T>
__global__ void group_scales_kernel(RowMatrix m, std::byte* to) {
    const int units = m.groups_of_half * 16;
    const auto* scales = reinterpret_cast<const T*>(m.scales);
    for (std::int64_t i = first_item(); i < halves_of(m) * units; i += item_stride()) {
        const HalfPlace at(i, units, m.k);
        const std::int64_t row = row_at(m, at.tile * 16 + at.unit % 2 * 8 + at.unit % 16 / 2);
        const std::int64_t input = at.input + at.unit / 16 * 32;
        auto* half = reinterpret_cast<T*>(to + at.half * m.half_bytes + m.code_bytes);
        half[at.unit] =
            row >= 0 && input < m.k ? scales[row * m.groups + input / m.format.group_k] : T{0};
    }
}

}  // namespace

void lay_out_fragments(cudaStream_t stream, RowMatrix from, std::byte* to, int* faults) {
    from.half_bytes = half_bytes(from.format);
    from.code_bytes = code_bytes(from.format.code);
    from.groups_of_half = groups_of_half(from.format);
    const std::int64_t halves = tiles_of(from.n) * chunks_of(from.k) * 2;
    const unsigned blocks = blocks_for(halves * kLaneUnits);
    auto* units = reinterpret_cast<uint4*>(to);
    switch (from.format.code) {
        case WeightCode::bf16:
            bf16_kernel<<<blocks_for(halves * 128), kPackThreads, 0, stream>>>(from, units);
            break;
        case WeightCode::e4m3:
            e4m3_kernel<<<blocks, kPackThreads, 0, stream>>>(from, units, faults);
            break;
        case WeightCode::int8:
            int8_kernel<<<blocks, kPackThreads, 0, stream>>>(from, to);
            break;
        case WeightCode::int4:
            int4_kernel<<<blocks, kPackThreads, 0, stream>>>(from, to);
            break;
        case WeightCode::e2m1:
            e2m1_kernel<<<blocks, kPackThreads, 0, stream>>>(from, to);
            break;
        default:
            break;
    }
    if (!in_groups(from.format.code)) return;
    const unsigned scale_blocks = blocks_for(halves * 32);
    if (from.format.scale == ScaleType::bf16)
        group_scales_kernel<std::uint16_t><<<scale_blocks, kPackThreads, 0, stream>>>(from, to);
    else
        group_scales_kernel<float><<<scale_blocks, kPackThreads, 0, stream>>>(from, to);
}

}  // namespace espalier::linalg::cuda
