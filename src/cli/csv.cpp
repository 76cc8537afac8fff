// SPDX-License-Identifier: Apache-2.0
#include "cli/csv.hpp"

#include <utility>

namespace espalier::cli {

std::string csv_line(const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        if (i > 0) line += ',';
        if (cells[i].find_first_of(",\"\r\n") == std::string::npos) {
            line += cells[i];
            continue;
        }
        line += '"';
        for (const char c : cells[i]) line.append(c == '"' ? 2 : 1, c);
        line += '"';
    }
    return line + '\n';
}

std::optional<std::vector<std::string>> csv_cells(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::vector<std::string> cells;
    for (;;) {
        std::string cell;
        if (line.starts_with('"')) {
            for (;;) {
                line.remove_prefix(1);
                const std::size_t quote = line.find('"');
                if (quote == std::string_view::npos) return std::nullopt;
                cell += line.substr(0, quote);
                line.remove_prefix(quote + 1);
                if (!line.starts_with('"')) break;
                cell += '"';
            }
            if (!line.empty() && line.front() != ',') return std::nullopt;
        } else {
            cell = line.substr(0, line.find(','));
            line.remove_prefix(cell.size());
        }
        cells.push_back(std::move(cell));
        if (line.empty()) return cells;
        line.remove_prefix(1);
    }
}

}  // namespace espalier::cli
