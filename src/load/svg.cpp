// SPDX-License-Identifier: Apache-2.0
#include "load/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier::load {
namespace {

constexpr double kLeft = 56, kRight = 14, kTop = 18, kBottom = 40;

std::string tick_text(double value) {
    return value >= 10000 ? fmt::format("{:g}k", value / 1000) : fmt::format("{:g}", value);
}

}  // namespace

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '&':
                out += "&amp;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::vector<double> round_ticks(double most) {
    if (!(most > 0) || !std::isfinite(most)) most = 1;
    const double rough = most / 4;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double factor : {1.0, 2.0, 5.0})
        if (factor * power >= rough * (1 - 1e-9)) {
            step = factor * power;
            break;
        }
    std::vector<double> ticks;
    const auto count = static_cast<int>(std::ceil(most / step - 1e-9));
    for (int i = 0; i <= count; ++i) ticks.push_back(step * i);
    return ticks;
}

Plot::Plot(std::string title, Axis x, Axis y, Size size)
    : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)), size_(size) {
    x_.most = round_ticks(x_.most).back();
    y_.most = round_ticks(y_.most).back();
}

double Plot::across(double x) const {
    return kLeft + std::clamp(x / x_.most, 0.0, 1.0) * (size_.width - kLeft - kRight);
}

double Plot::up(double y) const {
    return size_.height - kBottom -
           std::clamp(y / y_.most, 0.0, 1.0) * (size_.height - kTop - kBottom);
}

void Plot::polyline(const std::vector<Point>& points, std::string_view style) {
    shapes_ += fmt::format("<polyline class=\"{}\" points=\"", style);
    for (const Point& point : points)
        shapes_ += fmt::format("{:.1f},{:.1f} ", across(point.x), up(point.y));
    shapes_ += "\"/>\n";
}

void Plot::line(const std::vector<Point>& points, std::string_view style) {
    polyline(points, style);
}

void Plot::steps(const std::vector<Point>& points, std::string_view style) {
    std::vector<Point> corners;
    for (std::size_t i = 0; i < points.size(); ++i) {
        if (i > 0) corners.push_back({points[i].x, points[i - 1].y});
        corners.push_back(points[i]);
    }
    polyline(corners, style);
}

void Plot::bar(Point from, Point to, std::string_view style) {
    const double left = across(from.x), top = up(to.y);
    shapes_ += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
        style, left, top, std::max(0.5, across(to.x) - left), std::max(0.5, up(from.y) - top));
}

void Plot::mark(double x, std::string_view word) {
    shapes_ += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"word\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        across(x), kTop, up(0), kTop - 5, escaped(word));
}

std::string Plot::text() const {
    std::string out =
        fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n",
                    size_.width, size_.height, escaped(title_));
    for (const double tick : round_ticks(x_.most)) {
        out += fmt::format(
            "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" "
            "y2=\"{2:.1f}\"/><text class=\"across\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4}"
            "</text>\n",
            across(tick), kTop, up(0), up(0) + 14, tick_text(tick));
    }
    for (const double tick : round_ticks(y_.most)) {
        out += fmt::format(
            "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" "
            "y2=\"{2:.1f}\"/><text class=\"up\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5}"
            "</text>\n",
            kLeft, size_.width - kRight, up(tick), kLeft - 6, up(tick) + 4, tick_text(tick));
    }
    out += fmt::format("<text class=\"across\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       (kLeft + size_.width - kRight) / 2, size_.height - 6, escaped(x_.label));
    out += fmt::format(
        "<text class=\"across\" transform=\"translate(12 {:.1f}) rotate(-90)\">{}</text>\n",
        (kTop + size_.height - kBottom) / 2, escaped(y_.label));
    return out + shapes_ + "</svg>\n";
}

}  // namespace espalier::load
