// SPDX-License-Identifier: Apache-2.0
#include "linalg/round_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/check.hpp"

namespace espalier::linalg {
namespace {

// One group: its scale, and its codes in two's complement.
Bf16 round_group(std::span<const float> values, int lowest, std::span<int> codes) {
    float largest = 0.0f;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    const Bf16 stored = to_bf16(largest / (static_cast<float>(-lowest) - 0.5f));
    const float scale = to_float(stored);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const float code = scale > 0.0f ? std::nearbyint(values[i] / scale) : 0.0f;
        codes[i] = static_cast<int>(
            std::clamp(code, static_cast<float>(lowest), static_cast<float>(-lowest - 1)));
    }
    return stored;
}

}  // namespace

void widen_output(const WeightSource& source, std::int64_t n, float* to) {
    const WeightFormat packed = packed_format(source.format);
    const auto offset =
        static_cast<float>(source.offset_codes ? 1 << (facts_of(source.format.code).bits - 1) : 0);
    const bool wraps = source.offset_codes;  // a code plus half its range, read as two's complement
    float scale = 1.0f;
    for (std::int64_t k = 0; k < source.k; ++k) {
        const std::int64_t at =
            source.transposed ? k * source.row_stride + n : n * source.row_stride + k;
        if (packed.scaled() && k % packed.group_k == 0)
            scale = scale_of(source, n, k / packed.group_k);
        float code = load_weight(source.data, source.format.code, at);
        if (wraps) code += code < 0 ? offset : -offset;
        to[k] = packed.scaled() ? code * scale : code;
    }
}

RoundedWeight RoundedWeight::round(ThreadPool& pool, const WeightSource& source, WeightCode code) {
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
    const int lowest = four ? -8 : -128;
    pool.run(source.n, [&](std::int64_t n, int) {
        std::vector<float> values(static_cast<std::size_t>(source.k));
        widen_output(source, n, values.data());
        std::byte* row = made.codes_.data() + n * row_bytes;
        for (std::int64_t group = 0; group < groups; ++group) {
            const std::int64_t first = group * kRoundedGroup;
            const auto count = static_cast<std::size_t>(std::min(kRoundedGroup, source.k - first));
            int codes[kRoundedGroup] = {};
            const Bf16 scale =
                round_group(std::span(values).subspan(static_cast<std::size_t>(first), count),
                            lowest, std::span(codes).first(count));
            std::memcpy(made.scales_.data() + (n * groups + group) * 2, &scale, sizeof(scale));
            for (std::size_t i = 0; i < count; ++i) {
                const std::int64_t k = first + static_cast<std::int64_t>(i);
                if (four)
                    row[k / 2] |= static_cast<std::byte>((codes[i] + 8) << (k % 2 * 4));
                else
                    row[k] = static_cast<std::byte>(codes[i]);
            }
        }
    });
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
