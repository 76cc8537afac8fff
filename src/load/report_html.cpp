// SPDX-License-Identifier: Apache-2.0
// The page: figures as tables, the spread of each latency, the run over time, its requests.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "load/report.hpp"
#include "load/svg.hpp"

namespace espalier::load {
namespace {

constexpr std::size_t kMaxCurvePoints = 300;
constexpr std::size_t kMaxRequestsDrawn = 300;

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light dark; --ink: #1b2420; --soft: #5b6a62; --paper: #fbfcfa; --panel: #ffffff;
  --line: #d8dfda; --leaf: #2e7d4f; --bark: #b3661a; --fail: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ece8; --soft: #9aaaa1; --paper: #121714;
  --panel: #1a211d; --line: #333e38; --leaf: #63c48c; --bark: #e0a25c; --fail: #f0776a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 3rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
p { margin: .2rem 0 .8rem; color: var(--soft); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .7rem; margin: 1rem 0; }
dl div, figure { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; margin: 0; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: .8rem; }
figcaption { font-weight: 600; margin-bottom: .3rem; } figcaption small { font-weight: 400; color: var(--soft); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.across, .word { text-anchor: middle; } .up { text-anchor: end; }
.grid { stroke: var(--line); stroke-width: 1; } .mark { stroke: var(--bark); stroke-dasharray: 4 3; }
polyline { fill: none; stroke: var(--leaf); stroke-width: 2; stroke-linejoin: round; }
.leaf { fill: var(--leaf); } .bark { fill: var(--bark); } .fail { fill: var(--fail); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: .15em; }
.key.leaf { background: var(--leaf); } .key.bark { background: var(--bark); } .key.fail { background: var(--fail); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
@media (max-width: 40rem) { td small { display: none; } th, td { padding: .3rem .25rem; font-size: .8rem; } }
</style>
)";

std::string tile(const std::string& name, const std::string& value) {
    return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, value);
}

std::string tiles(const Report& report, const Figures& figures) {
    const auto rate = [&](std::int64_t count) {
        return report.seconds > 0 ? static_cast<double>(count) / report.seconds : 0.0;
    };
    std::string out = "<dl>\n";
    out += tile("requests completed", fmt::format("{}", figures.completed));
    out += tile("failed", fmt::format("{}", figures.failed));
    out += tile("seconds", fmt::format("{:.2f}", report.seconds));
    out += tile("requests per second", fmt::format("{:.2f}", rate(figures.completed)));
    if (report.goodput.asked())
        out += tile(fmt::format("good ones per second ({} ms)", goodput_text(report.goodput)),
                    fmt::format("{:.2f}", rate(figures.good)));
    out += tile("output tokens per second", fmt::format("{:.1f}", rate(figures.output_tokens)));
    out += tile("in the busiest second", fmt::format("{:.0f}", peak_throughput(report, figures)));
    out += tile("input tokens", fmt::format("{}", figures.input_tokens));
    out += tile("output tokens", fmt::format("{}", figures.output_tokens));
    if (report.speculation) {
        out += tile("tokens per step", fmt::format("{:.2f}", report.speculation->length()));
        out += tile("drafts accepted", fmt::format("{:.1f} %", report.speculation->rate_percent()));
    }
    return out + "</dl>\n";
}

std::string latency_table(const Report& report, const Figures& figures) {
    std::string out =
        "<h2>Latencies in milliseconds</h2>\n<div class=\"scroll\"><table>\n<tr><th></th>"
        "<th>mean</th><th>median</th>";
    for (const double percent : report.percentiles)
        out += fmt::format("<th>p{}</th>", percent_text(percent));
    out += "<th>largest</th></tr>\n";
    for (const Latency& latency : kLatencies) {
        if (!is_reported(report, latency)) continue;
        const std::vector<double>& values = figures.*latency.values;
        out += fmt::format("<tr><td>{} <small>{}</small></td><td>{:.2f}</td><td>{:.2f}</td>",
                           latency.name, latency.title, mean(values), percentile(values, 50));
        for (const double percent : report.percentiles)
            out += fmt::format("<td>{:.2f}</td>", percentile(values, percent));
        out += fmt::format("<td>{:.2f}</td></tr>\n", percentile(values, 100));
    }
    return out + "</table></div>\n";
}

std::string figure(const std::string& caption, const std::string& drawing) {
    return fmt::format("<figure><figcaption>{}</figcaption>\n{}</figure>\n", caption, drawing);
}

// The share of values up to x, over x.
std::string spread(const Latency& latency, const std::vector<double>& values) {
    Plot plot(fmt::format("Share of {} up to a number of milliseconds", latency.title),
              {"ms", percentile(values, 100)}, {"% of all", 100});
    const std::size_t count = std::min(kMaxCurvePoints, values.size());
    std::vector<Point> curve;
    for (std::size_t i = 0; i < count; ++i) {
        const double percent =
            count == 1 ? 100 : 100 * static_cast<double>(i) / static_cast<double>(count - 1);
        curve.push_back({percentile(values, percent), percent});
    }
    plot.line(curve, "curve");
    plot.mark(percentile(values, 50), "median");
    plot.mark(percentile(values, 99), "p99");
    return figure(fmt::format("{} <small>{}</small>", latency.name, latency.title), plot.text());
}

std::string tokens_over_time(const Report& report, const Figures& figures) {
    Plot plot("Output tokens per second over the run", {"seconds", std::max(report.seconds, 1.0)},
              {"tokens per second", figures.peak_output});
    const std::vector<double>& seconds = figures.tokens_by_second;
    const std::size_t width = seconds.size() / kMaxCurvePoints + 1;
    for (std::size_t from = 0; from < seconds.size(); from += width) {
        const std::size_t to = std::min(from + width, seconds.size());
        double tokens = 0;
        for (std::size_t second = from; second < to; ++second) tokens += seconds[second];
        const auto left = static_cast<double>(from), right = static_cast<double>(to);
        plot.bar({left + 0.06, 0}, {right - 0.06, tokens / (right - left)}, "leaf");
    }
    return figure("Output tokens <small>per second</small>", plot.text());
}

std::string requests_over_time(const Report& report, const Figures& figures) {
    Plot plot("Requests under way over the run", {"seconds", report.seconds},
              {"requests", static_cast<double>(figures.peak_under_way)});
    const std::vector<LevelChange> changes = under_way_over_time(report.records);
    const std::size_t stride = changes.size() / (4 * kMaxCurvePoints) + 1;
    std::vector<Point> points;
    for (std::size_t i = 0; i < changes.size(); i += stride)
        points.push_back({changes[i].seconds, static_cast<double>(changes[i].level)});
    if (!changes.empty()) points.push_back({changes.back().seconds, 0});
    plot.steps(points, "curve");
    return figure("Requests under way", plot.text());
}

std::string waterfall(const Report& report) {
    const std::size_t count = std::min(kMaxRequestsDrawn, report.records.size());
    if (count == 0) return {};
    Plot plot(
        "Each request from its sending to its end", {"seconds", report.seconds},
        {"request", static_cast<double>(count)},
        {.width = 980, .height = std::clamp(60 + 10 * static_cast<double>(count), 160.0, 1200.0)});
    for (std::size_t i = 0; i < count; ++i) {
        const RequestRecord& record = report.records[i];
        const auto row = static_cast<double>(i);
        const double first = record.first_piece.value_or(record.ended);
        const double low = row + 0.15, high = row + 0.85;
        if (record.failure) {
            plot.bar({record.sent, low}, {record.ended, high}, "fail");
            continue;
        }
        plot.bar({record.sent, low}, {first, high}, "bark");
        plot.bar({first, low}, {record.ended, high}, "leaf");
    }
    const std::string which = count < report.records.size()
                                  ? fmt::format("the first {} of {}", count, report.records.size())
                                  : std::string("in the order of their sending");
    return "<h2>Requests</h2>\n" +
           figure(fmt::format("<span class=\"key bark\"></span> to the first token "
                              "<span class=\"key leaf\"></span> from there to the end "
                              "<span class=\"key fail\"></span> failed <small>{}</small>",
                              which),
                  plot.text());
}

std::string failure_table(const Report& report, const Figures& figures) {
    if (figures.failed == 0) return {};
    return fmt::format("<h2>Failures</h2>\n<pre>{}</pre>\n", escaped(failures_text(report)));
}

std::string summary(const Report& report) {
    const LoadOptions& options = report.options;
    const std::string rate = std::isfinite(options.rate)
                                 ? fmt::format("{:g} requests per second (burstiness {:g})",
                                               options.rate, options.burstiness)
                                 : std::string("all requests at once");
    const std::string most = options.concurrency > 0
                                 ? fmt::format(", {} under way at most", options.concurrency)
                                 : std::string();
    return fmt::format("{} at {}, {} UTC: {} requests, {}{}, seed {}", escaped(options.model),
                       escaped(report.url), report.date, options.requests, rate, most,
                       options.seed);
}

}  // namespace

std::string report_html(const Report& report) {
    const Figures figures = figures_of(report.records, report.goodput);
    std::string out =
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    out += fmt::format("<title>Serving benchmark of {}</title>\n{}</head>\n<body>\n<main>\n",
                       escaped(report.options.model), kStyle);
    out += "<h1>Serving benchmark</h1>\n<p>" + summary(report) + "</p>\n";
    out += tiles(report, figures) + latency_table(report, figures);
    out += "<h2>Spread of the latencies</h2>\n<div class=\"plots\">\n";
    for (const Latency& latency : kLatencies)
        if (is_reported(report, latency) && !(figures.*latency.values).empty())
            out += spread(latency, figures.*latency.values);
    out += "</div>\n<h2>Over time</h2>\n<div class=\"plots\">\n";
    out += tokens_over_time(report, figures) + requests_over_time(report, figures);
    out += "</div>\n" + waterfall(report) + failure_table(report, figures);
    return out + "</main>\n</body>\n</html>\n";
}

}  // namespace espalier::load
