// SPDX-License-Identifier: Apache-2.0
#include "linalg/unpacked_blocks.hpp"

#include <algorithm>

#include "base/at.hpp"
#include "base/check.hpp"

namespace espalier::linalg {
namespace {

bool has_nibbles(const WeightFormat& format) { return facts_of(format.code).bits == 4; }

// Offset that is taken off a code.
int offset_of(const WeightFormat& format) {
    return format.zero_points && has_nibbles(format) ? 8 : 0;
}

// Codes of one block, two to a byte where they have four bits.
void store_codes(const BlockNumbers& numbers, const BlockFacts& facts, std::byte* to) {
    const bool nibbles = has_nibbles(facts.format);
    const int offset = offset_of(facts.format);
    for (std::int32_t j = 0; j < facts.weights; j += nibbles ? 2 : 1) {
        const auto code = [&](std::int32_t at) {
            return static_cast<unsigned>(numbers.codes[static_cast<std::size_t>(at)] - offset);
        };
        if (nibbles)
            to[j / 2] = static_cast<std::byte>((code(j) & 0xfu) | (code(j + 1) & 0xfu) << 4);
        else
            to[j] = static_cast<std::byte>(code(j) & 0xffu);
    }
}

}  // namespace

UnpackedBlocks UnpackedBlocks::unpack(ThreadPool& pool, BlockCode code, const std::byte* blocks,
                                      std::int64_t n, std::int64_t k, const Part& some) {
    const BlockFacts& facts = facts_of(code);
    CHECK(facts.weights > 0 && k % facts.weights == 0, "{} inputs in blocks of {}", k,
          facts.weights);
    const std::int64_t row_blocks = k / facts.weights;
    const std::int64_t first = some.first / facts.weights;
    const std::int64_t per_row = divide_up(some.first + some.count, facts.weights) - first;
    const std::int64_t groups = facts.weights / facts.format.group_k;  // of a block
    const std::int64_t code_bytes = facts.format.bytes(facts.weights);
    UnpackedBlocks result;
    result.format_ = facts.format;
    result.n_ = n;
    result.k_ = per_row * facts.weights;
    result.some_ = {some.first - first * facts.weights, some.count};
    result.codes_.resize(static_cast<std::size_t>(n * per_row * code_bytes));
    result.scales_.resize(static_cast<std::size_t>(n * per_row * groups));
    if (facts.format.zero_points) result.zeros_.resize(result.scales_.size());
    const auto offset = static_cast<float>(offset_of(facts.format));
    constexpr std::int64_t kBlocksPerTask = 4096;
    const std::int64_t all = n * per_row;
    pool.run((all + kBlocksPerTask - 1) / kBlocksPerTask, [&](std::int64_t task, int) {
        BlockNumbers numbers;
        const std::int64_t end = std::min(all, (task + 1) * kBlocksPerTask);
        for (std::int64_t block = task * kBlocksPerTask; block < end; ++block) {
            const std::int64_t from = block / per_row * row_blocks + first + block % per_row;
            unpack_block(code, blocks + from * facts.bytes, numbers);
            store_codes(numbers, facts, result.codes_.data() + block * code_bytes);
            std::copy_n(numbers.scales.begin(), groups, result.scales_.begin() + block * groups);
            if (!facts.format.zero_points) continue;
            for (std::int64_t group = 0; group < groups; ++group)
                at(result.zeros_, block * groups + group) =
                    at(numbers.zeros, group) + offset * at(numbers.scales, group);
        }
    });
    return result;
}

WeightSource UnpackedBlocks::source() const {
    return {.data = codes_.data() + format_.bytes(some_.first),
            .format = format_,
            .n = n_,
            .k = some_.count,
            .row_stride = k_,
            .scales = reinterpret_cast<const std::byte*>(scales_.data()),
            .scale_stride = k_ / format_.group_k,
            .first_col = some_.first,
            .zeros = reinterpret_cast<const std::byte*>(zeros_.data())};
}

}  // namespace espalier::linalg
