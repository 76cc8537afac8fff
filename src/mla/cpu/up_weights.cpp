// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/up_weights.hpp"

#include <array>
#include <utility>

namespace espalier::mla::cpu {
namespace {

// Codes of one byte whose numbers are all bf16 numbers.
template <WeightCode kCode>
void widen_to_bf16([[maybe_unused]] const std::byte* from, [[maybe_unused]] std::int64_t count,
                   [[maybe_unused]] std::byte* to) {
    if constexpr (facts_of(kCode).bits == 8) {
        static const auto kTable = [] {
            std::array<std::uint16_t, 256> table{};
            for (unsigned code = 0; code < 256; ++code) {
                const auto byte = static_cast<std::byte>(code);
                table[code] = to_bf16(load_weight(&byte, kCode, 0)).bits;
            }
            return table;
        }();
        auto* out = reinterpret_cast<std::uint16_t*>(to);
        for (std::int64_t i = 0; i < count; ++i)
            out[i] = kTable[static_cast<std::uint8_t>(from[i])];
    } else {
        CHECK(false, "{} does not widen to bf16", name_of(kCode));
    }
}

// To f32 panels [k][16], times their scales.
template <WeightCode kCode>
void widen_to_f32(const std::byte* from, const float* scales, std::int64_t group,
                  std::int64_t panels, std::int64_t inputs, std::byte* to) {
    auto* out = reinterpret_cast<float*>(to);
    for (std::int64_t panel = 0; panel < panels; ++panel)
        for (std::int64_t k = 0; k < inputs; ++k)
            for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                const std::int64_t inside = linalg::place_in_panel(kCode, k, lane);
                const float value = load_weight(from, kCode, panel * inputs * kLanes + inside);
                out[(panel * inputs + k) * kLanes + lane] =
                    scales == nullptr
                        ? value
                        : value * scales[(panel * (inputs / group) + k / group) * kLanes + lane];
            }
}

struct Wideners {
    void (*to_bf16)(const std::byte* from, std::int64_t count, std::byte* to);
    void (*to_f32)(const std::byte* from, const float* scales, std::int64_t group,
                   std::int64_t panels, std::int64_t inputs, std::byte* to);
};

template <std::size_t... kCode>
constexpr auto wideners_by_code(std::index_sequence<kCode...>) {
    return std::array{Wideners{widen_to_bf16<static_cast<WeightCode>(kCode)>,
                               widen_to_f32<static_cast<WeightCode>(kCode)>}...};
}
constexpr auto kWideners = wideners_by_code(std::make_index_sequence<kCodes.size()>());

}  // namespace

bool multiplies(const TileKernels& kernels, const WeightFormat& format) {
    if (!kernels.bf16_elements) return true;
    return format.input() == DType::bf16 && (!format.scaled() || format.group_k == kUpScaleGroup);
}

UpWeights prepare_up_weights(const TileKernels& kernels, const linalg::WeightView& weights,
                             std::int64_t head, std::byte* scratch) {
    const linalg::PackedView matrix = linalg::PackedView(weights).at(head);
    const WeightCode code = matrix.format.code;
    const Wideners& wideners = kWideners[static_cast<std::size_t>(code)];
    const int panels = static_cast<int>(weights.n / kLanes);
    if (code == (kernels.bf16_elements ? WeightCode::bf16 : WeightCode::f32))
        return {matrix.data, panels, nullptr};
    if (kernels.bf16_elements) {
        wideners.to_bf16(matrix.data, weights.n * weights.k, scratch);
        return {scratch, panels, matrix.f32_scales()};
    }
    wideners.to_f32(matrix.data, matrix.f32_scales(), matrix.format.group_k, panels, weights.k,
                    scratch);
    return {scratch, panels, nullptr};
}

}  // namespace espalier::mla::cpu
