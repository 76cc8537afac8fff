// SPDX-License-Identifier: Apache-2.0
// Tile folds for any processor: arrays of 16 floats, left to the compiler.
#include <bit>
#include <cstring>

#include "base/numeric.hpp"
#include "mla/cpu/tile_kernels.hpp"

namespace espalier::mla::cpu {
namespace {

struct Vector {
    float lane[kLanes];

    static constexpr int kScoreKeys = 1;
    static constexpr int kOutLanes = 1;
    static constexpr int kOutVectors = 1;

    static Vector set(float value) {
        Vector result;
        for (float& x : result.lane) x = value;
        return result;
    }
    static Vector zero() { return set(0.0f); }
    static Vector load(const float* from) {
        Vector result;
        std::memcpy(result.lane, from, sizeof(result.lane));
        return result;
    }
    void store(float* to) const { std::memcpy(to, lane, sizeof(lane)); }
    void store_bf16(std::byte* to) const {
        for (int i = 0; i < kLanes; ++i) {
            const Bf16 narrow = to_bf16(lane[i]);
            std::memcpy(to + i * 2, &narrow, 2);
        }
    }
    void store_fp16(std::byte* to) const {
        for (int i = 0; i < kLanes; ++i) {
            const Fp16 narrow = to_fp16(lane[i]);
            std::memcpy(to + i * 2, &narrow, 2);
        }
    }

    template <typename Op>
    static Vector each(const Op& op) {
        Vector result;
        for (int i = 0; i < kLanes; ++i) result.lane[i] = op(i);
        return result;
    }
    static Vector add(const Vector& a, const Vector& b) {
        return each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Vector sub(const Vector& a, const Vector& b) {
        return each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static Vector mul(const Vector& a, const Vector& b) {
        return each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Vector fma(const Vector& a, const Vector& b, const Vector& c) {
        return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
    }
    static Vector max(const Vector& a, const Vector& b) {
        return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Vector if_below(const Vector& x, const Vector& limit, const Vector& yes,
                           const Vector& no) {
        return each([&](int i) { return x.lane[i] < limit.lane[i] ? yes.lane[i] : no.lane[i]; });
    }
    // p · 2^n with n in the low bits of `shifted`.
    static Vector times_power(const Vector& p, const Vector& shifted) {
        return each([&](int i) {
            const auto bits = std::bit_cast<std::uint32_t>(shifted.lane[i]);
            return p.lane[i] * std::bit_cast<float>((bits << 23) + 0x3f800000u);
        });
    }
};

template <typename T>
void widen(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * 2, 2);
        to[i] = to_float(value);
    }
}
constexpr auto widen_bf16 = widen<Bf16>;
constexpr auto widen_fp16 = widen<Fp16>;

struct E4m3Table {
    float value[256];
};
constexpr E4m3Table make_e4m3_table() {
    E4m3Table table{};
    for (unsigned code = 0; code < 256; ++code)
        table.value[code] = to_float(E4m3{static_cast<std::uint8_t>(code)});
    return table;
}

void widen_e4m3(const std::byte* from, float scale, std::byte* to, std::int64_t count) {
    static constexpr E4m3Table kTable = make_e4m3_table();
    auto* out = reinterpret_cast<float*>(to);
    for (std::int64_t i = 0; i < count; ++i)
        out[i] = kTable.value[static_cast<std::uint8_t>(from[i])] * scale;
}

// Each needs those above.
// clang-format off
#include "mla/cpu/softmax_tile.inc"
#include "mla/cpu/f32_tile.inc"
// clang-format on

}  // namespace

constinit const TileKernels kPortableTiles = f32_tiles<Vector>();

}  // namespace espalier::mla::cpu
