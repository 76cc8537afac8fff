// SPDX-License-Identifier: Apache-2.0
// WeightLayout::panels: the one packed layout that every CPU variant reads, for any number of rows.
//
// A matrix W [n, k] (y = x · Wᵀ) is cut into panels of 16 outputs; the last panel is padded with
// zeros, and so is an odd k. Inside a panel, k runs slowest:
//   f32 inputs (f32, f16)      [panel][k][16]
//   bf16 inputs (bf16, e4m3)   [panel][k/2][16][2]   pairs of k side by side, as vdpbf16ps wants
// Scales are f32 [panel][groups of k][16]: one per output and group.
// `count` matrices of one shape lie one after another (heads, experts).
#pragma once

#include <cstdint>

#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

inline constexpr std::int64_t kPanel = 16;  // outputs per panel

// Whether pairs of k lie side by side.
constexpr bool paired(WeightCode code) { return facts_of(code).input == DType::bf16; }

// The arithmetic of the layout over a view of it.
struct PackedView : WeightView {
    explicit PackedView(const WeightView& view) : WeightView(view) {
        CHECK(layout == WeightLayout::panels, "weights laid out as {}, wanted are {}",
              name_of(layout), name_of(WeightLayout::panels));
    }

    std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
    std::int64_t k_padded() const { return paired(format.code) ? (k + 1) / 2 * 2 : k; }
    std::int64_t panel_bytes() const { return format.bytes(k_padded() * kPanel); }
    const float* panel_scales() const { return reinterpret_cast<const float*>(scales); }
    PackedView at(std::int64_t index) const { return PackedView(WeightView::at(index)); }
};

// Packs on the device's pool, into its memory. FP8 joined with FP8 keeps each source's own scales.
Expected<Weight> pack_panels(CpuDevice& device, WeightStack stack);

}  // namespace espalier::linalg
