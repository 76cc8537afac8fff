// SPDX-License-Identifier: Apache-2.0
// UTF-8 as the tokenizers need it: replacing what is invalid, and walking what is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier::text {

// Bytes from the start of `bytes` that are valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view bytes);

// Appends `bytes` to `out` with every maximal ill-formed subpart replaced by U+FFFD, as Python's
// bytes.decode('utf-8', errors='replace') and Rust's from_utf8_lossy do. With `keep_unfinished`, a
// final sequence that more bytes could complete is left out; returns how many bytes that are (0…3).
std::size_t append_valid_utf8(std::string_view bytes, bool keep_unfinished, std::string& out);

constexpr std::size_t utf8_length(unsigned char lead) {
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// The code point at valid_text[at]; the text must be valid UTF-8.
constexpr std::uint32_t code_point_at(std::string_view valid_text, std::size_t at) {
    const auto byte = [&](std::size_t offset) {
        return static_cast<std::uint32_t>(static_cast<unsigned char>(valid_text[at + offset]));
    };
    switch (utf8_length(static_cast<unsigned char>(valid_text[at]))) {
        case 1:
            return byte(0);
        case 2:
            return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
        case 3:
            return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
        default:
            return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                   (byte(3) & 0x3F);
    }
}

// Python's str.isspace(): what its strip() and split() go by, and Kimi's published encode().
constexpr bool is_python_space(std::uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

// code_point ≤ 0x10FFFF
void append_code_point(std::uint32_t code_point, std::string& out);

}  // namespace espalier::text
