// SPDX-License-Identifier: Apache-2.0
// Random blocks of GGUF's formats, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/block_format.hpp"
#include "base/numeric.hpp"

namespace espalier {

// Random blocks of a format, and what they hold apart.
struct RandomBlocks {
    std::string blocks;
    std::vector<std::int8_t> codes;
    std::vector<float> scales, numbers;
};

inline RandomBlocks random_blocks(BlockCode code, std::size_t weights, std::mt19937& random) {
    const BlockFacts& facts = facts_of(code);
    RandomBlocks made;
    const std::size_t count = weights / static_cast<std::size_t>(facts.weights);
    const auto size = static_cast<std::size_t>(facts.bytes);
    made.blocks.resize(count * size);
    for (char& byte : made.blocks) byte = static_cast<char>(random());
    // Numbers of about 0.05 at most: 127 codes, and scales of six bits or seven within a block.
    const double most = facts.weights == 32       ? 0.05 / 127
                        : code == BlockCode::q6_k ? 0.05 / 32 / 128
                                                  : 0.05 / 127 / 32;
    std::uniform_real_distribution<double> factor(-most, most);
    const std::size_t place = code == BlockCode::q6_k ? 208 : 0;
    BlockNumbers numbers;
    for (std::size_t block = 0; block < count; ++block) {
        char* at = made.blocks.data() + block * size;
        const Fp16 d = to_fp16(static_cast<float>(factor(random)));
        std::memcpy(at + place, &d, sizeof(d));
        // A minimum of 0 adds nothing, so that what codes and scales hold is all.
        if (facts.format.zero_points) std::memset(at + 2, 0, sizeof(d));
        unpack_block(code, reinterpret_cast<const std::byte*>(at), numbers);
        for (std::int32_t j = 0; j < facts.weights; ++j)
            made.codes.push_back(numbers.codes[static_cast<std::size_t>(j)]);
        for (std::int32_t group = 0; group < facts.weights / facts.format.group_k; ++group)
            made.scales.push_back(numbers.scales[static_cast<std::size_t>(group)]);
    }
    made.numbers.resize(weights);
    widen_blocks(code, reinterpret_cast<const std::byte*>(made.blocks.data()),
                 std::ssize(made.numbers), made.numbers.data());
    return made;
}

inline std::uint32_t ggml_type(BlockCode code) {
    static const std::map<std::string_view, std::uint32_t> kIds = {
        {"Q8_0", 8},    {"Q4_0", 2},  {"Q5_0", 6},  {"IQ4_NL", 20},
        {"IQ4_XS", 23}, {"Q6_K", 14}, {"Q4_K", 12}, {"Q5_K", 13}};
    return kIds.at(facts_of(code).name);
}

}  // namespace espalier
