// SPDX-License-Identifier: Apache-2.0
// WeightLayout::panels: the one packed layout that every CPU variant reads, for any number of rows.
//
// A matrix W [n, k] (y = x · Wᵀ) is cut into panels of 16 outputs; the last panel is padded with
// zeros, and so is an odd k. Inside a panel, k runs slowest:
//   f32 inputs (f32, f16)      [panel][k][16]
//   bf16 inputs (bf16, e4m3, int8)   [panel][k/2][16][2]   pairs of k side by side, as vdpbf16ps
//   wants
//   4-bit codes (int4, e2m1)   [panel][k/8][16] words of eight codes: k 0, 2, 4, 6 in the low half,
//   k 1, 3, 5, 7 in the high one, so that one shift brings a pair to the bottom of both halves; k
//   is padded to eight
// Scales are f32 or bf16 [panel][groups of k][16]: one per output and group. With zero points they
// are f32 [panel][groups of k][2][16]: the scales, then the zero points.
// `count` matrices of one shape lie one after another (heads, experts).
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

inline constexpr std::int64_t kPanel = 16;  // outputs per panel
// Version of the layout in packed files: counts up whenever a weight's place changes.
inline constexpr int kPanelsVersion = 1;

// True if the weights of inputs k and k + 1 lie side by side, as bf16 products read them.
constexpr bool paired(WeightCode code) { return facts_of(code).input == DType::bf16; }

// k is padded to a multiple of this.
constexpr std::int64_t k_unit(WeightCode code) {
    if (facts_of(code).bits == 4) return 8;
    return paired(code) ? 2 : 1;
}

// Index in a panel of the weight of one of its outputs and input k, in weights.
constexpr std::int64_t place_in_panel(WeightCode code, std::int64_t k, std::int64_t lane) {
    if (facts_of(code).bits == 4) return (k / 8 * kPanel + lane) * 8 + k % 2 * 4 + k % 8 / 2;
    return paired(code) ? (k / 2 * kPanel + lane) * 2 + k % 2 : k * kPanel + lane;
}

// The arithmetic of the layout over a view of it.
struct PackedView : WeightView {
    explicit PackedView(const WeightView& view) : WeightView(view) {
        CHECK(layout == WeightLayout::panels, "weights laid out as {}, wanted are {}",
              name_of(layout), name_of(WeightLayout::panels));
    }

    std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
    std::int64_t k_padded() const {
        const std::int64_t unit = k_unit(format.code);
        return (k + unit - 1) / unit * unit;
    }
    std::int64_t panel_bytes() const { return format.bytes(k_padded() * kPanel); }
    const float* f32_scales() const { return reinterpret_cast<const float*>(scales); }
    // Bytes of the scales of one panel and one group of k.
    std::int64_t group_scale_bytes() const { return kPanel * scale_width(); }
    std::int64_t panel_scale_bytes() const { return scale_groups() * group_scale_bytes(); }
    PackedView at(std::int64_t index) const { return PackedView(WeightView::at(index)); }
};

// Strides and layout for a shape of which format, count, n and k are set; all its sizes, times the
// count too, fit 64 bits.
Expected<WeightView> panels_shape(const WeightView& shape);

// Packs on the device's pool, into its memory. Joined sources keep each its own scales.
Expected<Weight> pack_panels(CpuDevice& device, WeightStack stack);

// Part of a stack of matrices: some of them, of each the same runs of rows, one behind the other,
// and the same run of inputs.
struct StackPart {
    std::vector<std::int64_t> matrices;
    std::vector<Part> rows;
    Part inputs;

    // Format, count, n and k of the part.
    WeightView shape(const WeightView& whole) const;
};
// True if the part's panels are panels of the whole, or runs of their inputs.
bool in_panels(const WeightView& whole, const StackPart& part);
// A copy of the part, which alone is read.
Expected<Weight> copy_panels(Device& device, const WeightView& whole, const StackPart& part);

}  // namespace espalier::linalg
