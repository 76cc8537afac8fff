// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex.hpp"

#include "grammar/regex_reader.hpp"
#include "grammar/regex_writer.hpp"
#include "text/utf8.hpp"

namespace espalier::grammar {
namespace {

std::string written_code_point(std::uint32_t code_point) {
    return fmt::format("\\U{:08X}", code_point);
}

}  // namespace

const CodePointSet& plain_json_characters() {
    static const CodePointSet set =
        CodePointSet{{0x00, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0xd800, 0xdfff}}.complement();
    return set;
}

std::string written_class(const CodePointSet& set) {
    if (set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last)
        return fmt::format("\"{}\"", written_code_point(set.ranges()[0].first));
    std::string text = "[";
    for (const CodePointRange& range : set.ranges()) {
        text += written_code_point(range.first);
        if (range.last == range.first) continue;
        text += '-';
        text += written_code_point(range.last);
    }
    return text + "]";
}

std::string written_text(std::string_view valid_utf8) {
    std::string text;
    for (std::size_t at = 0; at < valid_utf8.size();
         at += text::utf8_length(static_cast<unsigned char>(valid_utf8[at])))
        text += written_code_point(text::code_point_at(valid_utf8, at));
    return fmt::format("\"{}\"", text);
}

Expected<std::string> rewrite_regex(std::string_view regex, RegexUse use) {
    if (regex.size() > RegexLimits::kBytes)
        return fail(ErrorKind::exhausted,
                    "a regular expression of {} bytes, more than the limit of {}", regex.size(),
                    RegexLimits::kBytes);
    if (const std::size_t valid = text::valid_utf8_prefix(regex); valid != regex.size())
        return fail(ErrorKind::invalid, "the regular expression is not valid UTF-8 at byte {}",
                    valid);
    ESPALIER_ASSIGN_OR_RETURN(const RegexNode node, RegexReader(regex, use).run());
    return RegexWriter().run(node);
}

}  // namespace espalier::grammar
