// SPDX-License-Identifier: Apache-2.0
#include "linalg/shifted_weights.hpp"

#include <algorithm>
#include <cstring>

#include "base/at.hpp"
#include "base/check.hpp"

namespace espalier::linalg {
namespace {

using Layout = ShiftedSource::Layout;

std::uint32_t word_at(const std::byte* words, std::int64_t index) {
    std::uint32_t word;
    std::memcpy(&word, words + index * 4, sizeof(word));
    return word;
}

std::int64_t groups_of(const ShiftedSource& from) {
    return (from.k + from.format.group_k - 1) / from.format.group_k;
}

int bits_of(const ShiftedSource& from) { return facts_of(from.format.code).bits; }

// The zero point of an output and group, as a code of no sign.
std::int32_t zero_point(const ShiftedSource& from, std::int64_t n, std::int64_t group) {
    const std::int64_t groups = groups_of(from);
    if (from.layout == Layout::bytes)
        return static_cast<std::int8_t>(from.zeros[n * groups + group]) + 128;
    if (from.layout == Layout::awq)
        return static_cast<std::int32_t>(
            word_at(from.zeros, group * (from.n / 8) + n / 8) >> awq_shift(n) & 0xfu);
    const int bits = bits_of(from);
    const std::int64_t per_word = 32 / bits;
    const std::uint32_t word = word_at(from.zeros, n / per_word * groups + group);
    const auto shift = static_cast<unsigned>(n % per_word * bits);
    return static_cast<std::int32_t>(word >> shift & ((1u << bits) - 1));
}

// Eight codes of each of 16 words, of one pair of inputs after the other.
void take_columns(const ShiftedSource& from, std::int64_t first, std::int64_t end,
                  std::byte* codes) {
    const std::int64_t words = from.n / 8, row_bytes = (from.k + 1) / 2;
    for (std::int64_t k = 0; k < from.k; ++k)
        for (std::int64_t column = first; column < end; ++column) {
            const std::uint32_t word = word_at(from.codes, k * words + column) ^ 0x88888888u;
            for (std::int64_t output = 0; output < 8; ++output) {
                const auto code = static_cast<std::byte>(word >> awq_shift(output) & 0xfu);
                std::byte& to = codes[(column * 8 + output) * row_bytes + k / 2];
                to = k % 2 == 0 ? code : to | code << 4;
            }
        }
}

}  // namespace

ShiftedWeights ShiftedWeights::make(ThreadPool& pool, const ShiftedSource& from) {
    const bool awq = from.layout == Layout::awq;
    CHECK(from.format.zero_points && from.format.scale == ScaleType::f32 &&
              (!awq || (from.n % 8 == 0 && bits_of(from) == 4)),
          "{} weights [{}, {}]", name_of(from.format.code), from.n, from.k);
    ShiftedWeights made;
    made.from_ = from;
    const std::int64_t groups = groups_of(from);
    made.scales_.resize(static_cast<std::size_t>(from.n * groups));
    made.zeros_.resize(made.scales_.size());
    if (awq) made.codes_.resize(static_cast<std::size_t>(from.n * ((from.k + 1) / 2)));
    const std::int32_t half = 1 << (bits_of(from) - 1);
    constexpr std::int64_t kOutputs = 128;  // a line of words
    pool.run((from.n + kOutputs - 1) / kOutputs, [&](std::int64_t task, int) {
        const std::int64_t first = task * kOutputs, end = std::min(from.n, first + kOutputs);
        for (std::int64_t n = first; n < end; ++n)
            for (std::int64_t group = 0; group < groups; ++group) {
                const float scale = load_element(from.scales, from.scale_type,
                                                 awq ? group * from.n + n : n * groups + group);
                at(made.scales_, n * groups + group) = scale;
                at(made.zeros_, n * groups + group) =
                    static_cast<float>(half - zero_point(from, n, group)) * scale;
            }
        if (awq) take_columns(from, first / 8, end / 8, made.codes_.data());
    });
    return made;
}

WeightSource ShiftedWeights::source() const {
    const bool awq = from_.layout == Layout::awq;
    WeightSource source;
    source.data = awq ? codes_.data() : from_.codes;
    source.format = from_.format;
    source.n = from_.n;
    source.k = from_.k;
    source.row_stride = awq ? (from_.k + 1) / 2 * 2 : from_.row_stride;
    source.scales = reinterpret_cast<const std::byte*>(scales_.data());
    source.scale_stride = groups_of(from_);
    source.zeros = reinterpret_cast<const std::byte*>(zeros_.data());
    source.offset_codes = from_.layout == Layout::packed;
    return source;
}

}  // namespace espalier::linalg
