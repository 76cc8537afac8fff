// SPDX-License-Identifier: Apache-2.0
#include "linalg/round_weights.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.hpp"
#include "linalg/e4m3_table.hpp"

namespace espalier::linalg {
namespace {

constexpr std::size_t kGroup = kRoundedGroup;
using Group = std::array<float, kGroup>;  // a row's last one ends with zeros
using Codes = std::array<int, kGroup>;    // in two's complement

// Passes over a group run as eight chains without a branch, of which compilers make vectors: a
// scale that is tried costs 0.5 ns a weight (SSE2).
constexpr std::size_t kChains = 8;
using Chains = std::array<float, kChains>;

template <typename Step>
void for_chains(const Group& values, Step step) {
    for (std::size_t first = 0; first < kGroup; first += kChains)
        for (std::size_t i = 0; i < kChains; ++i) step(i, first + i, values[first + i]);
}

float sum_of(const Chains& chains) { return std::accumulate(chains.begin(), chains.end(), 0.0f); }

// The number of the largest magnitude; NaN if one is not finite.
float extreme_of(const Group& values) {
    Chains low{}, high{}, poison{};
    for_chains(values, [&](std::size_t i, std::size_t, float value) {
        low[i] = std::min(low[i], value);
        high[i] = std::max(high[i], value);
        poison[i] += value * 0.0f;
    });
    const float lowest = *std::min_element(low.begin(), low.end());
    const float highest = *std::max_element(high.begin(), high.end());
    return (highest > -lowest ? highest : lowest) + sum_of(poison);
}

// Numbers to codes in units of a scale.
struct Rounding {
    float scale, inverse;
    float lowest, highest;  // code

    Rounding(float step, WeightCode code)
        : scale(step),
          inverse(1.0f / step),
          lowest(code == WeightCode::int4 ? -8.0f : -128.0f),
          highest(-1.0f - lowest) {}
    // A whole number: kWhole, added and taken away, leaves the nearest, ties to even.
    float operator()(float value) const {
        constexpr float kWhole = 0x1.8p23f;
        return (std::min(std::max(value * inverse, lowest), highest) + kWhole) - kWhole;
    }
};

float squared_error(const Group& values, const Rounding& rounding) {
    Chains error{};
    for_chains(values, [&](std::size_t i, std::size_t, float value) {
        const float difference = value - rounding(value) * rounding.scale;
        error[i] += difference * difference;
    });
    return sum_of(error);
}

// For the codes that this rounding gives, the scale whose squared error is the least.
float least_squares_scale(const Group& values, const Rounding& rounding) {
    Chains cross{}, square{};
    for_chains(values, [&](std::size_t i, std::size_t, float value) {
        const float code = rounding(value);
        cross[i] += value * code;
        square[i] += code * code;
    });
    return sum_of(cross) / sum_of(square);
}

// Of the scales tried, the first with the least squared error: no group is worse than by the
// symmetric scale. Where squares overflow or vanish, it is that one.
Rounding best_int4(const Group& values, float extreme) {
    const auto rounding = [](float scale) {
        return Rounding(to_float(to_bf16(scale)), WeightCode::int4);
    };
    Rounding best = rounding(std::abs(extreme) / 7.5f);
    float least = squared_error(values, best);
    const auto consider = [&](float scale) {
        const Rounding tried = rounding(scale);
        const float error = squared_error(values, tried);
        if (!(error < least)) return;
        best = tried;
        least = error;
    };
    for (const float divisor : {-7.0f, -8.0f, -8.5f, -9.0f}) consider(extreme / divisor);
    consider(least_squares_scale(values, best));
    return best;
}

// The scale of a group, and its codes.
Bf16 round_group(const Group& values, float extreme, WeightCode code, Codes& codes) {
    codes = {};
    // Smaller, and the inverse of a scale would not be finite.
    if (std::abs(extreme) < 0x1p-120f) return to_bf16(0.0f);
    const Rounding rounding =
        code == WeightCode::int4
            ? best_int4(values, extreme)
            : Rounding(to_float(to_bf16(std::abs(extreme) / 127.5f)), WeightCode::int8);
    for_chains(values, [&](std::size_t, std::size_t k, float value) {
        codes[k] = static_cast<int>(rounding(value));
    });
    return to_bf16(rounding.scale);
}

// `count` codes of a group to where they lie in a file.
void store_codes(const Codes& codes, std::int64_t count, WeightCode code, std::byte* to) {
    const auto end = static_cast<std::size_t>(count);
    if (code == WeightCode::int8) {
        for (std::size_t i = 0; i < end; ++i) to[i] = static_cast<std::byte>(codes[i]);
        return;
    }
    for (std::size_t i = 0; i < end; i += 2) {
        const int second = i + 1 < end ? codes[i + 1] + 8 : 0;
        to[i / 2] = static_cast<std::byte>(codes[i] + 8 + 16 * second);
    }
}

}  // namespace

void widen_output(const WeightSource& source, std::int64_t n, float* to) {
    const WeightFormat packed = packed_format(source.format);
    const auto offset =
        static_cast<float>(source.offset_codes ? 1 << (facts_of(source.format.code).bits - 1) : 0);
    const bool wraps = source.offset_codes;  // a code plus half its range, read as two's complement
    const bool e4m3 = source.format.code == WeightCode::e4m3;
    const std::int64_t step = packed.scaled() ? packed.group_k : source.k;
    for (std::int64_t first = 0; first < source.k; first += step) {
        const float scale = packed.scaled() ? scale_of(source, n, first / step) : 1.0f;
        const float zero = packed.zero_points ? zero_of(source, n, first / step) : 0.0f;
        for (std::int64_t k = first; k < std::min(source.k, first + step); ++k) {
            const std::int64_t at =
                source.transposed ? k * source.row_stride + n : n * source.row_stride + k;
            float code = e4m3 ? kE4m3Values[std::to_integer<std::size_t>(source.data[at])]
                              : load_weight(source.data, source.format.code, at);
            if (wraps) code += code < 0 ? offset : -offset;
            to[k] = packed.zero_points ? code * scale + zero : code * scale;
        }
    }
}

Expected<RoundedWeight> RoundedWeight::round(ThreadPool& pool, const WeightSource& source,
                                             WeightCode code) {
    CHECK(code == WeightCode::int8 || code == WeightCode::int4, "rounding to {}", name_of(code));
    RoundedWeight made;
    made.code_ = code;
    made.n_ = source.n;
    made.k_ = source.k;
    const bool four = code == WeightCode::int4;
    made.row_stride_ = four ? (source.k + 7) / 8 * 8 : source.k;
    const std::int64_t row_bytes = four ? made.row_stride_ / 2 : made.row_stride_;
    const std::int64_t groups = (source.k + kRoundedGroup - 1) / kRoundedGroup;
    made.codes_.resize(static_cast<std::size_t>(source.n * row_bytes));
    made.scales_.resize(static_cast<std::size_t>(source.n * groups) * sizeof(Bf16));
    std::atomic<bool> finite = true;
    pool.run(source.n, [&](std::int64_t n, int) {
        std::vector<float> values(static_cast<std::size_t>(groups * kRoundedGroup));
        widen_output(source, n, values.data());
        for (std::int64_t index = 0; index < groups; ++index) {
            const std::int64_t first = index * kRoundedGroup;
            Group group;
            std::copy_n(values.begin() + first, kRoundedGroup, group.begin());
            const float extreme = extreme_of(group);
            if (!std::isfinite(extreme)) {
                finite = false;
                return;
            }
            Codes codes;
            const Bf16 scale = round_group(group, extreme, code, codes);
            std::memcpy(made.scales_.data() + (n * groups + index) * 2, &scale, sizeof(scale));
            store_codes(codes, std::min(kRoundedGroup, source.k - first), code,
                        made.codes_.data() + n * row_bytes + (four ? first / 2 : first));
        }
    });
    if (!finite)
        return fail(ErrorKind::invalid, "weights [{}, {}] with NaN or infinity among them",
                    source.n, source.k);
    return made;
}

WeightSource RoundedWeight::source() const {
    WeightSource source;
    source.data = codes_.data();
    source.format = grouped(code_, kRoundedGroup, ScaleType::bf16);
    source.n = n_;
    source.k = k_;
    source.row_stride = row_stride_;
    source.scales = scales_.data();
    source.scale_stride = (k_ + kRoundedGroup - 1) / kRoundedGroup;
    source.offset_codes = code_ == WeightCode::int4;
    return source;
}

}  // namespace espalier::linalg
