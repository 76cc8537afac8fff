// SPDX-License-Identifier: Apache-2.0
#include "linalg/unpacked_blocks.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::linalg {
namespace {

// Codes of one block, two to a byte where they have four bits.
void store_codes(const BlockNumbers& numbers, const BlockFacts& facts, std::byte* to) {
    const bool nibbles = facts_of(facts.format.code).bits == 4;
    for (std::int32_t j = 0; j < facts.weights; j += nibbles ? 2 : 1) {
        const auto code = [&](std::int32_t at) {
            return static_cast<unsigned>(
                static_cast<std::uint8_t>(numbers.codes[static_cast<std::size_t>(at)]));
        };
        if (nibbles)
            to[j / 2] = static_cast<std::byte>((code(j) & 0xfu) | (code(j + 1) & 0xfu) << 4);
        else
            to[j] = static_cast<std::byte>(code(j));
    }
}

}  // namespace

UnpackedBlocks UnpackedBlocks::unpack(ThreadPool& pool, BlockCode code, const std::byte* blocks,
                                      std::int64_t n, std::int64_t k) {
    const BlockFacts& facts = facts_of(code);
    CHECK(facts.weights > 0 && k % facts.weights == 0, "{} inputs in blocks of {}", k,
          facts.weights);
    const std::int64_t per_row = k / facts.weights;
    const std::int64_t groups = facts.weights / facts.format.group_k;  // of a block
    const std::int64_t code_bytes = facts.format.bytes(facts.weights);
    UnpackedBlocks result;
    result.format_ = facts.format;
    result.n_ = n;
    result.k_ = k;
    result.codes_.resize(static_cast<std::size_t>(n * per_row * code_bytes));
    result.scales_.resize(static_cast<std::size_t>(n * per_row * groups));
    constexpr std::int64_t kBlocksPerTask = 4096;
    const std::int64_t all = n * per_row;
    pool.run((all + kBlocksPerTask - 1) / kBlocksPerTask, [&](std::int64_t task, int) {
        BlockNumbers numbers;
        const std::int64_t end = std::min(all, (task + 1) * kBlocksPerTask);
        for (std::int64_t block = task * kBlocksPerTask; block < end; ++block) {
            unpack_block(code, blocks + block * facts.bytes, numbers);
            store_codes(numbers, facts, result.codes_.data() + block * code_bytes);
            std::copy_n(numbers.scales.begin(), groups, result.scales_.begin() + block * groups);
        }
    });
    return result;
}

WeightSource UnpackedBlocks::source() const {
    return {.data = codes_.data(),
            .format = format_,
            .n = n_,
            .k = k_,
            .row_stride = k_,
            .scales = reinterpret_cast<const std::byte*>(scales_.data()),
            .scale_stride = k_ / format_.group_k};
}

}  // namespace espalier::linalg
