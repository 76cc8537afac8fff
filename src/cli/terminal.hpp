// SPDX-License-Identifier: Apache-2.0
// What the sub-commands share in talking to a person: a progress bar, numbers with units, tables.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace espalier::cli {

// "1.5 GB", "441 MB", "12 kB" (powers of ten, as disks and bandwidths are sold).
std::string bytes_text(double bytes);
// "671 B" parameters, "37.5 M".
std::string count_text(double count);

// A bar on standard error with share, bytes and GB/s; silent when standard error is no terminal.
class ProgressBar {
  public:
    explicit ProgressBar(std::string label);
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;
    void update(std::uint64_t done, std::uint64_t total);

  private:
    std::string label_;
    bool terminal_;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point start_;
    std::chrono::steady_clock::time_point last_draw_;
};

// Standard output is a terminal that may show colours (NO_COLOR is not set).
bool terminal_colours();

// One line on a terminal's standard error, redrawn; nothing elsewhere.
class StatusLine {
  public:
    StatusLine();
    ~StatusLine();
    StatusLine(const StatusLine&) = delete;
    StatusLine& operator=(const StatusLine&) = delete;
    template <typename... Args>
    void update(fmt::format_string<Args...> format, Args&&... args) {
        if (terminal_) draw(fmt::format(format, std::forward<Args>(args)...));
    }

  private:
    void draw(const std::string& line);
    bool terminal_;
    bool drawn_ = false;
};

enum class TableFormat { markdown, csv, json };
Expected<TableFormat> parse_table_format(std::string_view name);

// Rows of text cells. JSON writes one object per row; cells that are numbers become numbers.
struct Table {
    std::vector<std::string> columns;
    std::vector<std::vector<std::string>> rows;

    std::string text(TableFormat format) const;
    // Columns become rows: for one that is wider than a terminal.
    Table transposed() const;
};

}  // namespace espalier::cli
