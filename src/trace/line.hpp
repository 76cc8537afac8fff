// SPDX-License-Identifier: Apache-2.0
// Events as lines of JSON and back. Integers are written exactly, 64-bit seeds too; a float is
// written as the double that it is, so that it comes back with its bits.
#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "trace/step.hpp"

namespace espalier::trace {

// Appends the line, newline included.
void append_line(std::string& out, const Header& header);
void append_line(std::string& out, const Event& event);

// The text is not trusted: sizes and ranges are checked, and a field that is missing,
// unknown or of another type is refused by name. place stands in messages ("run.jsonl, line 7").
Expected<Header> parse_header(std::string_view text, std::string_view place);
Expected<Event> parse_event(std::string_view text, std::string_view place);

}  // namespace espalier::trace
