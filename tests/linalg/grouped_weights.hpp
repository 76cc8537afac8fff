// SPDX-License-Identifier: Apache-2.0
// Random matrices of integer and 4-bit codes with scales by groups, as checkpoints hold them, for
// the tests of linalg and ops. What a weight is they say on their own, from the codes they drew.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/block_format.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

struct GroupedKind {
    const char* name;
    WeightFormat format;
    bool offset_codes;
};

inline constexpr GroupedKind kGroupedKinds[] = {
    {"int8_32", grouped(WeightCode::int8, 32, ScaleType::bf16), false},
    {"int8_128", grouped(WeightCode::int8, 128, ScaleType::f32), false},
    {"int8_row", grouped(WeightCode::int8, 1 << 20, ScaleType::bf16), false},
    {"int8_packed", grouped(WeightCode::int8, 64, ScaleType::f16), true},
    {"int4_32", grouped(WeightCode::int4, 32, ScaleType::bf16), true},
    {"int4_128", grouped(WeightCode::int4, 128, ScaleType::f16), true},
    {"int4_256", grouped(WeightCode::int4, 256, ScaleType::f32), false},
    {"nvfp4", kNvfp4, false},
};

// Kinds of the CPU's backends alone.
inline constexpr GroupedKind kZeroPointKinds[] = {
    {"int8_zero", with_zero_points(grouped(WeightCode::int8, 32, ScaleType::f32)), false},
    {"int4_zero", with_zero_points(grouped(WeightCode::int4, 32, ScaleType::f32)), true},
    {"int4_zero_128", with_zero_points(grouped(WeightCode::int4, 128, ScaleType::f32)), false},
};

inline std::vector<GroupedKind> cpu_kinds() {
    std::vector<GroupedKind> all(std::begin(kGroupedKinds), std::end(kGroupedKinds));
    all.insert(all.end(), std::begin(kZeroPointKinds), std::end(kZeroPointKinds));
    return all;
}

// [n, k] with rows padded to eight weights and an odd byte before the first.
class GroupedTensor {
  public:
    GroupedTensor(const GroupedKind& kind, std::int64_t n, std::int64_t k, std::uint32_t seed)
        : kind_(kind), n_(n), k_(k), stride_((k + 7) / 8 * 8) {
        std::mt19937 engine(seed);
        const bool four = facts_of(kind.format.code).bits == 4;
        const int half = four ? 8 : 128;
        std::uniform_int_distribution<int> any(-half, half - 1);
        bytes_.resize(static_cast<std::size_t>(kind.format.bytes(n * stride_)) + 1);
        numbers_.resize(static_cast<std::size_t>(n * k));
        for (std::int64_t row = 0; row < n; ++row)
            for (std::int64_t col = 0; col < k; ++col) set(row, col, any(engine));
        groups_ = (k + kind.format.group_k - 1) / kind.format.group_k;
        std::uniform_real_distribution<float> scale(0.01f, 0.1f);
        const DType type = dtype_of(kind.format.scale);
        scale_bytes_.resize(static_cast<std::size_t>(n * groups_) * bytes_of(type));
        if (kind.format.tensor_scale) tensor_scale_ = 0.37f;
        for (std::int64_t i = 0; i < n * groups_; ++i) {
            const float sign = engine() % 2 == 0 ? 1.0f : -1.0f;
            store_element(scale_bytes_.data(), type, i, sign * scale(engine));
            scales_.push_back(load_element(scale_bytes_.data(), type, i) * tensor_scale_);
        }
        if (!kind.format.zero_points) return;
        std::uniform_real_distribution<float> zero(-2.0f, 2.0f);
        for (std::int64_t i = 0; i < n * groups_; ++i) zeros_.push_back(zero(engine));
    }

    // code: in two's complement, of all 16 or 256.
    void set(std::int64_t row, std::int64_t col, int code) {
        constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const bool four = facts_of(kind_.format.code).bits == 4;
        const int half = four ? 8 : 128;
        const auto bits = static_cast<unsigned>(kind_.offset_codes ? code + half : code) &
                          static_cast<unsigned>(2 * half - 1);
        const std::int64_t at = row * stride_ + col;
        if (four) {
            std::byte& byte = bytes_[static_cast<std::size_t>(1 + at / 2)];
            const unsigned shift = at % 2 == 0 ? 0 : 4;
            byte = (byte & static_cast<std::byte>(~(0xfu << shift))) |
                   static_cast<std::byte>(bits << shift);
        } else {
            bytes_[static_cast<std::size_t>(1 + at)] = static_cast<std::byte>(bits);
        }
        float number = static_cast<float>(code);
        if (kind_.format.code == WeightCode::e2m1)
            number = kMagnitudes[bits % 8] * (bits >= 8 ? -1.0f : 1.0f);
        numbers_[static_cast<std::size_t>(row * k_ + col)] = number;
    }

    float code(std::int64_t row, std::int64_t col) const {
        return numbers_[static_cast<std::size_t>(row * k_ + col)];
    }
    float scale(std::int64_t row, std::int64_t col) const {
        return scales_[static_cast<std::size_t>(row * groups_ + col / kind_.format.group_k)];
    }
    // 0 where the format has none.
    float zero(std::int64_t row, std::int64_t col) const {
        if (zeros_.empty()) return 0.0f;
        return zeros_[static_cast<std::size_t>(row * groups_ + col / kind_.format.group_k)];
    }
    std::vector<float>& zeros() { return zeros_; }
    std::vector<std::byte>& scale_bytes() { return scale_bytes_; }

    // Rows [first, first + count).
    WeightSource rows(std::int64_t first, std::int64_t count) const {
        WeightSource source;
        source.data = bytes_.data() + 1 + kind_.format.bytes(first * stride_);
        source.format = kind_.format;
        source.n = count;
        source.k = k_;
        source.row_stride = stride_;
        source.scales = scale_bytes_.data();
        source.scale_stride = groups_;
        source.first_row = first;
        source.tensor_scale = tensor_scale_;
        if (!zeros_.empty()) source.zeros = reinterpret_cast<const std::byte*>(zeros_.data());
        source.offset_codes = kind_.offset_codes;
        return source;
    }
    WeightSource view() const { return rows(0, n_); }

  private:
    GroupedKind kind_;
    std::int64_t n_, k_, stride_;
    std::int64_t groups_ = 0;
    float tensor_scale_ = 1.0f;
    std::vector<std::byte> bytes_, scale_bytes_;
    std::vector<float> numbers_, scales_, zeros_;
};

}  // namespace espalier::linalg
