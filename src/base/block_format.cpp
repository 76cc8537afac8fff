// SPDX-License-Identifier: Apache-2.0
// The layouts are those of ggml's block structs; scales are little-endian f16.
#include "base/block_format.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier {
namespace {

// Values of the sixteen codes of IQ4_NL and IQ4_XS.
constexpr std::array<std::int8_t, 16> kUneven = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};

int byte_at(const std::byte* from, int index) { return std::to_integer<int>(from[index]); }

float half_at(const std::byte* from) { return load_element(from, DType::f16, 0); }

// Codes 0 … 15 of 32 weights: weight j in the low half of byte j, weight j + 16 in its high half.
template <typename Number>
void split_halves(const std::byte* from, std::int8_t* to, Number&& number) {
    for (int j = 0; j < 16; ++j) {
        const int both = byte_at(from, j);
        to[j] = static_cast<std::int8_t>(number(both & 0xf, j));
        to[j + 16] = static_cast<std::int8_t>(number(both >> 4, j + 16));
    }
}

void unpack_q8_0(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = half_at(block);
    for (std::size_t j = 0; j < 32; ++j) to.codes[j] = static_cast<std::int8_t>(block[2 + j]);
}

void unpack_q4_0(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = half_at(block);
    split_halves(block + 2, to.codes.data(), [](int code, int) { return code - 8; });
}

// d, a fifth bit of each weight in 32 bits, then as Q4_0.
void unpack_q5_0(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = half_at(block);
    split_halves(block + 6, to.codes.data(), [&](int code, int j) {
        const int fifth = byte_at(block, 2 + j / 8) >> (j % 8) & 1;
        return (code | fifth << 4) - 16;
    });
}

int uneven(int code, int) { return kUneven[static_cast<std::size_t>(code)]; }

void unpack_iq4_nl(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = half_at(block);
    split_halves(block + 2, to.codes.data(), uneven);
}

// d, the high two bits of eight scales, their low four, 128 bytes of codes.
void unpack_iq4_xs(const std::byte* block, BlockNumbers& to) {
    const float d = half_at(block);
    const int high = byte_at(block, 2) | byte_at(block, 3) << 8;
    for (int group = 0; group < 8; ++group) {
        const int low = byte_at(block, 4 + group / 2) >> (4 * (group % 2)) & 0xf;
        const int scale = (low | (high >> (2 * group) & 3) << 4) - 32;
        to.scales[static_cast<std::size_t>(group)] = d * static_cast<float>(scale);
        split_halves(block + 8 + 16 * group, to.codes.data() + 32 * group, uneven);
    }
}

// Low four bits of 256 codes, high two bits, sixteen scales, d. Of 128 weights the quarters share
// 32 bytes of high bits, and two of them 32 bytes of low ones.
void unpack_q6_k(const std::byte* block, BlockNumbers& to) {
    constexpr int kHigh = 128, kScales = 192, kFactor = 208;
    const float d = half_at(block + kFactor);
    for (int weight = 0; weight < 256; ++weight) {
        const int half = weight / 128, quarter = weight % 128 / 32, l = weight % 32;
        const int low = byte_at(block, 64 * half + 32 * (quarter % 2) + l) >> (4 * (quarter / 2));
        const int high = byte_at(block, kHigh + 32 * half + l) >> (2 * quarter);
        to.codes[static_cast<std::size_t>(weight)] =
            static_cast<std::int8_t>(((low & 0xf) | (high & 3) << 4) - 32);
    }
    for (int group = 0; group < 16; ++group)
        to.scales[static_cast<std::size_t>(group)] =
            d * static_cast<float>(static_cast<std::int8_t>(block[kScales + group]));
}

// d, the minima's factor, six bits of scale and of minimum for eight groups in twelve bytes. Of the
// last four groups the high two bits are those of the bytes of the first four.
void scales_and_minima(const std::byte* block, BlockNumbers& to) {
    const float d = half_at(block), factor = half_at(block + 2);
    const std::byte* packed = block + 4;
    for (int group = 0; group < 8; ++group) {
        const int low = byte_at(packed, group % 4), middle = byte_at(packed, group % 4 + 4);
        const int last = byte_at(packed, group % 4 + 8);
        const int scale = group < 4 ? low & 0x3f : (last & 0xf) | (low >> 6) << 4;
        const int minimum = group < 4 ? middle & 0x3f : last >> 4 | (middle >> 6) << 4;
        to.scales[static_cast<std::size_t>(group)] = d * static_cast<float>(scale);
        to.zeros[static_cast<std::size_t>(group)] = -(factor * static_cast<float>(minimum));
    }
}

// 32 bytes hold two groups: the first in their low halves.
int half_code(const std::byte* codes, int weight) {
    return byte_at(codes, weight / 64 * 32 + weight % 32) >> (4 * (weight / 32 % 2)) & 0xf;
}

void unpack_q4_k(const std::byte* block, BlockNumbers& to) {
    scales_and_minima(block, to);
    for (int weight = 0; weight < 256; ++weight)
        to.codes[static_cast<std::size_t>(weight)] =
            static_cast<std::int8_t>(half_code(block + 16, weight));
}

// Q4_K's layout with a fifth bit: bit g of byte j is that of weight j of group g.
void unpack_q5_k(const std::byte* block, BlockNumbers& to) {
    scales_and_minima(block, to);
    for (int weight = 0; weight < 256; ++weight) {
        const int fifth = byte_at(block, 16 + weight % 32) >> (weight / 32) & 1;
        to.codes[static_cast<std::size_t>(weight)] =
            static_cast<std::int8_t>(half_code(block + 48, weight) | fifth << 4);
    }
}

}  // namespace

BlockCode block_of(std::string_view name) {
    for (std::size_t code = 1; code < kBlocks.size(); ++code)
        if (kBlocks[code].name == name) return static_cast<BlockCode>(code);
    return BlockCode::none;
}

void unpack_block(BlockCode code, const std::byte* block, BlockNumbers& to) {
    switch (code) {
        case BlockCode::q8_0:
            return unpack_q8_0(block, to);
        case BlockCode::q4_0:
            return unpack_q4_0(block, to);
        case BlockCode::q5_0:
            return unpack_q5_0(block, to);
        case BlockCode::iq4_nl:
            return unpack_iq4_nl(block, to);
        case BlockCode::iq4_xs:
            return unpack_iq4_xs(block, to);
        case BlockCode::q6_k:
            return unpack_q6_k(block, to);
        case BlockCode::q4_k:
            return unpack_q4_k(block, to);
        case BlockCode::q5_k:
            return unpack_q5_k(block, to);
        case BlockCode::none:
            break;
    }
    CHECK(false, "blocks of no format");
}

void widen_blocks(BlockCode code, const std::byte* blocks, std::int64_t weights, float* to) {
    const BlockFacts& facts = facts_of(code);
    CHECK(facts.weights > 0 && weights % facts.weights == 0, "{} weights in blocks of {}", weights,
          facts.weights);
    BlockNumbers numbers;
    for (std::int64_t first = 0; first < weights; first += facts.weights, blocks += facts.bytes) {
        unpack_block(code, blocks, numbers);
        for (std::int32_t j = 0; j < facts.weights; ++j) {
            const auto group = static_cast<std::size_t>(j / facts.format.group_k);
            const float scaled = static_cast<float>(numbers.codes[static_cast<std::size_t>(j)]) *
                                 numbers.scales[group];
            to[first + j] = facts.format.zero_points ? scaled + numbers.zeros[group] : scaled;
        }
    }
}

}  // namespace espalier
