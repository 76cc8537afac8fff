// SPDX-License-Identifier: Apache-2.0
// One number of a packed weight, scale included, from either layout: what oracles read. Inline, so
// that attention's oracle needs no library.
#pragma once

#include "linalg/packed.hpp"

namespace espalier::linalg {

// W[n, k] of one matrix of the stack.
inline double weight_at(const WeightView& w, std::int64_t index, std::int64_t n, std::int64_t k) {
    const WeightView matrix = w.at(index);
    std::int64_t place = n * w.k + k;
    std::int64_t scale = n * w.scale_groups() * w.group_numbers();
    std::int64_t scale_step = w.group_numbers();  // from group to group
    std::int64_t zero_step = 1;                   // from a scale to its zero point
    if (w.layout == WeightLayout::panels) {
        const PackedView panels(w);
        const std::int64_t lane = n % kPanel;
        place = n / kPanel * panels.k_padded() * kPanel + place_in_panel(w.format.code, k, lane);
        scale_step = kPanel * w.group_numbers();
        zero_step = kPanel;
        scale = n / kPanel * w.scale_groups() * scale_step + lane;
    }
    const double value = load_weight(matrix.data, w.format.code, place);
    if (!w.format.scaled()) return value;
    const std::int64_t at = scale + k / w.format.group_k * scale_step;
    const DType type = dtype_of(w.format.scale);
    const double scaled = value * double{load_element(matrix.scales, type, at)};
    if (!w.format.zero_points) return scaled;
    return scaled + double{load_element(matrix.scales, type, at + zero_step)};
}

}  // namespace espalier::linalg
