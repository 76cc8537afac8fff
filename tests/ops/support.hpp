// SPDX-License-Identifier: Apache-2.0
// What the tests of src/ops share: variants of this machine, an arena, numbers that depend on their
// index alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/cpu_device.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {

inline std::vector<CpuVariant> variants() {
    std::vector<CpuVariant> found;
    for (const CpuVariant variant :
         {CpuVariant::portable, CpuVariant::avx2, CpuVariant::avx512, CpuVariant::avx512_bf16})
        if (variant <= best_cpu_variant()) found.push_back(variant);
    return found;
}

inline Arena make_arena(std::size_t bytes) {
    static CpuDevice host(1);
    return Arena(host.allocate(bytes).value());
}

// A value for (stream, row, col), roughly normal, the same in every batch.
inline float value_at(std::uint32_t stream, std::int64_t row, std::int64_t col) {
    const auto word = philox4x32(
        {static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(col), stream, 7u}, 1);
    double sum = 0.0;
    for (const std::uint32_t part : word) sum += part * 0x1p-32 - 0.5;
    return static_cast<float>(sum * std::sqrt(3.0));
}

inline std::vector<float> values(std::uint32_t stream, std::int64_t first_row, std::int64_t rows,
                                 std::int64_t cols) {
    std::vector<float> out;
    out.reserve(static_cast<std::size_t>(rows * cols));
    for (std::int64_t row = first_row; row < first_row + rows; ++row)
        for (std::int64_t col = 0; col < cols; ++col) out.push_back(value_at(stream, row, col));
    return out;
}

template <typename T>
bool same_bits(const T* a, const T* b, std::int64_t count) {
    return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(T)) == 0;
}

// Room for a plan of `tokens`.
struct PlanStore {
    PlanStore(std::int64_t tokens, const RouterRule& rule)
        : expert(static_cast<std::size_t>(tokens * rule.top_k), 77),
          weight(expert.size(), 77.0f),
          indptr(static_cast<std::size_t>(rule.experts) + 1, 77),
          source_token(expert.size(), 77),
          pair_of(expert.size(), 77) {}
    ExpertPlan plan() {
        return {expert.data(), weight.data(), indptr.data(), source_token.data(), pair_of.data()};
    }

    std::vector<std::int32_t> expert;
    std::vector<float> weight;
    std::vector<std::int32_t> indptr, source_token, pair_of;
};

}  // namespace espalier::ops
