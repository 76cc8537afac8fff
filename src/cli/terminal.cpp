// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/csv.hpp"

namespace espalier::cli {
namespace {

std::string scaled(double value, const std::array<std::string_view, 5>& units) {
    std::size_t unit = 0;
    while (value >= 1000.0 && unit + 1 < units.size()) {
        value /= 1000.0;
        ++unit;
    }
    return value < 10.0 && unit > 0
               ? fmt::format("{:.2f}{}", value, units[unit])
               : fmt::format("{:.{}f}{}", value, unit == 0 || value >= 100.0 ? 0 : 1, units[unit]);
}

// Display width, for the few characters we print that take more than one byte.
std::size_t width_of(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
    }));
}

// A bar inside a cell would begin another one.
std::vector<std::string> without_bars(const std::vector<std::string>& cells) {
    std::vector<std::string> escaped;
    for (const std::string& cell : cells) {
        std::string& text = escaped.emplace_back();
        for (const char c : cell) text += c == '|' ? std::string("\\|") : std::string(1, c);
    }
    return escaped;
}

std::string markdown(const Table& plain) {
    Table table{.columns = without_bars(plain.columns), .rows = {}};
    for (const auto& row : plain.rows) table.rows.push_back(without_bars(row));
    std::vector<std::size_t> width;
    for (const std::string& column : table.columns) width.push_back(width_of(column));
    for (const auto& row : table.rows)
        for (std::size_t i = 0; i < row.size(); ++i)
            width[i] = std::max(width[i], width_of(row[i]));
    const auto line = [&](const std::vector<std::string>& cells) {
        std::string text = "|";
        for (std::size_t i = 0; i < cells.size(); ++i)
            text += " " + std::string(width[i] - width_of(cells[i]), ' ') + cells[i] + " |";
        return text + "\n";
    };
    std::string text = line(table.columns) + "|";
    for (const std::size_t columns : width) text += std::string(columns + 1, '-') + ":|";
    text += "\n";
    for (const auto& row : table.rows) text += line(row);
    return text;
}

std::string csv(const Table& table) {
    std::string text = csv_line(table.columns);
    for (const auto& row : table.rows) text += csv_line(row);
    return text;
}

std::string json(const Table& table) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const auto& row : table.rows) {
        nlohmann::ordered_json object;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const auto number = nlohmann::ordered_json::parse(row[i], nullptr, false);
            object[table.columns[i]] = number.is_number() ? number : nlohmann::ordered_json(row[i]);
        }
        rows.push_back(std::move(object));
    }
    return rows.dump(2) + "\n";
}

}  // namespace

std::string bytes_text(double bytes) { return scaled(bytes, {" B", " kB", " MB", " GB", " TB"}); }
std::string count_text(double count) { return scaled(count, {"", " k", " M", " B", " T"}); }

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
    if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || total == 0 ||
        (done < total && now - last_draw_ < std::chrono::milliseconds(50)))
        return;
    last_draw_ = now;
    drawn_ = true;
    constexpr int kCells = 32;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const int full = static_cast<int>(share * kCells);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::string bar;
    for (int cell = 0; cell < kCells; ++cell) bar += cell < full ? "█" : "·";
    fmt::print(stderr, "\r\033[K{} {} {:3.0f} %  {} of {}  {:.2f} GB/s", label_, bar, share * 100,
               bytes_text(static_cast<double>(done)), bytes_text(static_cast<double>(total)),
               static_cast<double>(done) / std::max(seconds, 1e-9) / 1e9);
    std::fflush(stderr);
}

bool terminal_colours() { return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr; }

StatusLine::StatusLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

StatusLine::~StatusLine() {
    if (drawn_) std::fputs("\r\033[K", stderr);
}

void StatusLine::draw(const std::string& line) {
    fmt::print(stderr, "\r\033[K{}", line);
    std::fflush(stderr);
    drawn_ = true;
}

Expected<TableFormat> parse_table_format(std::string_view name) {
    if (name == "md") return TableFormat::markdown;
    if (name == "csv") return TableFormat::csv;
    if (name == "json") return TableFormat::json;
    return fail(ErrorKind::invalid, "--output {}: not one of md, csv, json", name);
}

Table Table::transposed() const {
    Table turned;
    turned.columns.push_back(columns.front());
    for (const auto& row : rows) turned.columns.push_back(row.front());
    for (std::size_t i = 1; i < columns.size(); ++i) {
        turned.rows.push_back({columns[i]});
        for (const auto& row : rows) turned.rows.back().push_back(row[i]);
    }
    return turned;
}

std::string Table::text(TableFormat format) const {
    switch (format) {
        case TableFormat::markdown:
            return markdown(*this);
        case TableFormat::csv:
            return csv(*this);
        case TableFormat::json:
            return json(*this);
    }
    return "";
}

}  // namespace espalier::cli
