// SPDX-License-Identifier: Apache-2.0
// Regular expressions of requests. One dialect, read here (docs/grammars.md): what Python's re and
// ECMAScript mean alike, classes as with re.ASCII, the whole text matched. What is read is written
// again in the one form that xgrammar takes without a second meaning; the rest is refused by name.
#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "grammar/code_points.hpp"

namespace espalier::grammar {

enum class RegexForm {
    ebnf,     // an expression of xgrammar's EBNF
    pattern,  // a pattern of a JSON schema: no character that JSON escapes in a string
};

struct RegexLimits {
    static constexpr std::size_t kBytes = 16 << 10;
    static constexpr int kDepth = 32;              // groups within groups
    static constexpr std::int64_t kRepeat = 4096;  // the largest count in {…}
    // Characters and classes once every counted repetition is written out: what the automata grow
    // with.
    static constexpr std::int64_t kExpanded = 8192;
};

Expected<std::string> rewrite_regex(std::string_view regex, RegexForm form);

// Parts of such a form, for those who write expressions themselves.
std::string written_class(const CodePointSet& set, RegexForm form);
std::string written_text(std::string_view valid_utf8, RegexForm form);
// The characters that stand for themselves in a JSON string.
const CodePointSet& plain_json_characters();

}  // namespace espalier::grammar
