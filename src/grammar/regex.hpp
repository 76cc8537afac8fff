// SPDX-License-Identifier: Apache-2.0
// Regular expressions of requests. One dialect, read here (docs/grammars.md): what Python's re and
// ECMAScript mean alike, classes as with re.ASCII, the whole text matched. What is read is written
// again as an expression of xgrammar's EBNF; the rest is refused by name.
#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "grammar/code_points.hpp"

namespace espalier::grammar {

enum class RegexUse {
    text,         // the whole output
    json_string,  // between the quotes of a JSON string: no character that JSON escapes there
};

struct RegexLimits {
    static constexpr std::size_t kBytes = 16 << 10;
    static constexpr int kDepth = 32;              // groups within groups
    static constexpr std::int64_t kRepeat = 4096;  // the largest count in {…}
    // Characters and classes once every counted repetition is written out: what the automata grow
    // with.
    static constexpr std::int64_t kExpanded = 8192;
};

// The body of xgrammar's rule "root ::= …" for this expression, followed by the rules that it uses.
Expected<std::string> rewrite_regex(std::string_view regex, RegexUse use);

// Parts of such a body, for callers that write their own rules.
std::string written_class(const CodePointSet& set);
std::string written_text(std::string_view valid_utf8);
// The characters that stand for themselves in a JSON string.
const CodePointSet& plain_json_characters();

}  // namespace espalier::grammar
