// SPDX-License-Identifier: Apache-2.0
// What bench engine reports of a run: a figure is one entry of one list.
#pragma once

#include <span>
#include <vector>

#include "cli/engine_load.hpp"

namespace espalier::cli {

struct Figure {
    const char* name;
    int decimals;
    double (*of)(const LoadResult&);
};

std::span<const Figure> engine_figures();
double output_rate(const LoadResult& result);  // tokens per second: what drafts are compared by

double median(std::vector<double> values);
// Nearest rank, of ascending values; 0 of none.
double percentile(std::span<const double> sorted, double share);

}  // namespace espalier::cli
