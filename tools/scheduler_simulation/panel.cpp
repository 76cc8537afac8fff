// SPDX-License-Identifier: Apache-2.0
#include "panel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace espalier::simulation {
namespace {

constexpr double kWidth = 960, kLeft = 64, kRight = 170, kPlot = kWidth - kLeft - kRight;
constexpr double kHeight = 118, kGap = 44, kTop = 62;

// 1, 2 or 5 times a power of ten, so that there are three to six ticks below the top.
double tick_step(double top) {
    const double raw = top / 4;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0})
        if (raw <= factor * power) return factor * power;
    return 10 * power;
}

double largest(const Panel& panel) {
    if (panel.top > 0) return panel.top;
    double top = 0;
    for (std::size_t i = 0; i < panel.series.front().values.size(); ++i) {
        double sum = 0;
        for (const Series& series : panel.series) {
            const double value = std::isnan(series.values[i]) ? 0 : series.values[i];
            sum = panel.stacked ? sum + value : std::max(sum, value);
        }
        top = std::max(top, sum);
    }
    return top <= 0 ? 1 : top * 1.05;
}

class Drawing {
  public:
    Drawing(const Panel& panel, double y) : panel_(panel), y_(y), top_(largest(panel)) {
        if (panel.logarithmic) top_ = std::pow(10.0, std::ceil(std::log10(top_)));
    }

    void draw(std::string& svg) const {
        auto out = std::back_inserter(svg);
        fmt::format_to(out, "<text x=\"{}\" y=\"{}\" class=\"t\">{}</text>\n", kLeft, y_ - 8,
                       panel_.title);
        draw_ticks(svg);
        if (panel_.stacked)
            draw_areas(svg);
        else
            for (const Series& series : panel_.series)
                fmt::format_to(
                    out, "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.4\"/>\n",
                    line(series.values), series.color);
        fmt::format_to(out, "<path d=\"M{} {}v{}h{}\" class=\"axis\"/>\n", kLeft, y_, kHeight,
                       kPlot);
        draw_legend(svg);
    }

  private:
    double x_of(std::size_t bucket) const {
        const auto buckets = static_cast<double>(panel_.series.front().values.size());
        return kLeft + kPlot * (static_cast<double>(bucket) + 0.5) / buckets;
    }
    double y_of(double value) const {
        double share = value / top_;
        if (panel_.logarithmic)  // the axis begins at 10 ms
            share = (std::log10(std::max(value, 0.01)) + 2) / (std::log10(top_) + 2);
        return y_ + kHeight * (1 - std::clamp(share, 0.0, 1.0));
    }

    void draw_tick(std::string& svg, double value) const {
        fmt::format_to(std::back_inserter(svg),
                       "<path d=\"M{} {:.1f}h{}\" class=\"grid\"/><text x=\"{}\" y=\"{:.1f}\" "
                       "class=\"n\">{:g}</text>\n",
                       kLeft, y_of(value), kPlot, kLeft - 6, y_of(value) + 4, value);
    }
    void draw_ticks(std::string& svg) const {
        if (panel_.logarithmic) {
            for (double value = 0.01; value <= top_ * 1.001; value *= 10) draw_tick(svg, value);
            return;
        }
        const double step = tick_step(top_);
        for (int i = 0; i * step <= top_; ++i) draw_tick(svg, i * step);
    }

    void draw_areas(std::string& svg) const {
        const std::size_t buckets = panel_.series.front().values.size();
        std::vector<double> below(buckets, 0.0);
        for (const Series& series : panel_.series) {
            std::vector<double> above = below;
            for (std::size_t i = 0; i < buckets; ++i)
                above[i] += std::isnan(series.values[i]) ? 0 : series.values[i];
            std::string path;
            for (std::size_t i = 0; i < buckets; ++i)
                fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", i == 0 ? 'M' : 'L',
                               x_of(i), y_of(above[i]));
            for (std::size_t i = buckets; i-- > 0;)
                fmt::format_to(std::back_inserter(path), "L{:.1f} {:.1f}", x_of(i), y_of(below[i]));
            fmt::format_to(std::back_inserter(svg), "<path d=\"{}Z\" fill=\"{}\"/>\n", path,
                           series.color);
            below = std::move(above);
        }
    }

    std::string line(const std::vector<double>& values) const {
        std::string path;
        bool pen_down = false;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (std::isnan(values[i])) {
                pen_down = false;
                continue;
            }
            fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down ? 'L' : 'M',
                           x_of(i), y_of(values[i]));
            pen_down = true;
        }
        return path;
    }

    // From top to bottom as the areas lie.
    void draw_legend(std::string& svg) const {
        auto out = std::back_inserter(svg);
        double y = y_ + 10;
        fmt::format_to(out, "<text x=\"{}\" y=\"{}\" class=\"u\">{}</text>\n", kLeft + kPlot + 14,
                       y_ - 8, panel_.unit);
        for (auto series = panel_.series.rbegin(); series != panel_.series.rend(); ++series) {
            fmt::format_to(
                out,
                "<rect x=\"{}\" y=\"{:.1f}\" width=\"11\" height=\"11\" fill=\"{}\"/><text "
                "x=\"{}\" y=\"{:.1f}\" class=\"l\">{}</text>\n",
                kLeft + kPlot + 14, y - 9, series->color, kLeft + kPlot + 31, y, series->name);
            y += 18;
        }
    }

    const Panel& panel_;
    double y_;
    double top_;
};

void draw_time_axis(std::string& svg, double minutes, double y) {
    const double step = tick_step(minutes);
    auto out = std::back_inserter(svg);
    for (int i = 0; i * step <= minutes; ++i)
        fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{}\" class=\"m\">{:g}</text>\n",
                       kLeft + kPlot * i * step / minutes, y + 16, i * step);
    fmt::format_to(out, "<text x=\"{}\" y=\"{}\" class=\"u\">minutes, simulated</text>\n",
                   kLeft + kPlot + 14, y + 16);
}

}  // namespace

std::string draw_figure(const std::string& title, double minutes,
                        const std::vector<Panel>& panels) {
    const double height = kTop + static_cast<double>(panels.size()) * (kHeight + kGap) - 8;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" font-family=\"sans-serif\">\n<style>.t{{font-size:14px;font-weight:bold}}"
        ".n{{font-size:11px;text-anchor:end}}.m{{font-size:11px;text-anchor:middle}}"
        ".l{{font-size:12px}}.u{{font-size:11px;fill:#555}}.h{{font-size:16px;font-weight:bold}}"
        ".axis{{fill:none;stroke:#333}}.grid{{fill:none;stroke:#ddd}}</style>\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
        "<text x=\"{2}\" y=\"24\" class=\"h\">{3}</text>\n",
        kWidth, height, kLeft, title);
    double y = kTop;
    for (const Panel& panel : panels) {
        Drawing(panel, y).draw(svg);
        y += kHeight + kGap;
    }
    draw_time_axis(svg, minutes, y - kGap);
    return svg + "</svg>\n";
}

}  // namespace espalier::simulation
