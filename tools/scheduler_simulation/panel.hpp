// SPDX-License-Identifier: Apache-2.0
// One panel of a figure, as SVG text: stacked areas or lines over a shared axis of time.
#pragma once

#include <string>
#include <vector>

namespace espalier::simulation {

struct Series {
    std::string name;
    std::string color;
    std::vector<double> values;  // one per bucket of time; NaN: none
};

struct Panel {
    std::string title;
    std::string unit;     // of the values
    bool stacked = true;  // areas on top of each other; otherwise lines
    bool logarithmic = false;
    double top = 0;  // largest value shown; 0: found from the data
    std::vector<Series> series;
};

// All panels below each other, with the axis of time below the last one.
std::string draw_figure(const std::string& title, double minutes, const std::vector<Panel>& panels);

}  // namespace espalier::simulation
