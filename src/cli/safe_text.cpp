// SPDX-License-Identifier: Apache-2.0
#include "cli/safe_text.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "text/utf8.hpp"

namespace espalier::cli {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;
constexpr std::uint32_t kControlPictures = 0x2400;
constexpr std::uint32_t kDeletePicture = 0x2421;

std::uint32_t shown(std::uint32_t point) {
    if (point == '\n' || point == '\t') return point;
    if (point < 0x20) return kControlPictures + point;
    if (point == 0x7F) return kDeletePicture;
    if (point >= 0x80 && point < 0xA0) return kReplacement;
    if ((point >= 0x202A && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069))
        return kReplacement;
    return point;
}

}  // namespace

std::string printable(std::string_view text) {
    std::string valid, out;
    text::append_valid_utf8(text, false, valid);
    for (std::size_t at = 0; at < valid.size();
         at += text::utf8_length(static_cast<unsigned char>(valid[at])))
        text::append_code_point(shown(text::code_point_at(valid, at)), out);
    return out;
}

std::string safe_file_name(std::string_view text) {
    std::string name(text);
    std::ranges::replace_if(
        name,
        [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '_' && c != '-'; },
        '_');
    return name;
}

}  // namespace espalier::cli
