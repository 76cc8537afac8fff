// SPDX-License-Identifier: Apache-2.0
#include "chat/unescape.hpp"

#include <algorithm>
#include <charconv>

#include "chat/budget.hpp"
#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

// str.encode('ascii', 'backslashreplace'): jinja2 does this first, so that a backslash before a
// character outside ASCII escapes the backslash of that character's own escape.
std::string backslash_replace(std::string_view literal) {
    std::string ascii;
    for (std::size_t at = 0; at < literal.size();) {
        const std::uint32_t code = text::code_point_at(literal, at);
        at += text::utf8_length(static_cast<unsigned char>(literal[at]));
        if (code < 0x80) {
            ascii += static_cast<char>(code);
        } else if (code < 0x100) {
            ascii += fmt::format("\\x{:02x}", code);
        } else if (code < 0x10000) {
            ascii += fmt::format("\\u{:04x}", code);
        } else {
            ascii += fmt::format("\\U{:08x}", code);
        }
    }
    return ascii;
}

std::uint32_t hexadecimal(std::string_view ascii, std::size_t at, std::size_t digits) {
    std::uint32_t code = 0;
    const std::string_view text = ascii.substr(std::min(at, ascii.size()), digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + digits)
        fail_template(ErrorKind::invalid, "a string has an escape of fewer than {} digits", digits);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        fail_template(ErrorKind::unsupported,
                      "a string has the escape of {:#x}, which is no character", code);
    return code;
}

// \ooo: one to three octal digits from ascii[at]; moves `at` behind them.
std::uint32_t octal(std::string_view ascii, std::size_t& at) {
    std::uint32_t code = 0;
    for (int i = 0; i < 3 && at < ascii.size() && ascii[at] >= '0' && ascii[at] <= '7'; ++i)
        code = code * 8 + static_cast<std::uint32_t>(ascii[at++] - '0');
    return code;
}

}  // namespace

std::string unescape(std::string_view literal) {
    const std::string ascii = backslash_replace(literal);
    std::string out;
    for (std::size_t at = 0; at < ascii.size();) {
        if (ascii[at] != '\\' || at + 1 == ascii.size()) {
            out += ascii[at++];
            continue;
        }
        const char kind = ascii[at + 1];
        constexpr std::string_view kNames = "\\'\"abfnrtv";
        constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
        if (const std::size_t named = kNames.find(kind); named != std::string_view::npos) {
            out += kMeanings[named];
            at += 2;
        } else if (kind == 'x' || kind == 'u' || kind == 'U') {
            const std::size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
            text::append_code_point(hexadecimal(ascii, at + 2, digits), out);
            at += 2 + digits;
        } else if (kind >= '0' && kind <= '7') {
            text::append_code_point(octal(ascii, ++at), out);
        } else if (kind == 'N') {
            fail_template(ErrorKind::unsupported, "a string has the escape \\N, not supported");
        } else if (kind == '\n') {
            at += 2;
        } else {
            out += '\\';
            ++at;
        }
    }
    return out;
}

}  // namespace espalier::chat
