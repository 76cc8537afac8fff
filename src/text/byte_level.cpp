// SPDX-License-Identifier: Apache-2.0
#include "text/byte_level.hpp"

#include <array>
#include <cstdint>

#include "text/utf8.hpp"

namespace espalier::text {
namespace {

constexpr bool stands_for_itself(std::uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr auto kLetterOfByte = [] {
    std::array<std::uint32_t, 256> letters{};
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte)
        letters[byte] = stands_for_itself(byte) ? byte : next++;
    return letters;
}();

constexpr auto kByteOfLetter = [] {
    std::array<int, 0x100 + 68> bytes{};
    bytes.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte)
        bytes[kLetterOfByte[byte]] = static_cast<int>(byte);
    return bytes;
}();

}  // namespace

std::string letter_of_byte(unsigned char byte) {
    std::string letter;
    append_code_point(kLetterOfByte[byte], letter);
    return letter;
}

std::optional<std::string> bytes_of_letters(std::string_view valid_text) {
    std::string bytes;
    bytes.reserve(valid_text.size());
    for (std::size_t at = 0; at < valid_text.size();) {
        const std::uint32_t letter = code_point_at(valid_text, at);
        if (letter >= kByteOfLetter.size() || kByteOfLetter[letter] < 0) return std::nullopt;
        bytes.push_back(static_cast<char>(kByteOfLetter[letter]));
        at += utf8_length(static_cast<unsigned char>(valid_text[at]));
    }
    return bytes;
}

}  // namespace espalier::text
