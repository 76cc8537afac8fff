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
    std::int64_t scale = n * w.scale_groups();
    std::int64_t scale_step = 1;  // from group to group
    if (w.layout == WeightLayout::panels) {
        const PackedView panels(w);
        const std::int64_t lane = n % kPanel;
        place = n / kPanel * panels.k_padded() * kPanel + place_in_panel(w.format.code, k, lane);
        scale = n / kPanel * w.scale_groups() * kPanel + lane;
        scale_step = kPanel;
    }
    const double value = load_weight(matrix.data, w.format.code, place);
    if (!w.format.scaled()) return value;
    return value * double{load_element(matrix.scales, dtype_of(w.format.scale),
                                       scale + k / w.format.group_k * scale_step)};
}

}  // namespace espalier::linalg
