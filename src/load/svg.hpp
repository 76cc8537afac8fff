// SPDX-License-Identifier: Apache-2.0
// Small plots as SVG: axes with round ticks, lines, steps and bars. Colours are classes, so that
// the page's style sheet decides them. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::load {

// For HTML and SVG: < > & " ' become entities.
std::string escaped(std::string_view text);

// Round numbers from 0 to just above `most`, about five of them.
std::vector<double> round_ticks(double most);

struct Point {
    double x, y;
};

class Plot {
  public:
    struct Axis {
        std::string label;
        double most;  // from 0 up to this
    };
    struct Size {
        double width = 480, height = 220;
    };
    // title: what a screen reader says of it.
    Plot(std::string title, Axis x, Axis y) : Plot(std::move(title), x, y, Size()) {}
    Plot(std::string title, Axis x, Axis y, Size size);

    void line(const std::vector<Point>& points, std::string_view style);
    // Goes up and down at the points, level in between.
    void steps(const std::vector<Point>& points, std::string_view style);
    void bar(Point from, Point to, std::string_view style);
    // A dashed line straight up, with a word at its top.
    void mark(double x, std::string_view word);
    std::string text() const;

  private:
    double across(double x) const;
    double up(double y) const;
    void polyline(const std::vector<Point>& points, std::string_view style);

    std::string title_;
    Axis x_, y_;
    Size size_;
    std::string shapes_;
};

}  // namespace espalier::load
