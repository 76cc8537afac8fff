// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex.hpp"

#include "grammar/regex_reader.hpp"
#include "text/utf8.hpp"

namespace espalier::grammar {
namespace {

std::string written_code_point(std::uint32_t code_point, RegexForm form) {
    return form == RegexForm::ebnf ? fmt::format("\\U{:08X}", code_point)
                                   : fmt::format("\\u{{{:X}}}", code_point);
}

}  // namespace

const CodePointSet& plain_json_characters() {
    static const CodePointSet set =
        CodePointSet{{0x00, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0xd800, 0xdfff}}.complement();
    return set;
}

std::string written_class(const CodePointSet& set, RegexForm form) {
    if (set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last) {
        const std::string one = written_code_point(set.ranges()[0].first, form);
        return form == RegexForm::ebnf ? fmt::format("\"{}\"", one) : one;
    }
    std::string text = "[";
    for (const CodePointRange& range : set.ranges()) {
        text += written_code_point(range.first, form);
        if (range.last == range.first) continue;
        text += '-';
        text += written_code_point(range.last, form);
    }
    return text + "]";
}

std::string written_text(std::string_view valid_utf8, RegexForm form) {
    std::string text;
    for (std::size_t at = 0; at < valid_utf8.size();) {
        const auto lead = static_cast<unsigned char>(valid_utf8[at]);
        text += written_code_point(text::code_point_at(valid_utf8, at), form);
        at += text::utf8_length(lead);
    }
    return form == RegexForm::ebnf ? fmt::format("\"{}\"", text) : text;
}

Expected<std::string> rewrite_regex(std::string_view regex, RegexForm form) {
    if (regex.size() > RegexLimits::kBytes)
        return fail(ErrorKind::exhausted,
                    "a regular expression of {} bytes, more than the limit of {}", regex.size(),
                    RegexLimits::kBytes);
    if (const std::size_t valid = text::valid_utf8_prefix(regex); valid != regex.size())
        return fail(ErrorKind::invalid, "the regular expression is not valid UTF-8 at byte {}",
                    valid);
    return RegexReader(regex, form).run();
}

}  // namespace espalier::grammar
