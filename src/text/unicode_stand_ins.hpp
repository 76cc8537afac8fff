// SPDX-License-Identifier: Apache-2.0
// Makes PCRE2 classify as the reference libraries do (Unicode 16), whatever Unicode version it was
// built with: code points on which the two differ are shown to PCRE2 as stand-ins of the same
// length and the same classes.
#pragma once

#include <string>
#include <string_view>

namespace espalier::text {

// The text that PCRE2 is to see instead of `valid_text`: the same length, so offsets are equal.
// Returns `valid_text` itself when nothing differs (almost always), otherwise a view of `scratch`.
std::string_view with_stand_ins(std::string_view valid_text, std::string& scratch);

}  // namespace espalier::text
