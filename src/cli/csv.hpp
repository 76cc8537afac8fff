// SPDX-License-Identifier: Apache-2.0
// Lines of comma-separated values as RFC 4180 quotes them, but ended by a line feed alone. Every
// CSV that a command writes or reads goes through here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::cli {

// Line feed included. A cell with a comma, a quote or a line break stands in quotes.
std::string csv_line(const std::vector<std::string>& cells);
// The cells of a line that has no line feed; a carriage return at its end is not part of them.
// nullopt: a quote is left open, or text follows a closing one.
std::optional<std::vector<std::string>> csv_cells(std::string_view line);

}  // namespace espalier::cli
