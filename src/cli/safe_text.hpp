// SPDX-License-Identifier: Apache-2.0
// Text of models and servers on its way to a terminal: it may show, and do nothing else. Pure.
#pragma once

#include <string>
#include <string_view>

namespace espalier::cli {

// Line ends and tabs stay. Other control characters become their pictures (ESC: ␛), those of
// U+0080…U+009F, which some terminals obey as well, U+FFFD; so do marks that turn the direction of
// what follows (U+202A…U+202E, U+2066…U+2069) and bytes that are no UTF-8.
std::string printable(std::string_view text);

// Letters, digits, '.', '_' and '-'; anything else becomes '_'.
std::string safe_file_name(std::string_view text);

}  // namespace espalier::cli
