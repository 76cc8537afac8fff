// SPDX-License-Identifier: Apache-2.0
// Fills a panel, or the part of it that one source supplies. Used by packed.cpp only.
#pragma once

#include "linalg/packed.hpp"

namespace espalier::linalg {

// Outputs [first_n, first_n + lanes) of a source fill lanes [lane, lane + lanes) of a panel.
struct PanelRun {
    const WeightSource* source = nullptr;
    std::int64_t first_n = 0;
    std::int64_t lane = 0;
    std::int64_t lanes = 0;
};

// All k of the run; padding is left alone.
void pack_panel_run(const PanelRun& run, std::byte* panel);
// True if one of its weights is e4m3's NaN, which products do not widen.
bool holds_nan_code(const PanelRun& run);

}  // namespace espalier::linalg
