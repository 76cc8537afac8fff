// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/up_weights.hpp"

#include <array>
#include <cstring>

namespace espalier::mla::cpu {
namespace {

constexpr std::int64_t kInputs = 512;

template <typename T>
T load(const std::byte* data, std::int64_t index) {
    T value;
    std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
}

// Every e4m3 number is a bf16 number.
constexpr std::array<std::uint16_t, 256> bf16_of_e4m3() {
    std::array<std::uint16_t, 256> table{};
    for (unsigned code = 0; code < 256; ++code)
        table[code] = to_bf16(to_float(E4m3{static_cast<std::uint8_t>(code)})).bits;
    return table;
}

void widen_to_bf16(const std::byte* from, std::byte* to) {
    static constexpr std::array<std::uint16_t, 256> kTable = bf16_of_e4m3();
    auto* out = reinterpret_cast<std::uint16_t*>(to);
    for (std::int64_t i = 0; i < kUpWeights; ++i)
        out[i] = kTable[static_cast<std::uint8_t>(from[i])];
}

// f32 panels are [k][16]; bf16 and e4m3 keep pairs of k side by side.
template <typename T>
void widen_to_f32(const std::byte* from, const float* scales, std::byte* to) {
    constexpr bool kPairs = sizeof(T) == 1 || std::is_same_v<T, Bf16>;
    auto* out = reinterpret_cast<float*>(to);
    for (std::int64_t panel = 0; panel < kUpWeights / kInputs / kLanes; ++panel)
        for (std::int64_t k = 0; k < kInputs; ++k)
            for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                const std::int64_t inside =
                    kPairs ? (k / 2 * kLanes + lane) * 2 + k % 2 : k * kLanes + lane;
                const float value = to_float(load<T>(from, panel * kInputs * kLanes + inside));
                const std::int64_t block =
                    panel * (kInputs / linalg::kScaleBlock) + k / linalg::kScaleBlock;
                out[(panel * kInputs + k) * kLanes + lane] =
                    scales == nullptr ? value : value * scales[block * kLanes + lane];
            }
}

}  // namespace

bool multiplies(const TileKernels& kernels, DType weight) {
    return !kernels.bf16_elements || weight == DType::bf16 || weight == DType::e4m3;
}

UpWeights prepare_up_weights(const TileKernels& kernels, const linalg::PackedView& weights,
                             std::int64_t head, std::byte* scratch) {
    const std::byte* panels = weights.data + head * weights.panels() * weights.panel_bytes();
    const float* scales =
        weights.dtype == DType::e4m3
            ? weights.scales + head * weights.panels() * weights.scale_blocks() * kLanes
            : nullptr;
    if (kernels.bf16_elements) {
        if (weights.dtype == DType::bf16) return {panels, nullptr};
        widen_to_bf16(panels, scratch);
        return {scratch, scales};
    }
    switch (weights.dtype) {
        case DType::f32:
            return {panels, nullptr};
        case DType::f16:
            widen_to_f32<Fp16>(panels, nullptr, scratch);
            break;
        case DType::bf16:
            widen_to_f32<Bf16>(panels, nullptr, scratch);
            break;
        case DType::e4m3:
            widen_to_f32<E4m3>(panels, scales, scratch);
            break;
    }
    return {scratch, nullptr};
}

}  // namespace espalier::mla::cpu
