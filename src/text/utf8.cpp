// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.hpp"

#include <bit>
#include <cstring>

namespace espalier::text {
namespace {

struct Sequence {
    std::size_t bytes = 0;  // the well-formed sequence, or the maximal ill-formed subpart
    bool valid = false;
    bool unfinished = false;  // ill-formed only because the text ends
};

// Table 3-7 of the Unicode standard: the second byte's range depends on the first.
Sequence sequence_at(std::string_view bytes, std::size_t at) {
    const auto lead = static_cast<unsigned char>(bytes[at]);
    if (lead < 0x80) return {1, true, false};
    if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    const std::size_t length = utf8_length(lead);
    for (std::size_t i = 1; i < length; ++i) {
        if (at + i == bytes.size()) return {i, false, true};
        const auto byte = static_cast<unsigned char>(bytes[at + i]);
        if (byte < low || byte > high) return {i, false, false};
        low = 0x80;
        high = 0xBF;
    }
    return {length, true, false};
}

// Steps over ASCII eight bytes at a time: most text is, and this pass precedes every encode.
std::size_t skip_ascii(std::string_view bytes, std::size_t at) {
    while (at + 8 <= bytes.size()) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + at, 8);
        const std::uint64_t high_bits = word & 0x8080808080808080u;
        if (high_bits != 0) return at + static_cast<std::size_t>(std::countr_zero(high_bits)) / 8;
        at += 8;
    }
    return at;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view bytes) {
    std::size_t at = skip_ascii(bytes, 0);
    while (at < bytes.size()) {
        const Sequence sequence = sequence_at(bytes, at);
        if (!sequence.valid) break;
        at += sequence.bytes;
        if (sequence.bytes == 1) at = skip_ascii(bytes, at);
    }
    return at;
}

std::size_t append_valid_utf8(std::string_view bytes, bool keep_unfinished, std::string& out) {
    while (!bytes.empty()) {
        const std::size_t valid = valid_utf8_prefix(bytes);
        out.append(bytes.substr(0, valid));
        bytes.remove_prefix(valid);
        if (bytes.empty()) break;
        const Sequence wrong = sequence_at(bytes, 0);
        if (wrong.unfinished && keep_unfinished) return bytes.size();
        out.append("\xEF\xBF\xBD");
        bytes.remove_prefix(wrong.bytes);
    }
    return 0;
}

void append_code_point(std::uint32_t code_point, std::string& out) {
    const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xC0 | code_point >> 6);
        put(0x80 | (code_point & 0x3F));
    } else if (code_point < 0x10000) {
        put(0xE0 | code_point >> 12);
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    } else {
        put(0xF0 | code_point >> 18);
        put(0x80 | (code_point >> 12 & 0x3F));
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    }
}

}  // namespace espalier::text
