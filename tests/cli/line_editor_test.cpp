// SPDX-License-Identifier: Apache-2.0
// Keys in, a line out.
#include "cli/line_editor.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "text/utf8.hpp"

namespace espalier::cli {
namespace {

using Event = LineEditor::Event;

constexpr const char* kUp = "\x1b[A";
constexpr const char* kDown = "\x1b[B";
constexpr const char* kLeft = "\x1b[D";
constexpr const char* kRight = "\x1b[C";

std::string typed(std::string_view keys, std::vector<std::string> history = {}) {
    LineEditor editor(std::move(history));
    for (const char key : keys) EXPECT_EQ(editor.push(key), Event::editing) << keys;
    return editor.text();
}

TEST(LineEditor, TakesTextAndMovesInIt) {
    EXPECT_EQ(typed("héllo 漢"), "héllo 漢");
    EXPECT_EQ(typed(std::string("ac") + kLeft + "b"), "abc");
    EXPECT_EQ(typed(std::string("ab") + kLeft + kLeft + kLeft + kRight + "x"), "axb");
    EXPECT_EQ(typed("bc\x01"
                    "a\x05"
                    "d"),
              "abcd");
    EXPECT_EQ(typed("bc\x1b[Ha\x1b[Fd"), "abcd");
    EXPECT_EQ(typed("b\x1bOHa"), "ab");
    EXPECT_EQ(typed("漢字\x02\x02x"), "x漢字");
}

TEST(LineEditor, Deletes) {
    EXPECT_EQ(typed("abc\x7f\x08"), "a");
    EXPECT_EQ(typed("e\xcc\x81x\x7f\x7f"), "");  // an accent goes with its letter
    EXPECT_EQ(typed("abc\x01\x04"), "bc");
    EXPECT_EQ(typed("abc\x01\x1b[3~"), "bc");
    EXPECT_EQ(typed("one two three\x17\x17"), "one ");
    EXPECT_EQ(typed("one two\x1b"
                    "b\x0b"),
              "one ");
    EXPECT_EQ(typed("one two\x1b"
                    "b\x15"),
              "two");
    EXPECT_EQ(typed("one two\x17\x01\x19"), "twoone ");
    EXPECT_EQ(typed("one two\x01\x1b[1;5C\x1b"
                    "d"),
              "one");
    EXPECT_EQ(typed("\x7f\x17\x0b\x15\x1b[3~"), "");
}

TEST(LineEditor, GoesThroughHistoryAndKeepsWhatIsBeingWritten) {
    const std::vector<std::string> history = {"first", "second"};
    EXPECT_EQ(typed(std::string("new") + kUp, history), "second");
    EXPECT_EQ(typed(std::string("new") + kUp + kUp + kUp, history), "first");
    EXPECT_EQ(typed(std::string("new") + kUp + kUp + kDown + kDown + kDown, history), "new");
    EXPECT_EQ(typed(std::string("\x10!") + kUp + kDown, history), "second!");
}

TEST(LineEditor, EndsByItsKeys) {
    const auto last = [](std::string_view keys) {
        LineEditor editor;
        Event event = Event::editing;
        for (const char key : keys) event = editor.push(key);
        return event;
    };
    EXPECT_EQ(last("abc\r"), Event::accepted);
    EXPECT_EQ(last("\r"), Event::accepted);
    EXPECT_EQ(last("abc\x03"), Event::cancelled);
    EXPECT_EQ(last("\x04"), Event::ended);
    EXPECT_EQ(last("a\x04"), Event::editing);
    EXPECT_EQ(last("a\x0c"), Event::cleared);
    EXPECT_EQ(last("\x1b[\x03"), Event::editing);  // inside a sequence no key counts
}

TEST(LineEditor, LinesCanHaveSeveral) {
    EXPECT_EQ(typed("one\\\rtwo"), "one\ntwo");
    EXPECT_EQ(typed("one\x1b\rtwo"), "one\ntwo");
    EXPECT_EQ(typed("a\x1b[200~x\ry\tz\x03\x1b[A\x1b[201~b"), "ax\ny\tzb");
}

TEST(LineEditor, DrawsWithinTheColumns) {
    LineEditor editor;
    EXPECT_EQ(editor.draw("> ", 80), "\r> \x1b[K\r\x1b[2C");
    for (const char key : std::string("a漢\\\rb\x02")) editor.push(key);
    EXPECT_EQ(editor.draw("> ", 80), "\r> a漢⏎b\x1b[K\r\x1b[6C");
    LineEditor narrow;
    for (const char key : std::string("0123456789")) narrow.push(key);
    EXPECT_EQ(narrow.draw("> ", 8), "\r> 56789\x1b[K\r\x1b[7C");
    for (int i = 0; i < 10; ++i) narrow.push('\x02');
    EXPECT_EQ(narrow.draw("> ", 8), "\r> 01234\x1b[K\r\x1b[2C");
}

// Whatever a terminal sends, the line is UTF-8 without control characters but line ends and tabs,
// and a drawing fits.
TEST(LineEditor, StandsAnyBytes) {
    const std::string pieces[] = {"a",        " ",    "\xe6\xbc\xa2",
                                  "\xcc\x81", "\xff", "\xc2",
                                  "\x1b",     "[",    "A",
                                  "B",        "C",    "D",
                                  "3~",       "200~", "201~",
                                  "\x01",     "\x0b", "\x17",
                                  "\x19",     "\x7f", "\t",
                                  "\n",       "\\",   std::string(1, '\0'),
                                  "\xc2\x9b", "O",    ";",
                                  "\x10",     "\x0e", "\x05",
                                  "\x0c"};
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Random random(seed);
        LineEditor editor({"old", "漢字 ok"});
        for (int i = 0; i < 200; ++i)
            for (const char byte : pieces[random.bits() % std::size(pieces)]) editor.push(byte);
        const std::string text = editor.text();
        ASSERT_EQ(text::valid_utf8_prefix(text), text.size());
        ASSERT_EQ(text.find("\xc2\x9b"), std::string::npos);
        for (const char c : text)
            ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t');
        const std::string drawn = editor.draw("> ", 20);
        const std::string line = drawn.substr(1, drawn.find("\x1b[K") - 1);
        int columns = 0;
        for (std::size_t at = 0; at < line.size();
             at += text::utf8_length(static_cast<unsigned char>(line[at])))
            columns += columns_of(static_cast<char32_t>(text::code_point_at(line, at)));
        ASSERT_LT(columns, 20);
    }
}

}  // namespace
}  // namespace espalier::cli
