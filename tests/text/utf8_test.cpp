// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace espalier::text {
namespace {

std::string replaced(std::string_view bytes) {
    std::string out;
    EXPECT_EQ(append_valid_utf8(bytes, false, out), 0u);
    return out;
}

#define FFFD "\xEF\xBF\xBD"

TEST(Utf8, ReplacesMaximalSubpartsAsPythonDoes) {
    // Each right side is bytes.decode('utf-8', errors='replace') of the left in Python 3.11.
    const std::pair<std::string, std::string> cases[] = {
        {"a\xff"
         "b",
         "a" FFFD "b"},
        {"\x80\x80", FFFD FFFD},
        {"\xc3", FFFD},
        {"\xc3(", FFFD "("},
        {"\xc0\xaf", FFFD FFFD},
        {"\xe2\x82", FFFD},
        {"\xe2\x82"
         "a",
         FFFD "a"},
        {"\xe0\x80\xaf", FFFD FFFD FFFD},
        {"\xed\xa0\x80", FFFD FFFD FFFD},
        {"\xf0\x9f\x98", FFFD},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", FFFD "\xf0\x9f\x98\x80"},
        {"\xf0\x80\x80\x80", FFFD FFFD FFFD FFFD},
        {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD},
        {"\xf8\x88", FFFD FFFD},
        {"12345678\xe4\xb8", "12345678" FFFD},
    };
    for (const auto& [bytes, expected] : cases)
        EXPECT_EQ(replaced(bytes), expected) << testing::PrintToString(bytes);
}

TEST(Utf8, KeepsWhatMoreBytesCouldComplete) {
    const std::pair<std::string, std::size_t> cases[] = {
        {"a", 0},    {"\xc3", 1},     {"\xe4\xb8", 2},     {"\xf0\x9f\x98", 3},
        {"\xff", 0}, {"\xed\xa0", 0}, {"\xf0\x9f\x98x", 0}};
    for (const auto& [bytes, kept] : cases) {
        std::string out;
        EXPECT_EQ(append_valid_utf8(bytes, true, out), kept) << testing::PrintToString(bytes);
    }
}

TEST(Utf8, WalksEveryCodePoint) {
    for (std::uint32_t c = 0; c < 0x110000; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        std::string text;
        append_code_point(c, text);
        ASSERT_EQ(utf8_length(static_cast<unsigned char>(text[0])), text.size());
        ASSERT_EQ(code_point_at(text, 0), c);
        ASSERT_EQ(valid_utf8_prefix(text), text.size());
    }
}

}  // namespace
}  // namespace espalier::text
